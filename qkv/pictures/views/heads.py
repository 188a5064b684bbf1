"""Attention heads as lines from queries to keys, after BertViz (Vig 2019).

The opacity of a line is the weight, its color the head. H heads, T queries, S keys."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.pictures.drawing.colors import build_head_rules, get_head_class
from qkv.pictures.drawing.shapes import check_tensor_shape, to_float_cpu
from qkv.pictures.drawing.svg import (
    SMALL_SIZE,
    StyleRules,
    SvgDrawing,
    draw_svg_text,
    format_pixels,
    join_descriptions,
    measure_label,
    render_page_svg,
)
from qkv.pictures.drawing.token_text import format_token, format_weight

MIN_LINE_WEIGHT = 1 / 64  # a line with a smaller weight would be invisible
MIN_PRINTED_WEIGHT = 0.005
TOKEN_ROW = 20  # pixels
LANES_HEIGHT = 12  # of the lines of all heads that start at one token
LINES_WIDTH = 320
TOKEN_GAP = 6  # between a token and its lines
HEAD_CELL_WIDTH = 7  # of the weight of one head beside a key
MEAN_WEIGHT_WIDTH = 44
SWATCH_SIZE = 11  # of one head in the legend
SWATCH_ROW = 18
LINE_RULES: StyleRules = {
    "path": ("fill: none; stroke-width: 1.5", ""),
    "rect": ("stroke: none", ""),
    ".faded": ("fill-opacity: 0.6", ""),
}
HEADS_NOTE = "The opacity of a line is its weight; a weight below 1/64 has no line."


def render_heads_svg(
    title: str,
    subtitle: str,
    weights: Tensor,
    queries: Sequence[str],
    keys: Sequence[str],
    heads: Sequence[int],
    focus: int | None = None,
) -> str:
    """Return the text of an SVG file: queries on the left, keys on the right, a line per weight.

    `weights` (H, T, S) are those of the heads with the numbers `heads`. With `focus`, the index of a
    query, only its lines are drawn, and its weights as cells and numbers beside the keys."""
    check_tensor_shape(
        "weights", weights, (len(heads), len(queries), len(keys)), ("heads", "queries", "keys")
    )
    if focus is not None and not 0 <= focus < len(queries):
        raise ValueError(f"focus {focus}, expected a query from 0 to {len(queries) - 1}")
    drawing = draw_attention_lines(to_float_cpu(weights).nan_to_num(0), queries, keys, heads, focus)
    rules = {**LINE_RULES, **build_head_rules(heads, ["fill", "stroke"])}
    return render_page_svg(title, subtitle, drawing, "heads", rules)


def draw_attention_lines(
    weights: Tensor,
    queries: Sequence[str],
    keys: Sequence[str],
    heads: Sequence[int],
    focus: int | None,
) -> SvgDrawing:
    """Draw the legend of the heads, the lines, the tokens on both sides and a note."""
    query_labels, key_labels = list(map(format_token, queries)), list(map(format_token, keys))
    left = max(map(measure_label, [*query_labels, "queries"]))
    right = left + TOKEN_GAP + LINES_WIDTH
    cells_width = 0.0 if focus is None else HEAD_CELL_WIDTH * len(heads) + MEAN_WEIGHT_WIDTH
    key_left = right + cells_width + TOKEN_GAP
    width = key_left + max(map(measure_label, [*key_labels, "keys"]))
    legend, top = draw_head_legend(heads, width)
    top += TOKEN_ROW
    parts = [
        legend,
        draw_svg_text(left, top - 6, "queries", "small", "end"),
        draw_svg_text(key_left, top - 6, "keys", "small"),
        *draw_head_lines(weights, heads, focus, left + TOKEN_GAP, right, top),
    ]
    for index, label in enumerate(query_labels):
        css_class = "" if focus is None else "strong" if index == focus else "faded"
        y = top + TOKEN_ROW * (index + 0.7)
        parts.append(draw_svg_text(left, y, label, css_class, "end"))
    for index, label in enumerate(key_labels):
        parts.append(draw_svg_text(key_left, top + TOKEN_ROW * (index + 0.7), label))
    if focus is not None:
        parts += draw_head_cells(weights[:, focus], heads, right, top)
    height = top + TOKEN_ROW * max(len(queries), len(keys)) + TOKEN_ROW
    parts.append(draw_svg_text(0, height - 2, HEADS_NOTE, "small"))
    return SvgDrawing(
        width, height, "\n".join(parts), describe_heads(weights, queries, keys, heads, focus)
    )


def draw_head_lines(
    weights: Tensor,
    heads: Sequence[int],
    focus: int | None,
    left: float,
    right: float,
    top: float,
) -> list[str]:
    """Draw one group of lines per head; each head has its own lane within the height of a row.

    Lines of one opacity are one path: thousands of paths take long to draw."""
    first, middle, last = map(format_pixels, (left, (left + right) / 2, right))
    groups = []
    for lane, head in enumerate(heads):
        offset = top + TOKEN_ROW / 2 + (lane - (len(heads) - 1) / 2) / len(heads) * LANES_HEIGHT
        visible = weights[lane] >= MIN_LINE_WEIGHT
        if focus is not None:
            visible &= torch.arange(len(visible))[:, None] == focus
        places = visible.nonzero().tolist()
        curves: dict[str, list[str]] = {}  # by opacity
        for (query, key), weight in zip(places, weights[lane][visible].tolist(), strict=True):
            start = format_pixels(offset + TOKEN_ROW * query)
            end = format_pixels(offset + TOKEN_ROW * key)
            curve = f"M{first} {start}C{middle} {start} {middle} {end} {last} {end}"
            curves.setdefault(f"{weight:.2f}", []).append(curve)
        lines = [
            f'<path stroke-opacity="{opacity}" d="{"".join(paths)}"/>'
            for opacity, paths in sorted(curves.items())
        ]
        name = f"<title>head {head}</title>"
        groups.append(f'<g class="{get_head_class(head)}">{name}{"".join(lines)}</g>')
    return groups


def draw_head_cells(weights: Tensor, heads: Sequence[int], left: float, top: float) -> list[str]:
    """Draw the weights (H, S) of one query: a cell per head beside every key, and the mean."""
    parts = []
    for lane, head in enumerate(heads):
        cell_left = format_pixels(left + HEAD_CELL_WIDTH * lane + 1)
        cells = [
            f'<rect x="{cell_left}" y="{format_pixels(top + TOKEN_ROW * key + 2)}" '
            f'width="{HEAD_CELL_WIDTH - 1}" height="{TOKEN_ROW - 4}" fill-opacity="{weight:.2f}"/>'
            for key, weight in enumerate(weights[lane].tolist())
            if weight >= MIN_PRINTED_WEIGHT
        ]
        parts.append(f'<g class="{get_head_class(head)}">{"".join(cells)}</g>')
    x = left + HEAD_CELL_WIDTH * len(heads) + MEAN_WEIGHT_WIDTH - 4
    for key, mean in enumerate(weights.mean(0).tolist()):
        if mean >= MIN_PRINTED_WEIGHT:
            y = top + TOKEN_ROW * (key + 0.7)
            parts.append(draw_svg_text(x, y, format_weight(mean), "small", "end"))
    return parts


def draw_head_legend(heads: Sequence[int], width: float) -> tuple[str, float]:
    """Draw a swatch and the number of every head, in lines; return the height, too."""
    left = measure_label("heads") + 8
    step = SWATCH_SIZE + 12 + max(measure_label(str(head), SMALL_SIZE) for head in heads)
    columns = max(int((width - left) // step), 1)
    parts = [draw_svg_text(0, 12, "heads" if len(heads) > 1 else "head")]
    for index, head in enumerate(heads):
        row, column = divmod(index, columns)
        x, y = left + step * column, SWATCH_ROW * row
        swatch = f'x="{format_pixels(x)}" y="{y + 2}" width="{SWATCH_SIZE}" height="{SWATCH_SIZE}" rx="2"'
        parts.append(f'<rect class="{get_head_class(head)}" {swatch}/>')
        parts.append(draw_svg_text(x + SWATCH_SIZE + 4, y + 12, str(head), "small"))
    return "".join(parts), SWATCH_ROW * (1 + (len(heads) - 1) // columns)


def describe_heads(
    weights: Tensor,
    queries: Sequence[str],
    keys: Sequence[str],
    heads: Sequence[int],
    focus: int | None,
) -> str:
    """Return the largest weight of every query in words."""
    items = []
    for query, token in enumerate(queries):
        if focus in (None, query):
            lane, key = divmod(int(weights[:, query].argmax()), len(keys))
            weight = format_weight(float(weights[lane, query, key]))
            items.append(
                f"{format_token(token)} → {format_token(keys[key])} {weight} (head {heads[lane]})"
            )
    return join_descriptions(items)
