"""Page: weights between words as one HTML file that needs no other, and asks nobody for anything.

Words that are pointed at, or reached with Tab, light those that they are aligned to: page.html says how."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from qkv.tasks.alignment import Alignment, Piece
from qkv.view.pictures import STYLE, drawn, plain, svg


def page(title: str, alignments: Sequence[Alignment]) -> str:
    """A file's text: each pair of texts, and the matrix of their words."""
    text = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    pairs = "\n".join(f"<section>\n{pair(one)}\n</section>" for one in alignments)
    for name, part in {"style": STYLE, "title": plain(title), "pairs": pairs}.items():
        text = text.replace(f"<!-- {name} -->", part)
    return text


def pair(matrix: Alignment) -> str:
    """Both texts, a line that tells what is lit, the picture, and the numbers."""
    numbers = json.dumps([[round(weight, 4) for weight in row] for row in matrix.weights])
    shown = svg(drawn(matrix), "What each word looked at")
    return "\n".join(
        [
            f'<p class="words source" dir="auto">{running(matrix.source)}</p>',
            f'<p class="words target" dir="auto">{running(matrix.target)}</p>',
            '<p class="told" aria-live="polite"></p>',
            f'<figure tabindex="0" aria-label="The matrix">{shown}</figure>',
            f'<script type="application/json">{numbers}</script>',
        ]
    )


def running(pieces: Sequence[Piece]) -> str:
    """Words in a line, with blanks where there are some."""
    ends = [pieces[0].start, *(piece.end for piece in pieces)] if pieces else []
    blanks = [" " if piece.start > end else "" for piece, end in zip(pieces, ends, strict=False)]
    words = [f'<span role="button" tabindex="0">{plain(piece.text)}</span>' for piece in pieces]
    return "".join(blank + word for blank, word in zip(blanks, words, strict=True))
