"""Alignments as an SVG picture, with colors for light and dark pages.

A row is a word of the target, a column a word of the source; the color of a cell is the attention
weight between the two words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from qkv.tasks.alignment import Alignment

CELL_SIZE = 32  # pixels, including the gap around a cell
CELL_GAP = 2
PAGE_MARGIN = 24
CHARACTER_WIDTH = 8.6  # pixels, an upper estimate
MAX_WORD_CHARACTERS = 24
HEADING_SLANT = 0.71  # height and width of a heading at 45 degrees, as a fraction of its length
INVALID_XML_CHARACTERS = re.compile(  # and control characters
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]"
)

ALIGNMENT_STYLE = """
  .weights { font: 14px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif }
  .weights text { fill: #3d444d } .weights .title { fill: #1f2328; font-size: 16px; font-weight: 600 }
  .weights .page { fill: #ffffff } .weights .empty { fill: #f1f3f5 } .weights .full { fill: #0b5394 }
  .weights .number { font-size: 11px; fill: #0d2538 } .weights .number.over { fill: #ffffff }
  .weights .best { fill: none; stroke: #08305a; stroke-width: 1.5 }
  .weights .here { fill: #1f2328; font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    .weights text { fill: #b3bcc6 } .weights .title { fill: #e6edf3 }
    .weights .page { fill: #0d1117 } .weights .empty { fill: #181d24 } .weights .full { fill: #58a6e8 }
    .weights .number { fill: #eef5fb } .weights .number.over { fill: #06121d }
    .weights .best { stroke: #9ccbf5 }
    .weights .here { fill: #ffffff }
  }
"""


class SvgDrawing(NamedTuple):
    """The SVG body of a drawing, its size in pixels and a description in words."""

    width: float
    height: float
    body: str
    description: str


def render_svg(title: str, alignments: Sequence[Alignment]) -> str:
    """Return the text of an SVG file: a title, and one matrix per alignment."""
    heading = f'<text class="title" x="{PAGE_MARGIN}" y="{PAGE_MARGIN + 14}">'
    parts = [f"{heading}{escape_xml(title)}</text>"]
    top = PAGE_MARGIN + 30.0
    drawings = [draw_alignment(alignment) for alignment in alignments]
    for drawing in drawings:
        parts.append(f'<g transform="translate({PAGE_MARGIN} {top:.0f})">\n{drawing.body}\n</g>')
        top += drawing.height + PAGE_MARGIN
    widths = [estimate_text_width(title) * 1.3, *(drawing.width for drawing in drawings)]
    width = max(widths) + 2 * PAGE_MARGIN
    page = f'<rect class="page" width="{width:.0f}" height="{top:.0f}" rx="8"/>'
    body = "\n".join([f"<style>{ALIGNMENT_STYLE}</style>", page, *parts])
    description = "; ".join(drawing.description for drawing in drawings)
    return format_svg_element(SvgDrawing(width, top, body, description), title) + "\n"


def format_svg_element(drawing: SvgDrawing, title: str) -> str:
    """Return the drawing as an `<svg>` element with a title and a description."""
    width = f"{drawing.width:.0f}"
    height = f"{drawing.height:.0f}"
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" class="weights" '
        f'viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">\n<title>{escape_xml(title)}</title>\n'
        f"<desc>{escape_xml(drawing.description)}</desc>\n{drawing.body}\n</svg>"
    )


def draw_alignment(alignment: Alignment) -> SvgDrawing:
    """Draw slanted column headings, row names on the left and one cell per pair of words."""
    row_names = [shorten_word(span.text) for span in alignment.target]
    column_names = [shorten_word(span.text) for span in alignment.source]
    left = max(map(estimate_text_width, row_names), default=0) + 12
    top = max(map(estimate_text_width, column_names), default=0) * HEADING_SLANT + 16
    right = left + CELL_SIZE * len(column_names)
    parts: list[str] = []
    best_links: list[str] = []
    for column, name in enumerate(column_names):
        x = left + CELL_SIZE * (column + 0.5)
        right = max(right, x + estimate_text_width(name) * HEADING_SLANT + 4)
        transform = f"translate({x:.1f} {top - 8:.1f}) rotate(-45)"
        parts.append(
            f'<text transform="{transform}" data-column="{column}">{escape_xml(name)}</text>'
        )
    for row, (name, weights, best) in enumerate(
        zip(row_names, alignment.weights, alignment.argmax(), strict=True)
    ):
        y = top + CELL_SIZE * row
        position = f'x="{left - 12:.1f}" y="{y + CELL_SIZE / 2 + 5:.1f}" text-anchor="end"'
        parts.append(f'<text {position} data-row="{row}">{escape_xml(name)}</text>')
        links = [
            f"{alignment.target[row].text} ← {span.text} {weight:.2f}"
            for span, weight in zip(alignment.source, weights, strict=True)
        ]
        if best is not None:
            best_links.append(links[best])
        for column, weight in enumerate(weights):
            cell = draw_cell(left + CELL_SIZE * column, y, weight, column == best)
            position = f'data-row="{row}" data-column="{column}"'
            parts.append(f"<g {position}><title>{escape_xml(links[column])}</title>{cell}</g>")
    height = top + CELL_SIZE * len(row_names)
    return SvgDrawing(right, height, "\n".join(parts), "; ".join(best_links))


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
        over = " over" if weight > 0.75 else ""
        center = f'x="{x + CELL_SIZE / 2:.1f}" y="{y + CELL_SIZE / 2 + 4:.1f}" text-anchor="middle"'
        number = f'<text class="number{over}" {center}>{weight:.2f}</text>'
        parts.append(number.replace(">0.", ">."))
    return "".join(parts)


def escape_xml(text: str) -> str:
    """Escape a text for XML and HTML, and replace the characters that XML does not allow."""
    return escape(INVALID_XML_CHARACTERS.sub("�", text))


def shorten_word(word: str) -> str:
    return word if len(word) <= MAX_WORD_CHARACTERS else word[: MAX_WORD_CHARACTERS - 1] + "…"


def estimate_text_width(text: str) -> float:
    """Estimate the width of a text in pixels; East Asian wide characters count twice."""
    columns = (2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)
    return CHARACTER_WIDTH * sum(columns)
