"""Encoders: records become rows of ids, by field. Each holds the tokenizer's folder: workers open their own.

What is longer than a model reads is refused with its place, cut, or split, as `long` says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from qkv.data.record import Record
from qkv.text import Encoding, Tokenizer

Row = dict[str, list[int]]
LONG = ("refuse", "cut", "split")
AWAY = 0  # stored labels are one more than they are; this one asks for nothing


@lru_cache(maxsize=4)
def opened(folder: str) -> Tokenizer:
    return Tokenizer.load(folder)


@dataclass(frozen=True, kw_only=True)
class Encoder:
    tokenizer: str  # its folder
    length: int = 0  # tokens that a row may have; 0: any number
    long: str = "refuse"

    @property
    def text(self) -> Tokenizer:
        return opened(self.tokenizer)

    def fields(self) -> Mapping[str, int]:
        """The number of different ids of each field."""
        return {"tokens": len(self.text)}

    def fit(self, encoding: Encoding, record: Record) -> Encoding:
        """The encoding, no longer than a row."""
        if not self.length or len(encoding) <= self.length:
            return encoding
        if self.long == "refuse":
            raise ValueError(
                f"{record.place}: {len(encoding)} tokens, expected at most {self.length}; "
                'data.long = "cut" cuts them, a larger data.length reads them'
            )
        return encoding.cut(self.length)


@dataclass(frozen=True, kw_only=True)
class Texts(Encoder):
    """Running text: no tokens around it, the end token after every record."""

    def __call__(self, records: Sequence[Record]) -> list[Row]:
        text = self.text
        ids = text.encode_ids([record.text("text") for record in records], special=False)
        end = [number for number in (text.eos, text.sep) if number is not None][:1]
        return [{"tokens": [*row, *end]} for row in ids]


@dataclass(frozen=True, kw_only=True)
class Stream(Encoder):
    """One running text: nothing stands between the records but what did in the file."""

    def __call__(self, records: Sequence[Record]) -> list[Row]:
        ids = self.text.encode_ids([record.text("text") for record in records], special=False)
        return [{"tokens": row} for row in ids]


@dataclass(frozen=True, kw_only=True)
class Pairs(Encoder):
    """A source and a target; languages name the codes that stand in front of each."""

    languages: tuple[str | None, str | None] = (None, None)

    def fields(self) -> Mapping[str, int]:
        return {"source": len(self.text), "target": len(self.text)}

    def __call__(self, records: Sequence[Record]) -> list[Row]:
        rows: list[Row] = [{} for _ in records]
        for field, language in zip(("source", "target"), self.languages, strict=True):
            texts = [record.text(field) for record in records]
            found = self.text.encode_many(texts, target=field == "target", language=language)
            for row, encoding, record in zip(rows, found, records, strict=True):
                row[field] = self.fit(encoding, record).ids
        return rows


@dataclass(frozen=True, kw_only=True)
class Labelled(Encoder):
    """A text or a pair of texts, and its label: a name among `labels`, or its number there."""

    labels: tuple[str, ...]

    def fields(self) -> Mapping[str, int]:
        return {"tokens": len(self.text), "types": 8, "label": len(self.labels)}

    def __call__(self, records: Sequence[Record]) -> list[Row]:
        texts = [
            (record.text("text"), record.text("pair")) if "pair" in record else record.text("text")
            for record in records
        ]
        rows = []
        for encoding, record in zip(self.text.encode_many(texts), records, strict=True):
            whole = self.fit(encoding, record)
            rows.append({"tokens": whole.ids, "types": whole.types, "label": [self.number(record)]})
        return rows

    def number(self, record: Record) -> int:
        return numbered(record["label"], self.labels, record)


@dataclass(frozen=True, kw_only=True)
class Tagged(Encoder):
    """Words, each with a tag; the first token of a word carries it, the others ask for nothing."""

    labels: tuple[str, ...]

    def fields(self) -> Mapping[str, int]:
        return {"tokens": len(self.text), "types": 8, "labels": len(self.labels) + 1}

    def __call__(self, records: Sequence[Record]) -> list[Row]:
        rows = []
        for record in records:
            words: Any = record["words"]
            tags: Any = record["tags"]
            whole = self.fit(self.text.encode_words(words), record)
            fresh = [
                word is not None and word != before
                for before, word in zip([None, *whole.words], whole.words, strict=False)
            ]
            labels = [
                1 + numbered(tags[word], self.labels, record) if first and word is not None else AWAY
                for first, word in zip(fresh, whole.words, strict=True)
            ]
            rows.append({"tokens": whole.ids, "types": whole.types, "labels": labels})
        return rows


def numbered(label: object, labels: Sequence[str], record: Record) -> int:
    """The place of a label among all, by its name or its number."""
    if str(label) in labels:
        return labels.index(str(label))
    raise ValueError(f"{record.place}: label {label!r}, expected one of {', '.join(labels[:20])}")


def labels_of(records: Sequence[Record] | Any, column: str = "label") -> tuple[str, ...]:
    """Every label that occurs, sorted; numbers by their value."""
    found: set[str] = set()
    for record in records:
        value = record[column]
        found.update(map(str, value)) if isinstance(value, list) else found.add(str(value))
    return tuple(sorted(found, key=lambda name: (int(name), "") if name.isdecimal() else (1 << 62, name)))
