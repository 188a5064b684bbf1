"""Encoders of texts with what is asked of them: a label, a number, a tag a word, a span, the best choice."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from qkv.data.encode.encoder import LENGTHS, Encoder, Row
from qkv.data.read.record import Answer, Record, short
from qkv.text import Encoding

AWAY = 0  # stored tags are one more than they are; this one asks for nothing
TYPES = 8  # more than any family has
BITS = 2**32  # a field of floats, as their bits


@dataclass(frozen=True, kw_only=True)
class Labelled(Encoder):
    """A text or a pair of texts, and its label: a name among `labels`, several of them, or a number."""

    labels: tuple[str, ...] = ()
    kind: str = "single"

    def fields(self) -> Mapping[str, int]:
        size = BITS if self.kind == "regression" else len(self.labels)
        return {"tokens": len(self.text), "types": TYPES, "label": size}

    def __call__(self, records: Sequence[Record]) -> list[Row]:
        texts = [
            (record.text("text"), record.text("pair")) if "pair" in record else record.text("text")
            for record in records
        ]
        rows = []
        for encoding, record in zip(self.text.encode_many(texts), records, strict=True):
            whole = self.fit(encoding, record)
            rows.append({"tokens": whole.ids, "types": whole.types, "label": self.label(record)})
        return rows

    def label(self, record: Record) -> list[int]:
        value = held(record, "label")
        if self.kind == "regression":
            return [to_bits(value, record)]
        if self.kind == "single":
            return [numbered(value, self.labels, record)]
        return sorted({numbered(each, self.labels, record) for each in several(value)})


@dataclass(frozen=True, kw_only=True)
class Tagged(Encoder):
    """Words, each with a tag; the first token of a word carries it, the others ask for nothing."""

    labels: tuple[str, ...]

    def fields(self) -> Mapping[str, int]:
        return {"tokens": len(self.text), "types": TYPES, "labels": len(self.labels) + 1}

    def __call__(self, records: Sequence[Record]) -> list[Row]:
        rows = []
        for record in records:
            words, tags = (list_of(record, column) for column in ("words", "tags"))
            if len(words) != len(tags):
                raise ValueError(
                    f"{record.place}: {len(words)} words and {len(tags)} tags, expected one each"
                )
            whole = self.encoding(record)
            labels = [AWAY] * len(whole)
            for word, place in firsts(whole).items():
                labels[place] = 1 + numbered(tags[word], self.labels, record)
            rows.append({"tokens": whole.ids, "types": whole.types, "labels": labels})
        return rows

    def encoding(self, record: Record) -> Encoding:
        """The words of a record, or as many of them as fit."""
        return self.fit(self.text.encode_words(list(map(str, list_of(record, "words")))), record)


@dataclass(frozen=True, kw_only=True)
class Answered(Encoder):
    """A question and windows of its context, with the first and last token of the answer in each.

    Where a window does not hold the answer, or there is none, both are the token that stands for the row."""

    splits: ClassVar[bool] = True
    stride: int = 128  # tokens that neighbouring windows share

    def fields(self) -> Mapping[str, int]:
        places = dict.fromkeys(("windows", "start", "end"), LENGTHS)
        return {"tokens": len(self.text), "types": TYPES, **places}

    def __call__(self, records: Sequence[Record]) -> list[Row]:
        rows = []
        for windows, record in zip(self.windows(records), records, strict=True):
            row: Row = {name: [] for name in self.fields()}
            for window in windows:
                first, last = self.places(window, record)
                row["tokens"] += window.ids
                row["types"] += window.types
                row["windows"].append(len(window))
                row["start"].append(first)
                row["end"].append(last)
            rows.append(row)
        return rows

    def windows(self, records: Sequence[Record]) -> list[list[Encoding]]:
        """The windows of every record."""
        texts = [(record.text("question").strip(), record.text("context")) for record in records]
        both = zip(self.text.encode_many(texts), records, strict=True)
        return [self.cut(whole, record) for whole, record in both]

    def cut(self, whole: Encoding, record: Record) -> list[Encoding]:
        if not self.length or self.long != "split" or len(whole) <= self.length:
            return [self.fit(whole, record)]
        question = len(whole) - sum(owner == 1 for owner in whole.sequence)
        if self.length - question <= self.stride:
            raise ValueError(
                f"{record.place}: a question of {question} tokens leaves {self.length - question} of "
                f"data.length {self.length}, expected more than the stride, {self.stride}"
            )
        return whole.windows(self.length, stride=self.stride)

    def places(self, window: Encoding, record: Record) -> tuple[int, int]:
        """The tokens where the first answer begins and ends."""
        nowhere, answers = self.nowhere(window), record.answers()
        if not answers:
            return nowhere, nowhere
        begin, end = answer_in(answers[0], record)
        inside = [
            place
            for place, (owner, (start, stop)) in enumerate(zip(window.sequence, window.offsets, strict=True))
            if owner == 1 and stop > begin and start < end
        ]
        held = [place for place, owner in enumerate(window.sequence) if owner == 1]
        covered = held and window.offsets[held[0]][0] <= begin and end <= window.offsets[held[-1]][1]
        return (inside[0], inside[-1]) if inside and covered else (nowhere, nowhere)

    def nowhere(self, window: Encoding) -> int:
        """The token that stands for the row."""
        return window.ids.index(self.text.cls) if self.text.cls in window.ids else 0


@dataclass(frozen=True, kw_only=True)
class Chosen(Encoder):
    """A text with each of its choices, of which `label` tells the right one; all records have as many."""

    choices: int

    def fields(self) -> Mapping[str, int]:
        return {"tokens": len(self.text), "types": TYPES, "windows": LENGTHS, "label": self.choices}

    def __call__(self, records: Sequence[Record]) -> list[Row]:
        rows = []
        for record in records:
            text, choices = record.text("text"), list(map(str, list_of(record, "choices")))
            if len(choices) != self.choices:
                raise ValueError(f"{record.place}: {len(choices)} choices, expected {self.choices} as before")
            whole = [
                self.fit(one, record) for one in self.text.encode_many([(text, each) for each in choices])
            ]
            label = numbered(held(record, "label"), [str(n) for n in range(self.choices)], record)
            rows.append({
                "tokens": [i for one in whole for i in one.ids],
                "types": [kind for one in whole for kind in one.types],
                "windows": [len(one) for one in whole], "label": [label],
            })  # fmt: skip
        return rows


def held(record: Record, column: str) -> object:
    """What a column holds."""
    if column not in record:
        raise record.lacks(column)
    return record[column]


def list_of(record: Record, column: str) -> list[Any]:
    value = held(record, column)
    if not isinstance(value, list):
        raise ValueError(f"{record.place}: column {column!r} holds {short(value)}, expected a list")
    return value


def several(value: object) -> list[object]:
    """Labels in a list, or in one text with commas between them."""
    if isinstance(value, list):
        return value
    return [part.strip() for part in str(value).split(",") if part.strip()]


def numbered(label: object, labels: Sequence[str], record: Record) -> int:
    """The place of a label among all, by its name or its number."""
    if str(label) in labels:
        return labels.index(str(label))
    raise ValueError(f"{record.place}: label {label!r}, expected one of {', '.join(labels[:20])}")


def labels_of(records: Iterable[Record], column: str = "label", kind: str = "single") -> tuple[str, ...]:
    """Every label that occurs, sorted; numbers by their value."""
    found: set[str] = set()
    for record in records:
        value = held(record, column)
        names = several(value) if kind == "several" or isinstance(value, list) else [value]
        if value is None or any(name is None or not str(name).strip() for name in names):
            raise ValueError(f"{record.place}: column {column!r} holds {short(value)}, expected a label")
        found.update(map(str, names))
    return tuple(sorted(found, key=lambda name: (int(name), "") if name.isdecimal() else (1 << 62, name)))


def firsts(encoding: Encoding) -> dict[int, int]:
    """The first token of every word that has one."""
    found: dict[int, int] = {}
    for place, word in enumerate(encoding.words):
        if word is not None:
            found.setdefault(word, place)
    return found


def answer_in(answer: Answer, record: Record) -> tuple[int, int]:
    """The characters of the context from which up to which an answer stands."""
    text, start = answer
    if start is None:
        raise ValueError(f"{record.place}: answer {short(text)}, expected a text and its start")
    if not text or record.text("context")[start : start + len(text)] != text:
        raise ValueError(
            f"{record.place}: answer {short(text)} does not stand at character {start} of the context"
        )
    return start, start + len(text)


def to_bits(value: object, record: Record) -> int:
    """A number as the bits of a float32."""
    try:
        number = float(str(value))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{record.place}: label {value!r}, expected a number")
    return int(np.float32(number).view(np.uint32))


def from_bits(bits: NDArray[np.int64]) -> NDArray[np.float32]:
    return bits.astype(np.uint32).view(np.float32)
