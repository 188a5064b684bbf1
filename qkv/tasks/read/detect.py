"""Detect: which tokens of a text were replaced by others, as ELECTRA's discriminator tells it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from qkv.batch import Batch
from qkv.tasks.base import Out, Row, Task
from qkv.validate import number


@dataclass(frozen=True)
class Token:
    """A token, the user's own text from `start` up to `end`: how sure it is that it was replaced."""

    text: str
    score: float
    replaced: bool
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Detect(Task[str, tuple[Token, ...]]):
    """`above`: the score from which on a token counts as replaced."""

    name: ClassVar[str] = "detect"
    ways: ClassVar[tuple[str, ...]] = ("refuse", "cut", "window")
    long: str = "window"
    above: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        number("above", self.above, at_least=0, at_most=1)

    def read(self, out: Out, batch: Batch, rows: Sequence[Row]) -> list[list[float]]:
        scores = out["logits"].float().sigmoid().cpu().tolist()
        return [row[: len(each.tokens)] for row, each in zip(scores, rows, strict=True)]

    def found(self, given: str, rows: Sequence[Row], said: Sequence[Any]) -> tuple[Token, ...]:
        """Where windows overlap, a token's score is the mean of what they say."""
        scores: dict[tuple[int, int, int], list[float]] = {}
        for row, each in zip(rows, said, strict=True):
            seen: dict[tuple[int, int], int] = {}  # tokens of one character: bytes of it
            for offsets, special, score in zip(row.tokens.offsets, row.tokens.special, each, strict=True):
                if not special:
                    nth = seen[offsets] = seen.get(offsets, -1) + 1
                    scores.setdefault((*offsets, nth), []).append(score)
        return tuple(
            Token(given[start:end], mean := sum(found) / len(found), mean >= self.above, start, end)
            for (start, end, _), found in sorted(scores.items())
        )
