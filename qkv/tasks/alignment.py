"""Alignment: how much each piece of a written text looked at each piece of its source, by token or by word.

Knows no network."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, takewhile
from typing import TypeAlias

from qkv.tasks.base import trimmed
from qkv.text import Encoding, Tokenizer

JOINTS = "'’‐-.,·_"  # between letters they are part of a word: it's, on-line, 3.5
ALONE = re.compile(  # Thai, Lao, Burmese, Khmer, Japanese and Chinese put no blanks between words
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
WORD = re.compile(r"a+(?:'a+)*|\S")  # of kinds of letters, below

Span: TypeAlias = tuple[int, int]


@dataclass(frozen=True)
class Piece:
    """A token or a word: its text, from `start` up to `end`. A token of no characters, such as the end of a
    text, is called by its name."""

    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Alignment:
    """A row of `weights` for each piece of `target`: how much it looked at each of `source`, in all 1.
    Offsets are those of your own string and of the written text."""

    source: tuple[Piece, ...]
    target: tuple[Piece, ...]
    weights: tuple[tuple[float, ...], ...]

    def words(self) -> Alignment:
        """The same of whole words: the sum over the pieces of a source word, the mean over those of a target
        word. Tokens of no characters are left out: what a row lacks to 1 went to them."""
        columns, rows = words_of(self.source), words_of(self.target)
        weights = tuple(
            tuple(sum(self.weights[t][s] for t in row for s in column) / len(row) for _, column in columns)
            for _, row in rows
        )
        return Alignment(tuple(word for word, _ in columns), tuple(word for word, _ in rows), weights)

    def best(self) -> tuple[int | None, ...]:
        """The place of the piece of the source that each of the target looked at most."""
        return tuple(max(range(len(row)), key=row.__getitem__, default=None) for row in self.weights)

    def moved(self, by: int) -> Alignment:
        """The same where the written text begins so many characters later."""
        later = tuple(replace(one, start=one.start + by, end=one.end + by) for one in self.target)
        return replace(self, target=later)


def words_of(pieces: Sequence[Piece]) -> list[tuple[Piece, list[int]]]:
    """Words, and the places of the pieces that they are made of. A piece belongs where it begins; scripts
    without blanks have no other words than their pieces."""
    held = [place for place, piece in enumerate(pieces) if piece.start < piece.end]
    first = min((pieces[place].start for place in held), default=0)
    letters = [" "] * (max((pieces[place].end for place in held), default=0) - first)
    for piece in (pieces[place] for place in held):
        letters[piece.start - first : piece.end - first] = piece.text
    text = "".join(letters)
    begins = {found.start() for found in WORD.finditer("".join(map(kind, text)))}
    owner = [*accumulate(place in begins for place in range(len(text)))]
    groups: dict[int, list[int]] = {}
    for place in held:
        groups.setdefault(owner[pieces[place].start - first], []).append(place)
    words = []
    for group in groups.values():
        start, end = pieces[group[0]].start, max(pieces[place].end for place in group)
        words.append((Piece(text[start - first : end - first], start, end), group))
    return words


def kind(letter: str) -> str:
    """`a`: goes with its neighbours; `'`: joins two that do; `.`: stands alone; or a blank."""
    if letter.isspace():
        return " "
    if letter in JOINTS:
        return "'"
    return "." if ALONE.match(letter) or unicodedata.category(letter)[0] == "P" else "a"


def read_pieces(
    tokenizer: Tokenizer, tokens: Encoding, given: str, at: int, before: str
) -> tuple[Piece, ...]:
    """The tokens that were read, on what was given: their text begins at that place of it, and something that
    was not given stood before it."""
    codes = {number: code for code, number in tokenizer.languages.items()}
    skip = len(before)
    spans: list[Span | None] = []
    names: list[str] = []
    for number, (start, end), owner in zip(tokens.ids, tokens.offsets, tokens.sequence, strict=True):
        if owner is None:
            spans.append(None)
            names.append(codes.get(number) or tokenizer.token(number))
        else:
            spans.append(None if end <= skip > 0 else (at + max(start - skip, 0), at + end - skip))
            names.append(before[start:end])
    return laid(given, spans, names)


def written_pieces(tokenizer: Tokenizer, ids: Sequence[int], text: str) -> tuple[Piece, ...]:
    """The tokens that were written, on their text: each has the characters that it adds to those before."""
    special = {*tokenizer.roles.values(), *tokenizer.extras.values()}
    so_far = (tokenizer.decode(ids[: count + 1]).lstrip() for count in range(len(ids)))
    ends = accumulate((alike(one, text) for one in so_far), max, initial=0)
    spans = [None if one in special else span for one, span in zip(ids, pairwise(ends), strict=True)]
    return laid(text, spans, [*map(tokenizer.token, ids)])


def alike(one: str, other: str) -> int:
    """How many characters they have in common at the beginning."""
    return sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(one, other, strict=False)))


def laid(text: str, spans: Sequence[Span | None], names: Sequence[str]) -> tuple[Piece, ...]:
    """Tokens on their text; None: of no characters. Blanks, and bytes that are not yet a character, go with
    what follows."""
    found: list[Piece] = []
    place, after = max((span[1] for span in spans if span), default=0), None
    for span, name in zip(reversed(spans), reversed(names), strict=True):
        if span is None:
            after = None
        elif (bare := trimmed(text, *span))[0] < bare[1]:
            after = bare
        found.append(Piece(text[slice(*after)], *after) if after else Piece(name, place, place))
        place = found[-1].start
    return tuple(reversed(found))
