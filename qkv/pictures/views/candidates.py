"""The candidates of every generated token, with their probability before and after the logits
processors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from qkv.pictures.drawing.svg import (
    RELATIVE_CHARACTER_WIDTH,
    SMALL_SIZE,
    TEXT_SIZE,
    StyleRules,
    SvgDrawing,
    draw_svg_text,
    escape_xml,
    format_pixels,
    join_descriptions,
    measure_label,
    render_page_svg,
)
from qkv.pictures.drawing.token_text import fit_token, format_token, format_weight

MAX_STEP_COLUMNS = 4  # in a row of the picture
STEP_WIDTH = 312  # pixels
STEP_MARGIN = 20  # between two steps
CANDIDATE_ROW = 20
CANDIDATE_WIDTH = 136  # of the check mark and a token
PROBABILITY_WIDTH = 76  # of the bar of the probability 1
PROBABILITY_HEIGHT = 6
NUMBER_COLUMN = 48
CANDIDATE_HEADING = 42  # of the token and of the names of the columns
MAX_CANDIDATE_TITLE = 200  # characters of a token
CANDIDATE_RULES: StyleRules = {
    ".before": ("fill: #1868ae", "fill: #58a6e8"),
    ".after": ("fill: #d97706", "fill: #e8923a"),
    ".chosen": ("fill: #e6eef6", "fill: #1b2735"),
    ".check": ("fill: none; stroke: #1868ae; stroke-width: 2", "stroke: #58a6e8"),
    ".rule": ("stroke: #d8dde2", "stroke: #30373f"),
}


class TokenCandidate(NamedTuple):
    """A token that may come next: its probability by the model, and after the logits processors."""

    text: str
    probability: float
    processed: float
    is_end: bool = False


class CandidateStep(NamedTuple):
    """A generated token and the candidates for its place; `chosen` is its index among them, or None
    if it is not one of them."""

    token: str
    candidates: Sequence[TokenCandidate]
    chosen: int | None


def render_candidates_svg(title: str, subtitle: str, steps: Sequence[CandidateStep]) -> str:
    """Return the text of an SVG file with a column for each generated token, in rows of columns."""
    for number, step in enumerate(steps):
        if step.chosen is not None and not 0 <= step.chosen < len(step.candidates):
            raise ValueError(
                f"step {number}: chosen candidate {step.chosen}, expected an index of the "
                f"{len(step.candidates)} candidates, or None"
            )
    if not steps:
        raise ValueError("no steps; expected at least one generated token")
    drawing = draw_candidates(steps)
    return render_page_svg(title, subtitle, drawing, "candidates", CANDIDATE_RULES)


def draw_candidates(steps: Sequence[CandidateStep]) -> SvgDrawing:
    """Draw the steps in rows of columns, and a legend."""
    parts = []
    y = 0.0
    for first in range(0, len(steps), MAX_STEP_COLUMNS):
        row = steps[first : first + MAX_STEP_COLUMNS]
        for column, step in enumerate(row):
            x = column * (STEP_WIDTH + STEP_MARGIN)
            body = "\n".join(draw_candidate_step(step, first + column))
            parts.append(f'<g transform="translate({x} {format_pixels(y)})">\n{body}\n</g>')
        y += CANDIDATE_HEADING + CANDIDATE_ROW * max(len(step.candidates) for step in row) + 24
    legend = draw_candidate_legend(y)
    parts.append(legend.body)
    num_columns = min(len(steps), MAX_STEP_COLUMNS)
    width = max(num_columns * (STEP_WIDTH + STEP_MARGIN) - STEP_MARGIN, legend.width)
    tokens = [f"{format_token(step.token)} {describe_choice(step)}".strip() for step in steps]
    return SvgDrawing(width, y + legend.height, "\n".join(parts), join_descriptions(tokens))


def draw_candidate_legend(top: float) -> SvgDrawing:
    """Draw the colors of the bars, one below the other."""
    parts = []
    width = 0.0
    labels = {"before": "probability by the model", "after": "after the logits processors"}
    for css_class, label in labels.items():
        position = f'y="{format_pixels(top + 2)}" width="20" height="{PROBABILITY_HEIGHT}"'
        parts.append(f'<rect class="{css_class}" {position}/>')
        parts.append(draw_svg_text(28, top + 9, label, "small"))
        width = max(width, 28 + measure_label(label, SMALL_SIZE))
        top += 17
    return SvgDrawing(width, 2 * 17, "".join(parts), "legend")


def describe_choice(step: CandidateStep) -> str:
    """Return the probability of the generated token, if it is known."""
    if step.chosen is None:
        return ""
    return format_weight(step.candidates[step.chosen].probability)


def draw_candidate_step(step: CandidateStep, index: int) -> list[str]:
    """Draw the number of a step, its token, the names of the columns, and its candidates."""
    number = f"{index + 1}."
    left = (len(number) + 1) * RELATIVE_CHARACTER_WIDTH * TEXT_SIZE
    room = (STEP_WIDTH - left) / (RELATIVE_CHARACTER_WIDTH * TEXT_SIZE * 1.1)  # bold
    parts = [
        draw_svg_text(0, 12, number, "small"),
        draw_svg_text(left, 12, fit_token(step.token, room), "strong"),
        f'<path class="rule" d="M0 19h{STEP_WIDTH}"/>',
        draw_svg_text(STEP_WIDTH - NUMBER_COLUMN - 2, 33, "before", "small", "end"),
        draw_svg_text(STEP_WIDTH - 2, 33, "after", "small", "end"),
    ]
    if step.chosen is None:
        parts.append(draw_svg_text(0, 33, "not among the candidates", "small"))
    for row, candidate in enumerate(step.candidates):
        y = CANDIDATE_HEADING + CANDIDATE_ROW * row
        parts.append(draw_candidate(candidate, y, row == step.chosen))
    return parts


def draw_candidate(candidate: TokenCandidate, y: float, is_chosen: bool) -> str:
    """Draw a token, a check mark if it is the chosen one, both bars and both numbers."""
    columns = (CANDIDATE_WIDTH - 26) / (RELATIVE_CHARACTER_WIDTH * TEXT_SIZE)
    heading = (
        f"{format_token(candidate.text, MAX_CANDIDATE_TITLE)}: {format_weight(candidate.probability)},"
        f" after the processors {format_weight(candidate.processed)}"
        f"{', ends the text' * candidate.is_end}{', chosen' * is_chosen}"
    )
    parts = [f"<title>{escape_xml(heading)}</title>"]
    if is_chosen:
        parts.append(
            f'<rect class="chosen" y="{y}" width="{STEP_WIDTH}" height="{CANDIDATE_ROW}" rx="3"/>'
            f'<path class="check" d="M4 {y + 10}l3 4l6 -8"/>'
        )
    text_class = "strong" if is_chosen else ""
    parts.append(draw_svg_text(18, y + 14, fit_token(candidate.text, columns), text_class))
    for css_class, probability, offset in (
        ("before", candidate.probability, 3),
        ("after", candidate.processed, 3 + PROBABILITY_HEIGHT + 2),
    ):
        width = min(max(probability, 0), 1) * PROBABILITY_WIDTH
        parts.append(
            f'<rect class="{css_class}" x="{CANDIDATE_WIDTH}" y="{y + offset}" '
            f'width="{width:.2f}" height="{PROBABILITY_HEIGHT}"/>'
        )
    before, after = format_weight(candidate.probability), format_weight(candidate.processed)
    parts.append(draw_svg_text(STEP_WIDTH - NUMBER_COLUMN - 2, y + 14, before, "small", "end"))
    parts.append(draw_svg_text(STEP_WIDTH - 2, y + 14, after, "small", "end"))
    return f"<g>{''.join(parts)}</g>"
