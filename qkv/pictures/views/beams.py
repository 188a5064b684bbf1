"""Beam search as a tree: a column for each step, hypotheses joined to those that they extend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from qkv.pictures.drawing.svg import (
    RELATIVE_CHARACTER_WIDTH,
    TEXT_SIZE,
    StyleRules,
    SvgDrawing,
    draw_svg_text,
    escape_xml,
    format_pixels,
    join_descriptions,
    render_page_svg,
)
from qkv.pictures.drawing.token_text import fit_token, format_number, format_token

BEAM_WIDTH = 108  # of a box, in pixels
BEAM_HEIGHT = 38
BEAM_GAP = 8  # between the boxes of a step
STEP_GAP = 34  # between two steps
STEP_HEADING = 20
BEAM_PADDING = 8
FINISHED_SIDE = 8  # of the square of a finished hypothesis
MAX_BEAM_TITLE = 200  # characters of a token
BEAM_RULES: StyleRules = {
    ".beam": ("fill: #ffffff; stroke: #7c8590", "fill: #151b23; stroke: #6b7582"),
    ".beam.best": ("stroke: #1868ae; stroke-width: 2.5", "stroke: #58a6e8"),
    ".beam.pruned": ("stroke-dasharray: 4 3", ""),
    ".link": ("fill: none; stroke: #7c8590; stroke-width: 1.2", "stroke: #6b7582"),
    ".link.best": ("stroke: #1868ae; stroke-width: 3", "stroke: #58a6e8"),
    ".link.pruned": ("stroke-opacity: 0.4", ""),
    ".faded": ("fill: #57606a", "fill: #9aa4af"),
    ".finished": ("fill: #57606a", "fill: #9aa4af"),
}


class BeamHypothesis(NamedTuple):
    """A hypothesis of one step: its last token, and its sum of log-probabilities as the score.

    `parent`: index of the hypothesis that it extends in the step before, -1 in the first step."""

    text: str
    parent: int
    score: float
    is_kept: bool
    is_finished: bool


def render_beams_svg(
    title: str, subtitle: str, steps: Sequence[Sequence[BeamHypothesis]], best: Sequence[int]
) -> str:
    """Return the text of an SVG file with a column of hypotheses for each step.

    `best` are the indices of the hypotheses that lead to the result, one for each of its steps."""
    check_beams(steps, best)
    return render_page_svg(title, subtitle, draw_beams(steps, best), "beams", BEAM_RULES)


def check_beams(steps: Sequence[Sequence[BeamHypothesis]], best: Sequence[int]) -> None:
    """Raise ValueError if an index is not that of a hypothesis."""
    if not steps or len(best) > len(steps):
        raise ValueError(
            f"{len(steps)} steps and a result of {len(best)}, expected at least one step, and no "
            "more in the result"
        )
    for step, candidates in enumerate(steps):
        limit = len(steps[step - 1]) if step else 0
        for candidate in candidates:
            if not -1 <= candidate.parent < limit:
                raise ValueError(
                    f"step {step}: parent {candidate.parent}, expected an index of the {limit} "
                    "hypotheses of the step before, or -1"
                )
    for step, index in enumerate(best):
        if not 0 <= index < len(steps[step]):
            raise ValueError(
                f"best hypothesis {index} of step {step}, expected an index from 0 to "
                f"{len(steps[step]) - 1}"
            )


def draw_beams(steps: Sequence[Sequence[BeamHypothesis]], best: Sequence[int]) -> SvgDrawing:
    """Draw the numbers of the steps, the links, the boxes over them, and a legend."""
    links: dict[bool, list[str]] = {False: [], True: []}  # the path of the result above the others
    boxes = []
    headings = []
    for step, candidates in enumerate(steps):
        x = step * (BEAM_WIDTH + STEP_GAP)
        headings.append(draw_svg_text(x, 11, f"step {step + 1}", "small"))
        for index, candidate in enumerate(candidates):
            is_best = step < len(best) and best[step] == index
            y = STEP_HEADING + index * (BEAM_HEIGHT + BEAM_GAP)
            boxes.append(draw_beam(candidate, x, y, is_best))
            if candidate.parent >= 0:
                start = STEP_HEADING + candidate.parent * (BEAM_HEIGHT + BEAM_GAP)
                links[is_best].append(draw_link(candidate, x, start, y, is_best))
    most = max(1, *map(len, steps))
    height = STEP_HEADING + most * (BEAM_HEIGHT + BEAM_GAP) + 12
    legend = draw_beam_legend(height)
    width = max(len(steps) * (BEAM_WIDTH + STEP_GAP) - STEP_GAP, legend.width)
    body = "\n".join([*headings, *links[False], *links[True], *boxes, legend.body])
    return SvgDrawing(width, height + legend.height, body, describe_beams(steps, best))


def draw_beam(candidate: BeamHypothesis, x: float, y: float, is_best: bool) -> str:
    """Draw the box of a hypothesis: its token, its score, and a square if it is finished."""
    classes = get_beam_classes(candidate, is_best)
    room = BEAM_WIDTH - 2 * BEAM_PADDING - (FINISHED_SIDE + 4) * candidate.is_finished
    label = fit_token(candidate.text, room / (RELATIVE_CHARACTER_WIDTH * TEXT_SIZE))
    heading = (
        f"{format_token(candidate.text, MAX_BEAM_TITLE)}: log p {format_number(candidate.score)}, "
        f"{'kept' if candidate.is_kept else 'dropped'}{', finished' * candidate.is_finished}"
    )
    text_class = "strong" if is_best else "" if candidate.is_kept else "faded"
    parts = [
        f"<title>{escape_xml(heading)}</title>",
        f'<rect class="beam{classes}" x="{x}" y="{y}" width="{BEAM_WIDTH}" '
        f'height="{BEAM_HEIGHT}" rx="5"/>',
        draw_svg_text(x + BEAM_PADDING, y + 16, label, text_class),
        draw_svg_text(x + BEAM_PADDING, y + 31, f"log p {format_number(candidate.score)}", "small"),
    ]
    if candidate.is_finished:
        parts.append(draw_finished_mark(x + BEAM_WIDTH - BEAM_PADDING - FINISHED_SIDE, y + 7))
    return f"<g>{''.join(parts)}</g>"


def get_beam_classes(candidate: BeamHypothesis, is_best: bool) -> str:
    """Return the further CSS classes of a box or a link."""
    return " best" * is_best + " pruned" * (not candidate.is_kept)


def draw_finished_mark(x: float, y: float) -> str:
    side = FINISHED_SIDE
    return f'<rect class="finished" x="{x}" y="{y}" width="{side}" height="{side}"/>'


def draw_link(candidate: BeamHypothesis, x: float, start: float, end: float, is_best: bool) -> str:
    """Draw the line from the box of the parent to the box of a hypothesis."""
    left, middle = x - STEP_GAP, format_pixels(x - STEP_GAP / 2)
    start, end = start + BEAM_HEIGHT / 2, end + BEAM_HEIGHT / 2
    path = (
        f"M{left} {format_pixels(start)}C{middle} {format_pixels(start)} "
        f"{middle} {format_pixels(end)} {x} {format_pixels(end)}"
    )
    return f'<path class="link{get_beam_classes(candidate, is_best)}" d="{path}"/>'


def draw_beam_legend(top: float) -> SvgDrawing:
    """Draw what the outlines and the square mean."""
    parts = []
    x = 0.0
    for name, classes in (("result", " best"), ("kept", ""), ("dropped", " pruned")):
        box = f'x="{format_pixels(x + 1.5)}" y="{top + 3}" width="20" height="12" rx="3"'
        parts.append(f'<rect class="beam{classes}" {box}/>')
        parts.append(draw_svg_text(x + 28, top + 13, name, "small"))
        x += 92
    parts.append(draw_finished_mark(x, top + 5))
    parts.append(draw_svg_text(x + 14, top + 13, "finished", "small"))
    note = "log p: sum of the log-probabilities of the tokens"
    parts.append(draw_svg_text(0, top + 34, note, "small"))
    return SvgDrawing(x + 72, 38, "\n".join(parts), "legend")


def describe_beams(steps: Sequence[Sequence[BeamHypothesis]], best: Sequence[int]) -> str:
    """Return the path of the result in words."""
    path = [steps[step][index] for step, index in enumerate(best)]
    tokens = [f"{format_token(item.text)} {format_number(item.score)}" for item in path]
    return f"beam search of {len(steps)} steps: {join_descriptions(tokens)}"
