"""A matrix of attention weights as SVG, with colors for light and dark pages.

A row is a word or token that attends, a column one that is attended to; the color of a cell, one hue
from light to dark, is the weight between the two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from qkv.pictures.drawing.svg import (
    PAGE_MARGIN,
    SYSTEM_FONTS,
    SvgDrawing,
    escape_xml,
    estimate_text_width,
    format_svg_element,
)

CELL_SIZE = 32  # pixels, including the gap around a cell
CELL_GAP = 2
AXIS_HEIGHT = 26  # of the name of an axis
MAX_WORD_CHARACTERS = 24
HEADING_SLANT = 0.71  # height and width of a heading at 45 degrees, as a fraction of its length
LEGEND_WEIGHTS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
LEGEND_HEIGHT = 56
LEGEND_WIDTH = 470  # of the words and the cells

MATRIX_STYLE = f"""
  .weights {{ font: 14px {SYSTEM_FONTS} }}
  .weights text {{ fill: #3d444d }} .weights .title {{ fill: #1f2328; font-size: 16px; font-weight: 600 }}
  .weights .axis, .weights .legend {{ fill: #57606a; font-size: 12px }} .weights .axis {{ font-weight: 600 }}
  .weights .page {{ fill: #ffffff }} .weights .empty {{ fill: #f1f3f5 }} .weights .full {{ fill: #0b5394 }}
  .weights .number {{ font-size: 11px; fill: #0d2538 }} .weights .number.over {{ fill: #ffffff }}
  .weights .best {{ fill: none; stroke: #08305a; stroke-width: 1.5 }}
  .weights .here {{ fill: #1f2328; font-weight: 600 }}
  @media (prefers-color-scheme: dark) {{
    .weights text {{ fill: #b3bcc6 }} .weights .title {{ fill: #e6edf3 }}
    .weights .axis, .weights .legend {{ fill: #9aa4af }}
    .weights .page {{ fill: #0d1117 }} .weights .empty {{ fill: #181d24 }} .weights .full {{ fill: #58a6e8 }}
    .weights .number {{ fill: #eef5fb }} .weights .number.over {{ fill: #06121d }}
    .weights .best {{ stroke: #9ccbf5 }}
    .weights .here {{ fill: #ffffff }}
  }}
"""


class WeightMatrix(NamedTuple):
    """Weights (rows, columns) with the names of rows and columns and of both axes; a title if there are
    several."""

    weights: Sequence[Sequence[float]]
    rows: Sequence[str]
    columns: Sequence[str]
    row_axis: str
    column_axis: str
    title: str = ""


def render_matrices_svg(title: str, subtitle: str, matrices: Sequence[WeightMatrix]) -> str:
    """Return the text of an SVG file: a title, one matrix below the other, and a legend."""
    heading = f'<text class="title" x="{PAGE_MARGIN}" y="{PAGE_MARGIN + 14}">'
    parts = [f"{heading}{escape_xml(title)}</text>"]
    widths = [estimate_text_width(title, 15), float(LEGEND_WIDTH)]
    top = PAGE_MARGIN + 34.0
    if subtitle:
        parts.append(f'<text x="{PAGE_MARGIN}" y="{top + 4:.0f}">{escape_xml(subtitle)}</text>')
        widths.append(estimate_text_width(subtitle))
        top += 24
    drawings = [draw_matrix(matrix) for matrix in matrices]
    for matrix, drawing in zip(matrices, drawings, strict=True):
        if matrix.title:
            parts.append(
                f'<text class="axis" x="{PAGE_MARGIN}" y="{top + 6:.0f}">{escape_xml(matrix.title)}</text>'
            )
            widths.append(estimate_text_width(matrix.title))
            top += 24
        parts.append(f'<g transform="translate({PAGE_MARGIN} {top:.0f})">\n{drawing.body}\n</g>')
        top += drawing.height + PAGE_MARGIN
        widths.append(drawing.width)
    parts.append(f'<g transform="translate({PAGE_MARGIN} {top:.0f})">\n{draw_legend().body}\n</g>')
    width = max(widths) + 2 * PAGE_MARGIN
    height = top + LEGEND_HEIGHT
    page = f'<rect class="page" width="{width:.0f}" height="{height:.0f}" rx="8"/>'
    body = "\n".join([f"<style>{MATRIX_STYLE}</style>", page, *parts])
    description = "; ".join(filter(None, (subtitle, *(item.description for item in drawings))))
    return format_svg_element(SvgDrawing(width, height, body, description), title, "weights") + "\n"


def draw_matrix(matrix: WeightMatrix) -> SvgDrawing:
    """Draw slanted column headings, row names on the left, one cell per pair, and both axes."""
    row_names = [shorten_word(name) for name in matrix.rows]
    column_names = [shorten_word(name) for name in matrix.columns]
    left = AXIS_HEIGHT + max(map(estimate_text_width, row_names), default=0) + 12
    headings_height = max(map(estimate_text_width, column_names), default=0) * HEADING_SLANT
    top = AXIS_HEIGHT + headings_height + 16
    right = left + CELL_SIZE * len(column_names)
    parts = draw_axes(matrix, left, top)
    best_links: list[str] = []
    for column, name in enumerate(column_names):
        x = left + CELL_SIZE * (column + 0.5)
        right = max(right, x + estimate_text_width(name) * HEADING_SLANT + 4)
        transform = f"translate({x:.1f} {top - 8:.1f}) rotate(-45)"
        parts.append(
            f'<text transform="{transform}" data-column="{column}">{escape_xml(name)}</text>'
        )
    for row, (name, weights) in enumerate(zip(row_names, matrix.weights, strict=True)):
        y = top + CELL_SIZE * row
        position = f'x="{left - 12:.1f}" y="{y + CELL_SIZE / 2 + 5:.1f}" text-anchor="end"'
        parts.append(f'<text {position} data-row="{row}">{escape_xml(name)}</text>')
        links = [
            f"{matrix.rows[row]} ← {column_name} {weight:.2f}"
            for column_name, weight in zip(matrix.columns, weights, strict=True)
        ]
        best = max(range(len(weights)), key=weights.__getitem__, default=None)
        if best is not None:
            best_links.append(links[best])
        for column, weight in enumerate(weights):
            cell = draw_cell(left + CELL_SIZE * column, y, weight, column == best)
            position = f'data-row="{row}" data-column="{column}"'
            parts.append(f"<g {position}><title>{escape_xml(links[column])}</title>{cell}</g>")
    height = top + CELL_SIZE * len(row_names)
    return SvgDrawing(right, height, "\n".join(parts), "; ".join(best_links))


def draw_axes(matrix: WeightMatrix, left: float, top: float) -> list[str]:
    """Draw the names of the axes, from the first column and from the first row."""
    columns, rows = escape_xml(matrix.column_axis), escape_xml(matrix.row_axis)
    position = f"translate(14 {top + CELL_SIZE * len(matrix.rows) / 2:.1f}) rotate(-90)"
    center = left + CELL_SIZE * len(matrix.columns) / 2
    return [
        f'<text class="axis" x="{center:.1f}" y="12" text-anchor="middle">{columns} →</text>',
        f'<text class="axis" transform="{position}" text-anchor="middle">← {rows}</text>',
    ]


def draw_cell(x: float, y: float, weight: float, is_best: bool) -> str:
    """Draw a square with the weight as its opacity; weights of at least 0.1 are also printed."""
    size = CELL_SIZE - CELL_GAP
    position = f'x="{x + CELL_GAP / 2:.1f}" y="{y + CELL_GAP / 2:.1f}"'
    box = f'{position} width="{size}" height="{size}" rx="4"'
    parts = [f'<rect class="empty" {box}/>']
    if weight >= 0.005:
        parts.append(f'<rect class="full" {box} fill-opacity="{min(weight, 1):.2f}"/>')
    if is_best:
        parts.append(f'<rect class="best" {box}/>')
    if weight >= 0.095:
        over = " over" if weight > 0.7 else ""
        center = f'x="{x + CELL_SIZE / 2:.1f}" y="{y + CELL_SIZE / 2 + 4:.1f}" text-anchor="middle"'
        number = f'<text class="number{over}" {center}>{weight:.2f}</text>'
        parts.append(number.replace(">0.", ">."))
    return "".join(parts)


def draw_legend() -> SvgDrawing:
    """Draw one cell per weight of the scale, and the outline of the largest weight of a row."""
    parts = ['<text class="legend" x="0" y="20">attention weight</text>']
    x = 112.0
    for weight in LEGEND_WEIGHTS:
        parts.append(draw_cell(x, 0, weight, is_best=False))
        if weight < 0.095:
            center = f'x="{x + CELL_SIZE / 2:.1f}" y="{CELL_SIZE / 2 + 4:.1f}"'
            parts.append(f'<text class="number" {center} text-anchor="middle">0</text>')
        x += CELL_SIZE
    x += 20
    parts.append(draw_cell(x, 0, 0.0, is_best=True))
    parts.append(
        f'<text class="legend" x="{x + CELL_SIZE + 6:.0f}" y="20">largest of its row</text>'
    )
    return SvgDrawing(LEGEND_WIDTH, CELL_SIZE, "\n".join(parts), "scale of the attention weights")


def shorten_word(word: str) -> str:
    return word if len(word) <= MAX_WORD_CHARACTERS else word[: MAX_WORD_CHARACTERS - 1] + "…"
