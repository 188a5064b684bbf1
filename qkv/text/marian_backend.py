"""Marian: SentencePiece cuts, one model a side, and a vocabulary of their own numbers the pieces.

The one family that runs SentencePiece itself: pieces are looked up by name, and one that this side does not
know may be the other's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from sentencepiece import SentencePieceProcessor

from qkv.text.backend import Row, Text, check_language, check_text
from qkv.text.encoding import Encoding

SPACE = "▁"
CODE = re.compile(r">>.*?<<", re.DOTALL)
BYTE = re.compile(r"<0x[0-9A-F]{2}>")


@dataclass(frozen=True, kw_only=True)
class Side:
    """One language: what cuts its text, and the ids of the pieces."""

    pieces: SentencePieceProcessor
    vocabulary: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Marian:
    """A Core of two SentencePiece models."""

    source: Side
    target: Side
    marks: dict[str, bool]  # tokens that are matched whole where they are typed, and whether they are special
    unk: str
    eos: str
    joint: ClassVar[str] = ""

    @classmethod
    def build(
        cls,
        models: Sequence[bytes],
        vocabularies: Sequence[dict[str, int]],  # one for both sides, or one each
        marks: dict[str, bool],
        names: Mapping[str, str],
    ) -> Marian:
        for vocabulary in vocabularies:
            if names["unk"] not in vocabulary:
                raise ValueError(f"no {names['unk']}, expected a token for what is unknown")
            for mark in marks:
                vocabulary.setdefault(mark, len(vocabulary))
        source, target = (
            Side(pieces=SentencePieceProcessor(model_proto=model), vocabulary=vocabulary)
            for model, vocabulary in zip(models, [*vocabularies, *vocabularies][:2], strict=True)
        )
        return cls(source=source, target=target, marks=marks, unk=names["unk"], eos=names["eos"])

    @cached_property
    def languages(self) -> dict[str, int]:
        """Codes of target languages, which are put in front of a source: `fra` for `>>fra<<`."""
        return {
            token[2:-2]: number
            for token, number in self.source.vocabulary.items()
            if CODE.fullmatch(token) and len(token) > 4
        }

    @cached_property
    def tokens(self) -> dict[int, str]:
        return {number: token for token, number in self.target.vocabulary.items()}

    @cached_property
    def _typed(self) -> re.Pattern[str]:
        longest = sorted(self.marks, key=len, reverse=True)
        return re.compile("(" + "|".join(map(re.escape, longest)) + ")")

    def encode(
        self, rows: Sequence[Row], *, special: bool = True, target: bool = False, language: str | None = None
    ) -> list[Encoding]:
        side = self.target if target else self.source
        if language is not None:
            language = language.removeprefix(">>").removesuffix("<<")
            check_language(language, self.languages)
        front = [self.languages[language]] if language and special else []
        back = [side.vocabulary[self.eos]] if special else []
        return [self._row(row, side, front, back) for row in rows]

    def ids(
        self, rows: Sequence[Row], *, special: bool = True, target: bool = False, language: str | None = None
    ) -> list[list[int]]:
        return [one.ids for one in self.encode(rows, special=special, target=target, language=language)]

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        # Where both sides share a vocabulary, Hugging Face joins pieces by the source's model.
        side = self.source if self.source.vocabulary is self.target.vocabulary else self.target
        text, held = "", []
        for token in (self.tokens[number] for number in ids):
            if not self.marks.get(token, False):
                held.append(token)
            elif special:
                text += side.pieces.decode_pieces(held) + token + " "
                held = []
        text += side.pieces.decode_pieces(held)
        return text.replace(SPACE, " ").strip()

    def token(self, number: int) -> str | None:
        return self.tokens.get(number)

    def id(self, token: str) -> int | None:
        return self.source.vocabulary.get(token)

    def special(self) -> dict[str, int]:
        return {mark: self.source.vocabulary[mark] for mark, special in self.marks.items() if special}

    def json(self) -> bytes | None:
        return None

    def __len__(self) -> int:
        return len(self.source.vocabulary)

    def _row(self, row: Row, side: Side, front: list[int], back: list[int]) -> Encoding:
        check_text(*row)
        found = Encoding([], [], [], [], [], [])

        def put(number: int, offsets: tuple[int, int], sequence: int | None, word: int | None) -> None:
            found.ids.append(number)
            found.offsets.append(offsets)
            found.types.append(0)
            found.special.append(sequence is None)
            found.sequence.append(sequence)
            found.words.append(word)

        for number in front:
            put(number, (0, 0), None, None)
        for sequence, text in enumerate(row):
            for piece, offsets, word in self._words(text, side):
                unknown = side.vocabulary[self.unk]
                put(side.vocabulary.get(piece, unknown), offsets, sequence, word)
        for number in back:
            put(number, (0, 0), None, None)
        return found

    def _words(self, text: Text | None, side: Side) -> Iterator[tuple[str, tuple[int, int], int]]:
        """The pieces of a text, or of words one by one, with the number of the word each is in."""
        if isinstance(text, list):
            for word, part in enumerate(text):
                for piece, offsets in self._cut(part, side):
                    yield piece, offsets, word
            return
        word = -1
        for piece, offsets in self._cut(text or "", side):
            word += word < 0 or piece.startswith(SPACE) or piece in self.marks
            yield piece, offsets, word

    def _cut(self, text: str, side: Side) -> Iterator[tuple[str, tuple[int, int]]]:
        start = 0
        for part in self._typed.split(text):
            place, start = start, start + len(part)
            if part in self.marks:
                yield part, (place, start)
            elif part:
                if code := CODE.match(part):
                    yield code[0], (place, place + code.end())
                    place += code.end()
                yield from pieces_of(text[place:start], place, side.pieces)


def pieces_of(text: str, place: int, model: SentencePieceProcessor) -> Iterator[tuple[str, tuple[int, int]]]:
    """The pieces of a text that stands at this place of a longer one; offsets leave out the spaces around."""
    _, origin = model.normalize(text, with_offsets=True)  # where each character of the normal form is from
    start = end = 0
    for piece in model.encode(text, out_type=str):
        if not BYTE.fullmatch(piece) or not model.is_byte(model.piece_to_id(piece)):
            start, end = end, end + len(piece)
        elif int(piece[3:5], 16) & 0xC0 != 0x80:  # the first byte of a character; the others share its place
            start, end = end, end + 1
        here, there = origin[start], origin[end]
        if bare := text[here:there].strip():
            here = text.index(bare, here)
            there = here + len(bare)
        yield piece, (place + here, place + there)
