"""Encoders of running text: records become rows of ids, by field. What is asked of a text is in `answers`.

Each holds the tokenizer's folder: workers open their own. What is longer than a model reads is refused with
its place, cut, or left whole for a source to split, as `long` says."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from string import Formatter
from typing import Any, ClassVar

from qkv.data.read.record import Record, short
from qkv.text import Encoding, Tokenizer
from qkv.text.sentences import sentences

Row = dict[str, list[int]]
LONG = ("refuse", "cut", "split")
LENGTHS = 2**31  # a field of lengths


@dataclass(frozen=True, kw_only=True)
class Encoder(ABC):
    tokenizer: str  # its folder
    length: int = 0  # tokens that a row may have; 0: any number
    long: str = "refuse"

    splits: ClassVar[bool] = False  # whether what is too long may become several rows

    def __post_init__(self) -> None:
        known = LONG if self.splits else LONG[:2]
        if self.long not in known:
            advice = "" if self.splits or self.long not in LONG else ": what is asked is asked of a whole row"
            raise ValueError(f"data.long {self.long!r}, expected one of {', '.join(known)}{advice}")

    @cached_property
    def text(self) -> Tokenizer:
        return Tokenizer.load(self.tokenizer)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "text"}

    def fields(self) -> Mapping[str, int]:
        """The number of different ids of each field."""
        return {"tokens": len(self.text)}

    @abstractmethod
    def __call__(self, records: Sequence[Record]) -> list[Row]:
        """A row for each record."""

    def fit(self, encoding: Encoding, record: Record, room: int | None = None) -> Encoding:
        """The encoding, no longer than a row, or than what is left of one."""
        room = self.length if room is None else room
        if self.fits(len(encoding), room):
            return encoding
        if self.long == "refuse":
            ways = " or ".join(f'data.long = "{way}"' for way in (LONG[1:] if self.splits else LONG[1:2]))
            raise ValueError(
                f"{record.place}: {len(encoding)} tokens, expected at most {room}; "
                f"{ways} makes them fit, a larger data.length reads them"
            )
        return encoding.cut(room)

    def fits(self, tokens: int, room: int) -> bool:
        return not self.length or tokens <= room or self.long == "split"

    def fitted(
        self, texts: Sequence[str], records: Sequence[Record], room: int | None = None, **how: Any
    ) -> list[list[int]]:
        """The ids of texts, no longer than a row; one that is too long is encoded once more, to be cut."""
        room = self.length if room is None else room
        return [
            ids if self.fits(len(ids), room) else self.fit(self.text.encode(text, **how), record, room).ids
            for ids, text, record in zip(self.text.encode_ids(texts, **how), texts, records, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class Texts(Encoder):
    """Running text: nothing around it, the end token after every record unless they are one text.

    With `words` the field `starts` tells where words begin. `around` tokens will be put around each row."""

    splits: ClassVar[bool] = True
    ends: bool = True
    words: bool = False
    around: int = 0

    def fields(self) -> Mapping[str, int]:
        return {"tokens": len(self.text)} | ({"starts": 2} if self.words else {})

    def __call__(self, records: Sequence[Record]) -> list[Row]:
        text, texts = self.text, [record.text("text") for record in records]
        end = end_of(text) if self.ends else []
        room = self.length - self.around
        if not self.words:
            return [{"tokens": [*row, *end]} for row in self.fitted(texts, records, room, special=False)]
        rows = []
        for encoding, record in zip(text.encode_many(texts, special=False), records, strict=True):
            whole = self.fit(encoding, record, room)
            rows.append({"tokens": [*whole.ids, *end], "starts": [*begins(whole, record), *[1 for _ in end]]})
        return rows


@dataclass(frozen=True, kw_only=True)
class Sentences(Encoder):
    """Documents of sentences: those of a line each, or, in a single line, up to a full stop."""

    splits: ClassVar[bool] = True
    words: bool = False

    def fields(self) -> Mapping[str, int]:
        return {"tokens": len(self.text), "sentences": LENGTHS} | ({"starts": 2} if self.words else {})

    def __call__(self, records: Sequence[Record]) -> list[Row]:
        rows = []
        for record in records:
            lines = [line for line in record.text("text").splitlines() if line.strip()]
            lines = sentences(lines[0]) if len(lines) == 1 else lines
            held = [found for found in self.text.encode_many(lines, special=False) if len(found)]
            row = {"tokens": [i for one in held for i in one.ids], "sentences": [len(one) for one in held]}
            starts = {"starts": [i for one in held for i in begins(one, record)]} if self.words else {}
            rows.append(row | starts)
        return rows


@dataclass(frozen=True, kw_only=True)
class Coded(Encoder):
    """Text under a code: a control code (CTRL) or a language (mBART), which a column names."""

    splits: ClassVar[bool] = True
    column: str = "code"
    ends: bool = True
    around: int = 0  # tokens that will be put around each row

    def fields(self) -> Mapping[str, int]:
        return dict.fromkeys(("tokens", "code"), len(self.text))

    def __call__(self, records: Sequence[Record]) -> list[Row]:
        text, known = self.text, self.text.languages
        end = end_of(text) if self.ends else []
        rows = []
        for record in records:
            name = record.text(self.column)
            code = known.get(name) if known else text.id(name)  # CTRL's own codes are words like others
            if code is None:
                listed = ", ".join(list(known)[:20]) or "the tokens; text.codes makes some"
                raise ValueError(f"{record.place}: {self.column} {short(name)}, expected one of: {listed}")
            whole = text.encode(record.text("text"), special=False)
            whole = self.fit(whole, record, self.length - self.around - len(end))
            rows.append({"tokens": [*whole.ids, *end], "code": [code]})
        return rows


@dataclass(frozen=True, kw_only=True)
class Pairs(Encoder):
    """A source and a target, each out of columns; languages name the codes that stand in front of them.

    A source of "question: {question} context: {context}" is made of two columns."""

    languages: tuple[str | None, str | None] = (None, None)
    source: str = "{source}"
    target: str = "{target}"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("source", "target"):
            try:
                columns(getattr(self, name))
            except ValueError as error:
                raise ValueError(f"objective.{name} {getattr(self, name)!r}: {error}") from None

    def fields(self) -> Mapping[str, int]:
        return {"source": len(self.text), "target": len(self.text)}

    def __call__(self, records: Sequence[Record]) -> list[Row]:
        rows: list[Row] = [{} for _ in records]
        for field, language in zip(("source", "target"), self.languages, strict=True):
            texts = self.sides(records, field)
            found = self.fitted(texts, records, target=field == "target", language=language)
            for row, ids in zip(rows, found, strict=True):
                row[field] = ids
        return rows

    def sides(self, records: Sequence[Record], field: str) -> list[str]:
        """The texts of the sources or of the targets."""
        template = getattr(self, field)
        names = columns(template)
        return [template.format(**texts_of(record, names)) for record in records]


def end_of(text: Tokenizer) -> list[int]:
    """The token that ends a text, if there is one."""
    return [number for number in (text.eos, text.sep) if number is not None][:1]


def begins(encoding: Encoding, record: Record) -> list[int]:
    """1 where a word begins."""
    words = encoding.words
    if any(word is None and not special for word, special in zip(words, encoding.special, strict=True)):
        raise ValueError(
            f"{record.place}: this tokenizer does not tell words apart; whole = false asks for none"
        )
    return [int(i == 0 or words[i] != words[i - 1]) for i in range(len(words))]


def columns(template: str) -> list[str]:
    """The columns that a template names."""
    found = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    if not found or not all(name.isidentifier() for name in found):
        raise ValueError("expected a text with columns in it, such as {source}")
    return found


def texts_of(record: Record, names: Sequence[str]) -> dict[str, str]:
    """Texts by column; of SQuAD's `answers` the first, nothing where there is none."""
    found = {}
    for name in names:
        if name == "answers":
            found[name] = next((answer.text for answer in record.answers()), "")
        else:
            found[name] = record.text(name)
    return found
