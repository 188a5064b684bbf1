"""Alignments as one self-contained HTML page without external resources.

Hovering over a word, or focusing it with Tab, highlights the words it is aligned to: see page.html."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from qkv.pictures.attention import build_alignment_matrix, describe_alignment_layers
from qkv.pictures.drawing.svg import escape_xml, format_svg_element
from qkv.pictures.views.matrix import MATRIX_STYLE, draw_legend, draw_matrix
from qkv.tasks.alignment import Alignment, TextSpan


def render_html(title: str, alignments: Sequence[Alignment], target_name: str = "target") -> str:
    """Return the text of an HTML file with both texts and the matrix of every alignment."""
    html = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    sections = "\n".join(
        f"<section>\n{render_alignment_html(alignment, target_name)}\n</section>"
        for alignment in alignments
    )
    contents = {
        "style": MATRIX_STYLE,
        "title": escape_xml(title),
        "layers": escape_xml(describe_alignment_layers(alignments)),
        "legend": format_svg_element(draw_legend(), "Legend", "weights"),
        "pairs": sections,
    }
    for name, content in contents.items():
        html = html.replace(f"<!-- {name} -->", content)
    return html


def render_alignment_html(alignment: Alignment, target_name: str) -> str:
    """Return both texts, a status line for the highlighted word, the SVG matrix and the weights."""
    weights = json.dumps([[round(weight, 4) for weight in row] for row in alignment.weights])
    drawing = draw_matrix(build_alignment_matrix(alignment, target_name))
    svg = format_svg_element(drawing, "Attention weights between the words", "weights")
    return "\n".join(
        [
            f'<p class="words source" dir="auto">{render_words_html(alignment.source)}</p>',
            f'<p class="words target" dir="auto">{render_words_html(alignment.target)}</p>',
            '<p class="status" aria-live="polite"></p>',
            f'<figure tabindex="0" aria-label="Attention matrix">{svg}</figure>',
            f'<script type="application/json">{weights}</script>',
        ]
    )


def render_words_html(spans: Sequence[TextSpan]) -> str:
    """Return one element per word, with a space where the text has whitespace between words."""
    previous_ends = [spans[0].start, *(span.end for span in spans)] if spans else []
    gaps = [
        " " if span.start > end else "" for span, end in zip(spans, previous_ends, strict=False)
    ]
    words = [f'<span role="button" tabindex="0">{escape_xml(span.text)}</span>' for span in spans]
    return "".join(gap + word for gap, word in zip(gaps, words, strict=True))
