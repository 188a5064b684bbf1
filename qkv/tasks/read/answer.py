"""Answer: the part of a text that answers a question. A long text is read in windows that overlap.

What windows say alike, or a window with other ends in the same words, is one answer: scores are added."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch

from qkv.batch import Batch
from qkv.data.encode.answer_spans import Scored, Window, scored
from qkv.tasks.base import Out, Row, Task, Text, trimmed
from qkv.tasks.checks import checked
from qkv.tasks.requirements import SPAN, check_fits
from qkv.text import Encoding
from qkv.validate import number

MOST = 384  # tokens of a question and a window


@dataclass(frozen=True)
class Answer:
    """The user's own text from `start` up to `end`; empty: no answer. `best` has the next best too.

    An answer in words that do not stand in the text has no `start` and no `end`."""

    text: str
    score: float
    start: int | None
    end: int | None
    best: tuple[Answer, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Reply(Task[tuple[str, str], Answer]):
    """`top`: so many answers; `longest`: tokens that one may have; `none`: no answer is one of them too;
    `words`: answers begin and end with words, as the tokenizer cuts them, not inside."""

    name: ClassVar[str] = "answer"
    ways: ClassVar[tuple[str, ...]] = ("refuse", "cut", "window")
    long: str = "window"
    top: int = 1
    longest: int = 15
    none: bool = False
    words: bool = True

    def __post_init__(self) -> None:
        check_fits(self.model, self.name, SPAN)
        super().__post_init__()
        number("top", self.top, whole=True, at_least=1)
        number("longest", self.longest, whole=True, at_least=1)

    def __call__(self, question: str, text: str, /, **settings: Any) -> Answer:  # type: ignore[override]
        """The answer to a question, out of a text."""
        return super().__call__((question, text), **settings)

    @property
    def limit(self) -> int:
        return min(super().limit, self.length or MOST)

    def texts(self, given: tuple[str, str], what: str) -> list[Text]:
        return [asked(given, what)]

    def parts(self, whole: Encoding, what: str) -> list[Encoding]:
        check_question(whole, self.limit, what)
        return super().parts(whole, what)

    def cut(self, whole: Encoding) -> Encoding:
        return first_window(whole, self.limit)

    def read(self, out: Out, batch: Batch, rows: Sequence[Row]) -> list[Scored]:
        windows = [self.window(row.tokens) for row in rows]
        start, end = out["start"].float(), out["end"].float()
        allowed = torch.zeros(start.shape, dtype=torch.bool)
        for row, window in zip(allowed, windows, strict=True):
            row[: len(window.inside)] = torch.from_numpy(window.inside)
            row[window.nowhere] = True
        start, end = (
            x.masked_fill(~allowed.to(x.device), -torch.inf).log_softmax(-1).cpu() for x in (start, end)
        )
        most = 2 * self.top + 10 if self.words else self.top  # in whole words, some become the same
        return scored(start, end, windows, longest=min(self.longest, start.shape[1]), most=most)

    def window(self, tokens: Encoding) -> Window:
        """What is known of a window's tokens, to the ends of their words."""
        cls = self.tokenizer.cls
        window = Window.of(tokens, tokens.ids.index(cls) if cls is not None and cls in tokens.ids else 0)
        if not self.words:
            return window
        ends: dict[int, tuple[int, int]] = {}
        for owner, word, (start, end) in zip(tokens.sequence, tokens.words, tokens.offsets, strict=True):
            if owner == 1 and word is not None:
                ends[word] = (ends.get(word, (start, end))[0], end)
        wide = [
            ends[word] if owner == 1 and word is not None else own
            for owner, word, own in zip(tokens.sequence, tokens.words, tokens.offsets, strict=True)
        ]
        return window._replace(offsets=np.array(wide, np.int32).reshape(-1, 2))

    def found(self, given: tuple[str, str], rows: Sequence[Row], said: Sequence[Any]) -> Answer:
        text = given[1]
        merged: dict[str, Answer] = {}
        for span in (span for window in said for span in window.spans):
            start, end = trimmed(text, span.start, span.end)
            one = Answer(text[start:end], math.exp(span.score), start, end)
            same = merged.get(one.text.lower())
            merged[one.text.lower()] = replace(same, score=same.score + one.score) if same else one
        answers = [one for words, one in merged.items() if words] or [Answer("", 0.0, 0, 0)]
        if self.none:
            answers.append(Answer("", math.exp(min(window.none for window in said)), 0, 0))
        best = tuple(sorted(answers, key=lambda one: -one.score)[: self.top])
        return replace(best[0], best=best)


def asked(given: tuple[str, str], what: str) -> tuple[str, str]:
    """A question and a text, each of which says something."""
    if not isinstance(given, tuple) or len(given) != 2:
        raise ValueError(f"{what}: expected a question and a text, a tuple of both")
    return checked(given[0], f"the question of {what}"), checked(given[1], what)


def first_window(whole: Encoding, limit: int) -> Encoding:
    """A question and the beginning of the text: the question is never cut."""
    return whole.windows(limit)[0]


def check_question(whole: Encoding, limit: int, what: str) -> None:
    """Are there a question and a text, and room for both?"""
    for owner, name in enumerate((f"the question of {what}", what)):
        if owner not in whole.sequence:
            raise ValueError(f"{name}: nothing in it that this tokenizer knows; expected words")
    question = len(whole) - whole.sequence.count(1)
    if question >= limit:
        right = f"expected fewer than the {limit:,} that are read at once"
        raise ValueError(f"the question of {what}: {question:,} tokens, {right}")
