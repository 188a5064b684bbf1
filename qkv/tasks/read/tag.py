"""Tag: the entities of a text and where they stand. Knows IOB2, BIOES, BILOU and plain labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qkv.batch import Batch
from qkv.tasks.base import Out, Row, Task, labels_of, trimmed
from qkv.tasks.checks import listed, one_of
from qkv.text import Encoding

JOINS = ("none", "simple", "first", "average", "max")


@dataclass(frozen=True)
class Entity:
    """A label, and the part of the text that has it: `text` is the user's own from `start` up to `end`."""

    label: str
    score: float
    text: str
    start: int
    end: int


class Piece(NamedTuple):
    """A token, or a word, with the scores of all labels (N,)."""

    start: int
    end: int
    scores: NDArray[np.float32]


class Found(NamedTuple):
    label: str
    score: float
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Tag(Task[str, tuple[Entity, ...]]):
    """`join`: "none" gives tokens, "simple" joins tokens to entities; "first", "average" and "max" make words
    of tokens before, by the scores of a word's first token, their mean, or those of its surest token.
    `leave`: labels that are not told."""

    name: ClassVar[str] = "tag"
    ways: ClassVar[tuple[str, ...]] = ("refuse", "cut", "window")
    long: str = "window"
    join: str = "first"
    leave: Sequence[str] = ("O",)

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("join", self.join, JOINS)
        listed("leave", self.leave, "labels")

    def read(self, out: Out, batch: Batch, rows: Sequence[Row]) -> list[NDArray[np.float32]]:
        scores = out["logits"].float().softmax(-1).cpu().numpy()
        return [scores[i, : len(row.tokens)] for i, row in enumerate(rows)]

    def found(self, given: str, rows: Sequence[Row], said: Sequence[Any]) -> tuple[Entity, ...]:
        labels = labels_of(self.model, self.model.args["labels"])
        every = [
            self.window(given, row.tokens, scores, labels) for row, scores in zip(rows, said, strict=True)
        ]
        told = [one for window in every for one in window if one.label not in self.leave]
        told = longest(told) if len(rows) > 1 else told
        spans = [(one, *trimmed(given, one.start, one.end)) for one in told]
        return tuple(
            Entity(one.label, one.score, given[start:end], start, end)
            for one, start, end in spans
            if start < end
        )

    def window(
        self, text: str, tokens: Encoding, scores: NDArray[np.float32], labels: Sequence[str]
    ) -> list[Found]:
        """What one window says."""
        places = [place for place, special in enumerate(tokens.special) if not special]
        pieces = [Piece(*tokens.offsets[place], scores[place]) for place in places]
        if self.join == "simple":
            pieces = [word(group, "first") for group in grouped(pieces)]
        elif self.join != "none":
            words = (
                [tokens.words[place] for place in places] if self.tokenizer.joint else blanks(text, pieces)
            )
            pieces = [word(group, self.join) for group in grouped(pieces, words)]
        told = [
            Found(labels[i := int(p.scores.argmax())], float(p.scores[i]), p.start, p.end) for p in pieces
        ]
        return told if self.join == "none" else list(entities(told))


def blanks(text: str, pieces: Sequence[Piece]) -> list[int]:
    """Which word each token is of, where words are what stands between blanks: the tokenizer cuts none."""
    count, found = 0, []
    for piece in pieces:
        count += piece.start == 0 or any(map(str.isspace, text[piece.start - 1 : piece.start + 1]))
        found.append(count)
    return found


def grouped(pieces: Sequence[Piece], words: Sequence[int | None] | None = None) -> Iterator[list[Piece]]:
    """The tokens of each word; at least those that are bytes of one character go together."""
    group: list[Piece] = []
    for place, piece in enumerate(pieces):
        same = words is not None and words[place] is not None and words[place] == words[place - 1]
        if group and not same and piece.start >= group[-1].end:
            yield group
            group = []
        group.append(piece)
    if group:
        yield group


def word(tokens: Sequence[Piece], join: str) -> Piece:
    """One piece out of the tokens of a word."""
    every = [token.scores for token in tokens]
    if join == "first" or len(every) == 1:
        scores = every[0]
    else:
        scores = np.mean(every, 0) if join == "average" else max(every, key=np.max)
    return Piece(tokens[0].start, tokens[-1].end, scores)


def parted(label: str) -> tuple[str, str]:
    """Where in an entity a token stands, and its kind: B-PER is B and PER. A plain label goes on."""
    return (label[0], label[2:]) if label[:2] in ("B-", "I-", "E-", "S-", "L-", "U-") else ("I", label)


def entities(told: Sequence[Found]) -> Iterator[Found]:
    """Neighbours of one kind as one, from a beginning up to an end, where the labels tell these."""
    group: list[Found] = []
    for one in told:
        place, kind = parted(one.label)
        if group:
            before, same = parted(group[-1].label)
            if kind != same or place in "BSU" or before in "ESLU":
                yield joined(group)
                group = []
        group.append(one)
    if group:
        yield joined(group)


def joined(group: Sequence[Found]) -> Found:
    score = sum(one.score for one in group) / len(group)
    return Found(parted(group[0].label)[1], score, group[0].start, group[-1].end)


def longest(told: Sequence[Found]) -> list[Found]:
    """Of those that overlap, since windows do, the longest; of equals, the surest."""
    found: list[Found] = []
    for one in sorted(told, key=lambda one: one.start):
        if found and found[-1].start <= one.start < found[-1].end:
            last = found[-1]
            if (one.end - one.start, one.score) > (last.end - last.start, last.score):
                found[-1] = one
        else:
            found.append(one)
    return found
