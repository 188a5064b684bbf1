"""Picture: weights between words as an SVG, in the colours of a light page or a dark one.

A row is a word of the target, a column one of the source; the stronger a cell, the more the row's word looked
at the column's."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from qkv.tasks.alignment import Alignment

CELL, GAP, EDGE = 32, 2, 24  # a cell with the gap around it; the margin of the page
LETTER = 8.6  # how wide a letter is, at most about
LONGEST = 24  # letters of a word that are shown
SLANT = 0.71  # of a heading's length: so far it goes up, and to the right
FORBIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]"
)  # in XML, and controls

STYLE = """
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


class Drawn(NamedTuple):
    """A matrix in SVG, as large as it is, and in words."""

    width: float
    height: float
    body: str
    words: str


def picture(title: str, alignments: Sequence[Alignment]) -> str:
    """A file's text: one matrix below the other, under a title."""
    parts, top = [f'<text class="title" x="{EDGE}" y="{EDGE + 14}">{plain(title)}</text>'], EDGE + 30.0
    every = [drawn(one) for one in alignments]
    for one in every:
        parts.append(f'<g transform="translate({EDGE} {top:.0f})">\n{one.body}\n</g>')
        top += one.height + EDGE
    width = max([long(title) * 1.3, *(one.width for one in every)]) + 2 * EDGE
    page = f'<rect class="page" width="{width:.0f}" height="{top:.0f}" rx="8"/>'
    body = "\n".join([f"<style>{STYLE}</style>", page, *parts])
    return svg(Drawn(width, top, body, "; ".join(one.words for one in every)), title) + "\n"


def svg(shown: Drawn, title: str) -> str:
    """A drawing as an element, which says in words what it shows."""
    width, height = f"{shown.width:.0f}", f"{shown.height:.0f}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="weights" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">\n<title>{plain(title)}</title>\n'
        f"<desc>{plain(shown.words)}</desc>\n{shown.body}\n</svg>"
    )


def drawn(matrix: Alignment) -> Drawn:
    """Headings that go up to the right, words on the left, and a cell for each two words."""
    names, heads = ([short(piece.text) for piece in pieces] for pieces in (matrix.target, matrix.source))
    left, top = max(map(long, names), default=0) + 12, max(map(long, heads), default=0) * SLANT + 16
    parts, words, right = [], [], left + CELL * len(heads)
    for column, head in enumerate(heads):
        x = left + CELL * (column + 0.5)
        right = max(right, x + long(head) * SLANT + 4)
        at = f'transform="translate({x:.1f} {top - 8:.1f}) rotate(-45)" data-column="{column}"'
        parts.append(f"<text {at}>{plain(head)}</text>")
    for row, (name, weights, best) in enumerate(zip(names, matrix.weights, matrix.best(), strict=True)):
        y = top + CELL * row
        at = f'x="{left - 12:.1f}" y="{y + CELL / 2 + 5:.1f}" text-anchor="end" data-row="{row}"'
        parts.append(f"<text {at}>{plain(name)}</text>")
        told = [
            f"{matrix.target[row].text} ← {piece.text} {weight:.2f}"
            for piece, weight in zip(matrix.source, weights, strict=True)
        ]
        words += [] if best is None else [told[best]]
        for column, weight in enumerate(weights):
            inside = cell(left + CELL * column, y, weight, column == best)
            at = f'data-row="{row}" data-column="{column}"'
            parts.append(f"<g {at}><title>{plain(told[column])}</title>{inside}</g>")
    return Drawn(right, top + CELL * len(names), "\n".join(parts), "; ".join(words))


def cell(x: float, y: float, weight: float, best: bool) -> str:
    """A square as strong as the weight, which is written in it where it is not small."""
    at = f'x="{x + GAP / 2:.1f}" y="{y + GAP / 2:.1f}" width="{CELL - GAP}" height="{CELL - GAP}" rx="4"'
    parts = [f'<rect class="empty" {at}/>']
    if weight >= 0.005:
        parts.append(f'<rect class="full" {at} fill-opacity="{min(weight, 1):.2f}"/>')
    if best:
        parts.append(f'<rect class="best" {at}/>')
    if weight >= 0.095:
        over = " over" if weight > 0.75 else ""
        middle = f'x="{x + CELL / 2:.1f}" y="{y + CELL / 2 + 4:.1f}" text-anchor="middle"'
        parts.append(f'<text class="number{over}" {middle}>{weight:.2f}</text>'.replace(">0.", ">."))
    return "".join(parts)


def plain(text: str) -> str:
    """A text for XML and HTML: escaped, and without the characters that they forbid."""
    return escape(FORBIDDEN.sub("�", text))


def short(word: str) -> str:
    return word if len(word) <= LONGEST else word[: LONGEST - 1] + "…"


def long(text: str) -> float:
    """How wide a text is shown, about."""
    return LETTER * sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)
