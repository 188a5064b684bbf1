"""How the attention scores of one query come about: from its vector and those of the keys, by products
and terms, to the weights. D head size, S keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from qkv.pictures.drawing.heat_image import HEAT_RULES, draw_signed_image, draw_signed_legend
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
from qkv.pictures.drawing.token_text import format_number, format_token, format_weight

KEY_ROW = 20  # pixels
STRIP_WIDTH = 256  # of all elements of a vector, at most one pixel each if there are more
MAX_ELEMENT_WIDTH = 12
STRIP_GAP = 6  # between the strips of two keys
COLUMN_GAP = 16
MIN_TERM_WIDTH = 52
WEIGHT_NUMBER_WIDTH = 48
WEIGHT_BAR_WIDTH = 120
MIN_BAR_WIDTH = 1
PRODUCTS_LABEL = "q × k, element by element"
CONTRIBUTIONS_LABEL = "contributions"
NEURON_RULES: StyleRules = {
    **HEAT_RULES,
    ".gap": ("stroke: #ffffff; fill: none", "stroke: #0d1117"),
    ".bar": ("fill: #1868ae", "fill: #58a6e8"),
}


class VectorColumn(NamedTuple):
    """Strips of one vector for each key: their heading, numbers (S, D) and the largest of the scale."""

    label: str
    vectors: Tensor
    largest: float

    @property
    def width(self) -> float:
        return max(measure_strip(self.vectors.shape[1]), measure_label(self.label, SMALL_SIZE))


def render_neurons_svg(
    title: str,
    subtitle: str,
    query_label: str,
    query: Tensor | None,
    keys: Sequence[str],
    key_vectors: Tensor | None,
    products: Tensor,
    terms: Sequence[tuple[str, Tensor]],
    weights: Tensor,
) -> str:
    """Return the text of an SVG file with a row for each key.

    A row has the key vector (S, D), its `products` with the query (S, D), or what each element
    contributes where scores are no dot products, the number of each of the `terms` (S), where NaN is a
    masked key, and the weight (S)."""
    size = len(keys)
    check_tensor_shape("products", products, (size, None), ("keys", "elements"))
    check_tensor_shape("weights", weights, (size,), ("keys",))
    for name, values in terms:
        check_tensor_shape(f"term {name}", values, (size,), ("keys",))
    if key_vectors is not None:
        check_tensor_shape("key vectors", key_vectors, (size, None), ("keys", "elements"))
    if query is not None:
        check_tensor_shape("query", query, (None,), ("elements",))
    columns = build_vector_columns(query, key_vectors, products)
    drawing = draw_neurons(
        format_token(query_label),
        None if query is None else to_float_cpu(query),
        list(map(format_token, keys)),
        columns,
        [(name, to_float_cpu(values).tolist()) for name, values in terms],
        to_float_cpu(weights).nan_to_num(0).tolist(),
    )
    return render_page_svg(title, subtitle, drawing, "neurons", NEURON_RULES)


def build_vector_columns(
    query: Tensor | None, key_vectors: Tensor | None, products: Tensor
) -> list[VectorColumn]:
    """Return the columns of strips: queries and keys have one scale, products have another."""
    columns = []
    vectors = [to_float_cpu(vector) for vector in (key_vectors, query) if vector is not None]
    if key_vectors is not None:
        columns.append(VectorColumn("key vector k", vectors[0], find_largest(*vectors)))
    is_product = query is not None and key_vectors is not None
    is_product = is_product and key_vectors is not None and key_vectors.shape == products.shape
    label = PRODUCTS_LABEL if is_product else CONTRIBUTIONS_LABEL
    numbers = to_float_cpu(products)
    return [*columns, VectorColumn(label, numbers, find_largest(numbers))]


def find_largest(*tensors: Tensor) -> float:
    """Return the largest absolute value that is a number; 1 if all are zero."""
    values = [float(tensor.nan_to_num(0, 0, 0).abs().max()) for tensor in tensors]
    return max(values) or 1.0


def measure_strip(size: int) -> float:
    """Return the width of a vector: elements are whole pixels where they can."""
    return float(size * min(max(STRIP_WIDTH // size, 1), MAX_ELEMENT_WIDTH))


def draw_neurons(
    query_label: str,
    query: Tensor | None,
    keys: Sequence[str],
    columns: Sequence[VectorColumn],
    terms: Sequence[tuple[str, Sequence[float]]],
    weights: Sequence[float],
) -> SvgDrawing:
    """Draw the query, the headings, the columns from left to right, and the legends."""
    parts = []
    left = max(map(measure_label, [*keys, query_label])) + COLUMN_GAP
    top = 26.0
    if query is not None:
        label = "query vector q"
        parts.append(draw_svg_text(left, 10, label, "small"))
        parts.append(draw_svg_text(left - COLUMN_GAP, 30, query_label, "strong", "end"))
        width, largest = measure_strip(len(query)), columns[0].largest
        if len(columns) == 1:
            largest = find_largest(query)
        parts.append(draw_signed_image(query[None], largest, left, 18, width, KEY_ROW - STRIP_GAP))
        top = 64.0
    else:
        parts.append(draw_svg_text(0, 10, f"query: {query_label}", "strong"))
        top = 40.0
    for index, key in enumerate(keys):
        y = top + KEY_ROW * (index + 0.7)
        parts.append(draw_svg_text(left - COLUMN_GAP, y, key, "", "end"))
    x = left
    for column in columns:
        parts += draw_vector_column(column, x, top)
        x += column.width + COLUMN_GAP
    for label, values in terms:
        x += max(MIN_TERM_WIDTH, measure_label(label, SMALL_SIZE))
        parts.append(draw_svg_text(x, top - 8, label, "small", "end"))
        for index, value in enumerate(values):
            css_class = "small" if math.isnan(value) else ""
            y = top + KEY_ROW * (index + 0.7)
            parts.append(draw_svg_text(x, y, format_number(value), css_class, "end"))
        x += COLUMN_GAP
    parts += draw_weight_column(weights, x, top)
    width = x + WEIGHT_NUMBER_WIDTH + WEIGHT_BAR_WIDTH
    y = top + KEY_ROW * len(keys) + 16
    names = ["vectors", "products" if columns[-1].label == PRODUCTS_LABEL else CONTRIBUTIONS_LABEL]
    for name, column in zip(names[-len(columns) :], columns, strict=True):
        parts.append(draw_signed_legend(0, y, name, column.largest))
        y += 20
    best = sorted(range(len(keys)), key=lambda index: -weights[index])
    description = [f"{query_label} → {keys[i]} {format_weight(weights[i])}" for i in best[:10]]
    return SvgDrawing(width, y, "\n".join(parts), join_descriptions(description))


def draw_vector_column(column: VectorColumn, x: float, top: float) -> list[str]:
    """Draw the heading and a strip for each key: one image of all keys, with gaps drawn over it."""
    size, elements = column.vectors.shape
    width = measure_strip(elements)
    gaps = "".join(
        f"M{format_pixels(x)} {format_pixels(top + KEY_ROW * row)}h{format_pixels(width)}"
        for row in range(size + 1)
    )
    return [
        draw_svg_text(x, top - 8, column.label, "small"),
        draw_signed_image(column.vectors, column.largest, x, top, width, KEY_ROW * size),
        f'<path class="gap" stroke-width="{STRIP_GAP}" d="{gaps}"/>',
    ]


def draw_weight_column(weights: Sequence[float], x: float, top: float) -> list[str]:
    """Draw the number and the bar of every weight; a bar of full width is the weight 1."""
    left = x + WEIGHT_NUMBER_WIDTH
    parts = [draw_svg_text(left - 8, top - 8, "weight", "small", "end")]
    for index, weight in enumerate(weights):
        y = top + KEY_ROW * index
        parts.append(draw_svg_text(left - 8, y + KEY_ROW * 0.7, format_weight(weight), "", "end"))
        if weight > 0:
            width = max(min(weight, 1) * WEIGHT_BAR_WIDTH, MIN_BAR_WIDTH)
            parts.append(
                f'<rect class="bar" x="{format_pixels(left)}" y="{format_pixels(y + 4)}" '
                f'width="{width:.2f}" height="{KEY_ROW - 8}"/>'
            )
    return parts
