"""All layers and heads of a model as thumbnails of their weights: a row per layer, a column per head.

H heads, T queries, S keys."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from qkv.pictures.heat_image import HEAT_RULES, draw_weight_image, draw_weight_legend
from qkv.pictures.shapes import check_tensor_shape, to_float_cpu
from qkv.pictures.svg import (
    StyleRules,
    SvgDrawing,
    draw_svg_text,
    escape_xml,
    format_pixels,
    join_descriptions,
    measure_label,
    render_page_svg,
)
from qkv.pictures.token_text import format_token, format_weight

MAX_THUMBNAIL_CELLS = 64  # per side; more weights are pooled
THUMBNAIL_SIZE = 96  # of the longer side at most, in pixels
MIN_THUMBNAIL_SIDE = 16
THUMBNAIL_GAP = 8
HEADING_ROW = 20
GRID_RULES: StyleRules = {
    **HEAT_RULES,
    ".frame": ("fill: none; stroke: #c8d0d8; stroke-width: 0.5", "stroke: #3a424c"),
}


def render_model_grid_svg(title: str, subtitle: str, layers: Sequence[tuple[str, Tensor]]) -> str:
    """Return the text of an SVG file with a thumbnail of every head.

    `layers` are names and weights (H, T, S). A thumbnail has at most 64 × 64 cells; for more tokens a
    cell is the largest weight of its block."""
    if not layers:
        raise ValueError("no layers; expected at least one")
    for name, weights in layers:
        axes = ("heads", "queries", "keys")
        check_tensor_shape(f"weights of {name}", weights, (None, None, None), axes)
    drawing = draw_model_grid([(name, to_float_cpu(weights)) for name, weights in layers])
    return render_page_svg(title, subtitle, drawing, "model-grid", GRID_RULES)


def draw_model_grid(layers: Sequence[tuple[str, Tensor]]) -> SvgDrawing:
    """Draw the numbers of the heads, the rows of thumbnails, and a legend."""
    names = [format_token(name) for name, _ in layers]
    pooled = [pool_to_thumbnails(weights) for _, weights in layers]
    most_cells = max(max(cells.shape[1:]) for cells, _ in pooled)
    cell = max(THUMBNAIL_SIZE // most_cells, 1)  # whole pixels
    sizes = [
        tuple(max(cell * count, MIN_THUMBNAIL_SIDE) for count in cells.shape[1:])
        for cells, _ in pooled
    ]
    left = max(map(measure_label, names)) + 12
    step = max(width for _, width in sizes) + THUMBNAIL_GAP
    most_heads = max(len(cells) for cells, _ in pooled)
    is_narrow = step < measure_label(f"head {most_heads}")
    parts = [
        draw_svg_text(
            left + step * head + (step - THUMBNAIL_GAP) / 2,
            12,
            str(head) if is_narrow else f"head {head}",
            "small",
            "middle",
        )
        for head in range(most_heads)
    ]
    y = float(HEADING_ROW)
    for name, label, (_, weights), (cells, _), (height, width) in zip(
        (name for name, _ in layers), names, layers, pooled, sizes, strict=True
    ):
        parts.append(draw_svg_text(left - 12, y + height / 2 + 4, label, "", "end"))
        for head in range(len(cells)):
            x = left + step * head
            heading = f"{format_token(name)}, head {head}: {summarize_weights(weights[head])}"
            image = draw_weight_image(cells[head], x, y, width, height)
            frame = (
                f'<rect class="frame" x="{format_pixels(x)}" y="{format_pixels(y)}" '
                f'width="{width}" height="{height}"/>'
            )
            parts.append(f"<g><title>{escape_xml(heading)}</title>{image}{frame}</g>")
        y += height + THUMBNAIL_GAP
    y += 8
    parts.append(draw_weight_legend(0, y))
    y += 28
    notes = ["A row of a thumbnail is a query, a column a key.", *describe_pooling(pooled)]
    for note in notes:
        parts.append(draw_svg_text(0, y, note, "small"))
        y += 16
    right = max(left + step * most_heads, *(measure_label(note, 11) for note in notes))
    descriptions = [
        f"{label}: {len(cells)} heads, {weights.shape[1]} queries, {weights.shape[2]} keys"
        for label, (cells, _), (_, weights) in zip(names, pooled, layers, strict=True)
    ]
    return SvgDrawing(right, y - 8, "\n".join(parts), join_descriptions(descriptions))


def pool_to_thumbnails(weights: Tensor) -> tuple[Tensor, tuple[int, int]]:
    """Return the largest weight of each block, and the size of a block: (H, T, S) -> (H, t, s)."""
    rows, columns = (math.ceil(size / MAX_THUMBNAIL_CELLS) for size in weights.shape[1:])
    block = (rows, columns)
    pooled = F.max_pool2d(weights.nan_to_num(0)[:, None], block, ceil_mode=True)[:, 0]
    return pooled, block


def describe_pooling(pooled: Sequence[tuple[Tensor, tuple[int, int]]]) -> list[str]:
    """Return a note on the blocks of weights, if there are any."""
    blocks = dict.fromkeys(block for _, block in pooled if block != (1, 1))
    sizes = " or ".join(f"{rows} × {columns}" for rows, columns in blocks)
    return [f"A cell is the largest of a block of {sizes} weights."] if blocks else []


def summarize_weights(weights: Tensor) -> str:
    """Return the largest of the weights (T, S) and where it is."""
    query, key = divmod(int(weights.nan_to_num(0).argmax()), weights.shape[1])
    return f"largest weight {format_weight(float(weights[query, key]))}, query {query}, key {key}"
