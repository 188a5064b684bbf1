"""Attention masks as grids, and position biases as curves over the distance.

H heads, T queries, S keys."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from itertools import groupby

from torch import Tensor

from qkv.pictures.chart import (
    LEFT,
    Axis,
    Chart,
    build_axis,
    build_x_axis,
    draw_chart_axes,
    spread_heights,
)
from qkv.pictures.drawing.colors import build_head_rules, get_head_class
from qkv.pictures.drawing.shapes import check_tensor_shape, to_float_cpu
from qkv.pictures.drawing.svg import (
    RELATIVE_CHARACTER_WIDTH,
    SMALL_SIZE,
    StyleRules,
    SvgDrawing,
    draw_svg_text,
    format_pixels,
    join_descriptions,
    measure_label,
    render_page_svg,
)
from qkv.pictures.drawing.token_text import isolate_direction, make_visible

MASK_SIZE = 256  # of the longer side, in pixels
MAX_MASK_CELL = 24
MIN_GRID_CELL = 4  # cells of this size have a gap between them
MASK_GAP = 28
MAX_MASK_COLUMNS = 4
MASK_NAME_LINES = 3
NAME_LINE_HEIGHT = 15
CURVES_WIDTH = 560
CURVES_HEIGHT = 220
CURVE_LABEL_HEIGHT = 12
CURVES_TOP = 44  # of the name of a chart and of its y axis
CURVES_BOTTOM = 56
DISTANCE_LABEL = "distance in tokens (position of the key − position of the query)"
MASK_RULES: StyleRules = {
    ".masked": ("fill: #e3e6e9", "fill: #262d36"),
    ".visible": ("fill: #1868ae", "fill: #58a6e8"),
    ".gap": ("fill: none; stroke: #ffffff", "stroke: #0d1117"),
    ".grid": ("stroke: #e4e7eb", "stroke: #242a32"),
    ".axis": ("stroke: #9aa3ad", "stroke: #5b6570"),
    ".curve": ("fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round", ""),
    ".number": ("font-size: 11px; font-weight: 600; stroke: none", ""),
}


def render_pattern_masks_svg(
    title: str,
    subtitle: str,
    masks: Sequence[tuple[str, Tensor]],
    curves: Sequence[tuple[str, Sequence[int], Tensor]] = (),
) -> str:
    """Return the text of an SVG file with a grid per mask and a chart per position bias.

    `masks` are names and booleans (T, S), true where a query may attend; `curves` are names, distances
    and the bias of each head at each distance (H, distances)."""
    for name, mask in masks:
        check_tensor_shape(f"mask {name}", mask, (None, None), ("queries", "keys"))
    for name, distances, bias in curves:
        check_tensor_shape(f"bias {name}", bias, (None, len(distances)), ("heads", "distances"))
    drawings = []
    if masks:
        drawings.append(draw_masks([(name, mask.detach().bool().cpu()) for name, mask in masks]))
    for name, distances, bias in curves:
        drawings.append(draw_curves(name, distances, to_float_cpu(bias)))
    if not drawings:
        raise ValueError("no masks and no curves; expected at least one")
    parts = []
    y = 0.0
    for drawing in drawings:
        parts.append(f'<g transform="translate(0 {format_pixels(y)})">\n{drawing.body}\n</g>')
        y += drawing.height
    heads = range(max((len(bias) for _, _, bias in curves), default=0))
    rules = {**MASK_RULES, **build_curve_rules(heads)}
    whole_drawing = SvgDrawing(
        max(drawing.width for drawing in drawings),
        y,
        "\n".join(parts),
        join_descriptions([drawing.description for drawing in drawings]),
    )
    return render_page_svg(title, subtitle, whole_drawing, "masks", rules)


def build_curve_rules(heads: Sequence[int]) -> StyleRules:
    """Return the colors of the curves, and of the numbers at their ends."""
    strokes, fills = build_head_rules(heads, ["stroke"]), build_head_rules(heads, ["fill"])
    curves = {f".curve{selector}": colors for selector, colors in strokes.items()}
    return curves | {f".number{selector}": colors for selector, colors in fills.items()}


def draw_masks(masks: Sequence[tuple[str, Tensor]]) -> SvgDrawing:
    """Draw the masks in rows, each with its name below, and a note."""
    drawings = [draw_mask(name, mask) for name, mask in masks]
    step = max(drawing.width for drawing in drawings) + MASK_GAP
    parts = []
    y = 0.0
    for first in range(0, len(drawings), MAX_MASK_COLUMNS):
        row = drawings[first : first + MAX_MASK_COLUMNS]
        for column, drawing in enumerate(row):
            place = f"{format_pixels(column * step)} {format_pixels(y)}"
            parts.append(f'<g transform="translate({place})">\n{drawing.body}\n</g>')
        y += max(drawing.height for drawing in row) + 16
    note = "Row: query; column: key. A filled cell: the query may attend to the key."
    parts.append(draw_svg_text(0, y + 4, note, "small"))
    width = max(
        min(len(drawings), MAX_MASK_COLUMNS) * step - MASK_GAP, measure_label(note, SMALL_SIZE)
    )
    description = join_descriptions([drawing.description for drawing in drawings])
    return SvgDrawing(width, y + 28, "\n".join(parts), description)


def draw_mask(name: str, mask: Tensor) -> SvgDrawing:
    """Draw a mask (T, S): runs of visible keys over a masked ground, lines between cells, the name."""
    num_queries, num_keys = mask.shape
    cell = min(max(MASK_SIZE // max(num_queries, num_keys), 1), MAX_MASK_CELL)
    width, height = cell * num_keys, cell * num_queries
    path = "".join(
        f"M{cell * start} {cell * row}h{cell * length}v{cell}h{-cell * length}z"
        for row, visible in enumerate(mask.tolist())
        for start, length in find_runs(visible)
    )
    parts = [
        f'<rect class="masked" width="{width}" height="{height}"/>',
        f'<path class="visible" shape-rendering="crispEdges" d="{path}"/>',
    ]
    if cell >= MIN_GRID_CELL:
        lines = [f"M{cell * column} 0v{height}" for column in range(num_keys + 1)]
        lines += [f"M0 {cell * row}h{width}" for row in range(num_queries + 1)]
        parts.append(f'<path class="gap" d="{"".join(lines)}"/>')
    name_width = max(width, MASK_SIZE)
    lines = wrap_name(name, name_width)
    y = height + 4.0
    for line in lines:
        y += NAME_LINE_HEIGHT
        parts.append(draw_svg_text(0, y, line, "small"))
    count = f"{int(mask.sum()):,} of {mask.numel():,} pairs are visible"
    description = f"{isolate_direction(make_visible(name))}: {count}"
    return SvgDrawing(name_width, y + 4, "\n".join(parts), description)


def find_runs(visible: Sequence[bool]) -> list[tuple[int, int]]:
    """Return the start and the length of every run of true values."""
    runs = []
    start = 0
    for is_visible, group in groupby(visible):
        length = len([*group])
        if is_visible:
            runs.append((start, length))
        start += length
    return runs


def wrap_name(name: str, width: float) -> list[str]:
    """Return the lines of the name of a mask."""
    columns = int(width / (RELATIVE_CHARACTER_WIDTH * SMALL_SIZE))
    visible = make_visible(name[: columns * MASK_NAME_LINES * 2])
    lines = textwrap.wrap(visible, columns, max_lines=MASK_NAME_LINES, placeholder=" …")
    return [isolate_direction(line) for line in lines]


def draw_curves(name: str, distances: Sequence[int], bias: Tensor) -> SvgDrawing:
    """Draw a chart with one curve per head, whose number stands at its end."""
    right = LEFT + CURVES_WIDTH
    height = max(CURVES_HEIGHT, CURVE_LABEL_HEIGHT * len(bias))
    chart = Chart(title=name, lines=(), x_label=DISTANCE_LABEL, y_label="bias added to the score")
    x_axis = build_x_axis(chart, [float(distance) for distance in distances], LEFT, right)
    values = [0.0, *filter(math.isfinite, bias.flatten().tolist())]
    y_axis = build_axis(values, "linear", CURVES_TOP + height, CURVES_TOP)
    parts = [
        draw_svg_text(0, 14, make_visible(name), "strong"),
        draw_svg_text(0, CURVES_TOP - 10, chart.y_label, "small"),
        *draw_chart_axes(x_axis, y_axis, chart.x_label),
    ]
    curves = bias.tolist()
    for head, curve in enumerate(curves):
        path = trace_curve(distances, curve, x_axis, y_axis)
        heading = f"<title>head {head}</title>"
        parts.append(f'<path class="curve {get_head_class(head)}" d="{path}">{heading}</path>')
    ends = [y_axis.place(curve[-1] if math.isfinite(curve[-1]) else 0) for curve in curves]
    label_heights = spread_heights(ends, CURVE_LABEL_HEIGHT, CURVES_TOP, CURVES_TOP + height)
    for head, y in enumerate(label_heights):
        css_class = f"number {get_head_class(head)}"
        parts.append(draw_svg_text(right + 8, y + 4, str(head), css_class))
    bottom = CURVES_TOP + height + CURVES_BOTTOM
    note = "One curve per head; the numbers at the right are the heads."
    parts.append(draw_svg_text(0, bottom, note, "small"))
    description = (
        f"{isolate_direction(make_visible(name))}: {len(bias)} heads, bias from "
        f"{min(values):.3g} to {max(values):.3g}"
    )
    width = max(right + 40, measure_label(make_visible(name)))
    return SvgDrawing(width, bottom + 24, "\n".join(parts), description)


def trace_curve(
    distances: Sequence[int], curve: Sequence[float], x_axis: Axis, y_axis: Axis
) -> str:
    """Return the path of a curve; it is interrupted where the bias is not finite."""
    path = ""
    command = "M"
    for distance, value in zip(distances, curve, strict=True):
        if math.isfinite(value):
            path += f"{command}{x_axis.place(distance):.1f} {y_axis.place(value):.1f}"
        command = "L" if math.isfinite(value) else "M"
    return f"{path}h0" if path else ""  # a single point is a dot
