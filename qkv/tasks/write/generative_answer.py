"""Respond: the answer to a question about a text, in words that an encoder-decoder writes.

    question, context ─ template ─ tokens, those of the context told apart ─ windows ─ answers ─ the best

A long context is read in windows that overlap, and each says its answers. They are compared by their scores:
e to the log-probability of an answer over its length, as `length_penalty` has it. What several windows say is
one answer, with its best score."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from qkv.decode import Found
from qkv.model.model import Model
from qkv.spec import Spec
from qkv.tasks.base import Row, Text
from qkv.tasks.read.answer import Answer, Reply, asked, check_question, first_window
from qkv.tasks.requirements import REWRITES, SPAN, check_fits, rewrites
from qkv.tasks.write.base import Write
from qkv.text import Encoding

MOST = 512  # tokens of a question and a window (T5)
SLOT = re.compile(r"\{(question|context)\}")
ALSO = {"top": "results", "longest": "max_new"}  # names of these settings where an answer is a part of a text


@dataclass(frozen=True, kw_only=True)
class Respond(Write[tuple[str, str], Answer]):
    """`template`: what is read, with {question} and {context} in it; `none`: no answer is one too. `top` and
    `longest` are `results` and `max_new`."""

    name: ClassVar[str] = "answer"
    ways: ClassVar[tuple[str, ...]] = ("refuse", "cut", "window")
    long: str = "window"
    template: str = "question: {question} context: {context}"
    none: bool = False

    def __post_init__(self) -> None:
        check_fits(self.model, self.name, REWRITES)
        super().__post_init__()
        found = SLOT.findall(self.template) if isinstance(self.template, str) else []
        if sorted(found) != ["context", "question"]:
            right = "a text with {question} and {context}, each once"
            raise ValueError(f"template is {self.template!r}, expected {right}")

    def __call__(self, question: str, text: str, /, **settings: Any) -> Answer:  # type: ignore[override]
        """The answer to a question about a text."""
        return super().__call__((question, text), **settings)

    def changed(self, settings: dict[str, Any]) -> Self:
        for name, other in ALSO.items():
            if name in settings and other in settings:
                raise ValueError(f"{name} and {other} are one setting here, expected one of them")
        return super().changed({ALSO.get(name, name): value for name, value in settings.items()})

    @property
    def limit(self) -> int:
        return min(super().limit, self.length or MOST)

    def texts(self, given: tuple[str, str], what: str) -> list[Text]:
        return [asked(given, what)]

    def encode(self, texts: Sequence[Text]) -> list[Encoding]:
        """Questions and contexts in the template; tokens of a context are told from the others, as those of a
        pair are, and have its own offsets."""
        front, back = self.template.split("{context}")
        whole, places = list[Text](), list[tuple[int, int]]()
        for question, context in (text for text in texts if isinstance(text, tuple)):
            before, after = (part.replace("{question}", question) for part in (front, back))
            whole.append(before + context + after)
            places.append((len(before), len(before + context)))
        encoded = zip(self.tokenizer.encode_many(whole), places, strict=True)
        return [within(one, *place) for one, place in encoded]

    def parts(self, whole: Encoding, what: str) -> list[Encoding]:
        check_question(whole, self.limit, what)
        return super().parts(whole, what)

    def cut(self, whole: Encoding) -> Encoding:
        return first_window(whole, self.limit)

    def request(self, row: Row) -> dict[str, Any]:
        return {"source": row.tokens.ids}

    def found(self, given: tuple[str, str], rows: Sequence[Row], said: Sequence[list[Found]]) -> Answer:
        merged: dict[str, Answer] = {}
        for row, results in zip(rows, said, strict=True):
            for one in results:
                answer = self.answer(given[1], row.tokens, one)
                words = " ".join(answer.text.lower().split())
                merged[words] = better(answer, merged.get(words, answer))
        if not self.none and len(merged) > 1:
            merged.pop("", None)
        best = tuple(sorted(merged.values(), key=lambda one: -one.score)[: self.how.results])
        return replace(best[0], best=best)

    def answer(self, text: str, tokens: Encoding, found: Found) -> Answer:
        """What was written, as it stands in the window where it does."""
        words, score = self.tokenizer.decode(self.words(found.ids)).strip(), math.exp(found.score)
        own = [offsets for offsets, owner in zip(tokens.offsets, tokens.sequence, strict=True) if owner == 1]
        place = occurs(words, text, own[0][0], own[-1][1])
        return Answer(text[slice(*place)], score, *place) if place else Answer(words, score, None, None)


def answering(model: Model, generative: bool | None) -> type[Reply] | type[Respond]:
    """The way to answer: as asked, else as the model can."""
    if generative not in (None, True, False):
        raise ValueError(f"generative is {generative!r}, expected true, false, or none for as the model can")
    spec = model.spec
    writes = isinstance(spec, Spec) and rewrites(spec) and not SPAN.fits(spec)
    if generative is None and not writes:
        check_fits(model, "answer")
    return Respond if (writes if generative is None else generative) else Reply


def better(one: Answer, other: Answer) -> Answer:
    """Of two that say the same, the one with a place in the text, and the best score of both."""
    first, second = sorted((one, other), key=lambda each: (each.start is None, -each.score))
    return replace(first, score=max(first.score, second.score))


def within(whole: Encoding, start: int, end: int) -> Encoding:
    """Tokens of the characters from `start` up to `end` are the second text, and count from there."""
    offsets, sequence = [*whole.offsets], [*whole.sequence]
    for place, (first, last) in enumerate(whole.offsets):
        if sequence[place] is not None and first < end and last > start:
            offsets[place], sequence[place] = (max(first, start) - start, min(last, end) - start), 1
    return replace(whole, offsets=offsets, sequence=sequence)


def occurs(words: str, text: str, start: int, end: int) -> tuple[int, int] | None:
    """Where words first stand in a part of a text, in any case and with any blanks: by themselves, else
    inside others."""
    plain = r"\s+".join(map(re.escape, words.split()))
    for pattern in (rf"(?<!\w){plain}(?!\w)", plain) if plain else ():
        found = re.compile(pattern, re.IGNORECASE).search(text, start, end)
        if found:
            return found.span()
    return None
