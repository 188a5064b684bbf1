"""All layers and heads of a model as thumbnails of their weights: a row per layer, a column per head.

H heads, T queries, S keys."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from qkv.pictures.drawing.heat_image import HEAT_RULES, draw_weight_image, draw_weight_legend
from qkv.pictures.drawing.shapes import check_tensor_shape, to_float_cpu
from qkv.pictures.drawing.svg import (
    SMALL_SIZE,
    StyleRules,
    SvgDrawing,
    draw_svg_text,
    escape_xml,
    format_pixels,
    join_descriptions,
    measure_label,
    render_page_svg,
)
from qkv.pictures.drawing.token_text import format_token, format_weight

MAX_THUMBNAIL_CELLS = 64  # per side; more weights are pooled
THUMBNAIL_SIZE = 96  # of the longer side at most, in pixels
MIN_THUMBNAIL_SIDE = 16
THUMBNAIL_GAP = 8
HEADING_ROW = 20
GRID_RULES: StyleRules = {
    **HEAT_RULES,
    ".frame": ("fill: none; stroke: #c8d0d8; stroke-width: 0.5", "stroke: #3a424c"),
}


def render_model_grid_svg(
    title: str, subtitle: str, layers: Sequence[tuple[str, Tensor]], pool: int = 1
) -> str:
    """Return the text of an SVG file with a thumbnail of every head.

    `layers` are names and weights (H, T, S), or the largest weight of each block of `pool` × `pool`. A
    thumbnail has at most 64 × 64 cells; for more weights a cell is the largest one of its block."""
    if not layers:
        raise ValueError("no layers; expected at least one")
    for name, weights in layers:
        axes = ("heads", "queries", "keys")
        check_tensor_shape(f"weights of {name}", weights, (None, None, None), axes)
    drawing = draw_model_grid(
        [(name, to_float_cpu(weights).nan_to_num(0)) for name, weights in layers], pool
    )
    return render_page_svg(title, subtitle, drawing, "model-grid", GRID_RULES)


def draw_model_grid(layers: Sequence[tuple[str, Tensor]], pool: int) -> SvgDrawing:
    """Draw the numbers of the heads, the rows of thumbnails, and a legend."""
    names = [format_token(name) for name, _ in layers]
    pooled = [pool_to_thumbnails(weights) for _, weights in layers]
    most_cells = max(max(cells.shape[1:]) for cells, _ in pooled)
    cell = max(THUMBNAIL_SIZE // most_cells, 1)  # whole pixels
    left = max(map(measure_label, names)) + 12
    step = max(measure_thumbnail(cells, cell)[0] for cells, _ in pooled) + THUMBNAIL_GAP
    most_heads = max(len(cells) for cells, _ in pooled)
    parts = draw_head_numbers(most_heads, left, step)
    y = float(HEADING_ROW)
    for name, (_, weights), (cells, _) in zip(names, layers, pooled, strict=True):
        width, height = measure_thumbnail(cells, cell)
        parts.append(draw_svg_text(left - 12, y + height / 2 + 4, name, "", "end"))
        for head in range(len(cells)):
            heading = f"{name}, head {head}: {summarize_weights(weights[head], pool)}"
            parts.append(draw_thumbnail(heading, cells[head], left + step * head, y, width, height))
        y += height + THUMBNAIL_GAP
    parts.append(draw_weight_legend(0, y + 8))
    y += 36
    notes = ["A row of a thumbnail is a query, a column a key.", *describe_pooling(pooled, pool)]
    for note in notes:
        parts.append(draw_svg_text(0, y, note, "small"))
        y += 16
    right = max(left + step * most_heads, *(measure_label(note, SMALL_SIZE) for note in notes))
    descriptions = [
        f"{name}: {weights.shape[0]} heads, {weights.shape[1]} queries, {weights.shape[2]} keys"
        + (f", in blocks of {pool}" if pool > 1 else "")
        for name, (_, weights) in zip(names, layers, strict=True)
    ]
    return SvgDrawing(right, y - 8, "\n".join(parts), join_descriptions(descriptions))


def measure_thumbnail(cells: Tensor, cell: int) -> tuple[int, int]:
    """Return the width and the height of a thumbnail (H, t, s)."""
    height, width = (max(cell * count, MIN_THUMBNAIL_SIDE) for count in cells.shape[1:])
    return width, height


def draw_head_numbers(num_heads: int, left: float, step: float) -> list[str]:
    """Draw the numbers of the heads above their columns."""
    has_room = step >= measure_label(f"head {num_heads}", SMALL_SIZE)
    parts = []
    for head in range(num_heads):
        label = f"head {head}" if has_room else str(head)
        center = left + step * head + (step - THUMBNAIL_GAP) / 2
        parts.append(draw_svg_text(center, 12, label, "small", "middle"))
    return parts


def draw_thumbnail(heading: str, cells: Tensor, x: float, y: float, width: int, height: int) -> str:
    """Draw the cells (t, s) of one head, with a heading to point at."""
    image = draw_weight_image(cells, x, y, width, height)
    position = f'x="{format_pixels(x)}" y="{format_pixels(y)}"'
    frame = f'<rect class="frame" {position} width="{width}" height="{height}"/>'
    return f"<g><title>{escape_xml(heading)}</title>{image}{frame}</g>"


def pool_to_thumbnails(weights: Tensor) -> tuple[Tensor, tuple[int, int]]:
    """Return the largest weight of each block, and the size of a block: (H, T, S) -> (H, t, s)."""
    rows, columns = (math.ceil(size / MAX_THUMBNAIL_CELLS) for size in weights.shape[1:])
    block = (rows, columns)
    pooled = F.max_pool2d(weights[:, None], block, ceil_mode=True)[:, 0]
    return pooled, block


def describe_pooling(pooled: Sequence[tuple[Tensor, tuple[int, int]]], pool: int) -> list[str]:
    """Return a note on the blocks of weights, if there are any."""
    blocks = dict.fromkeys((rows * pool, columns * pool) for _, (rows, columns) in pooled)
    sizes = " or ".join(
        f"{rows} × {columns}" for rows, columns in blocks if (rows, columns) != (1, 1)
    )
    return [f"A cell is the largest of a block of {sizes} weights."] if sizes else []


def summarize_weights(weights: Tensor, pool: int) -> str:
    """Return the largest of the weights (T, S) and where it is, or the block in which it is."""
    query, key = divmod(int(weights.argmax()), weights.shape[1])
    names = (("query", query), ("key", key))
    places = [
        f"{name} {index}" if pool == 1 else f"{name} {index * pool} to {(index + 1) * pool - 1}"
        for name, index in names
    ]
    return f"largest weight {format_weight(float(weights[query, key]))}, {', '.join(places)}"
