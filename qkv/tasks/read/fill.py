"""Fill: the words that fit where a text holds a mask. They are put into the user's own text."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from qkv.batch import Batch
from qkv.tasks.base import Out, Row, Task, trimmed
from qkv.tasks.checks import checked, listed
from qkv.text import Encoding, Tokenizer
from qkv.validate import number

BEGINS = ("Ġ", "▁")  # how a piece that begins a word begins, of byte-level tokenizers and SentencePiece


@dataclass(frozen=True)
class Word:
    """A word for a mask, its token, and the user's text with the word in it."""

    word: str
    score: float
    id: int
    text: str


@dataclass(frozen=True)
class Gap:
    """A mask: where it stands, and the words that fit best."""

    start: int
    end: int
    best: tuple[Word, ...]


@dataclass(frozen=True)
class Filled:
    """The user's text with the best word in every gap; a gap's words know nothing of another's."""

    text: str
    gaps: tuple[Gap, ...]

    @property
    def best(self) -> tuple[Word, ...]:
        """The words of the first gap."""
        return self.gaps[0].best


@dataclass(frozen=True, kw_only=True)
class Fill(Task[str, Filled]):
    """`top`: so many words; `targets`: only these, each one token, or the first token of a longer word."""

    name: ClassVar[str] = "fill"
    top: int = 5
    targets: Sequence[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        number("top", self.top, whole=True, at_least=1)
        if self.tokenizer.mask is None:
            raise ValueError("`fill`: this tokenizer has no mask; expected one such as [MASK] or <mask>")

    def targets_ids(self) -> list[int]:
        """The tokens of the targets, each once."""
        found = []
        for target in [self.targets] if isinstance(self.targets, str) else listed("targets", self.targets):
            checked(target, "a target")
            number = self.tokenizer.id(target)
            if number is None:
                ids = self.tokenizer.encode(target, special=False).ids
                if not {*ids} - {self.tokenizer.unk}:
                    raise ValueError(f"target {target!r}: nothing in it that this tokenizer knows")
                number = ids[0]
                if len(ids) > 1:
                    piece = self.tokenizer.token(number)
                    warnings.warn(
                        f"target {target!r} is no token of this model; {piece!r} stands for it", stacklevel=5
                    )
            found.append(number)
        return sorted(set(found))

    def known(self, count: int) -> list[int]:
        """The ids below `count` that are tokens: a model's table is often longer than the vocabulary."""
        return [n for n in range(count) if count <= len(self.tokenizer) or named(self.tokenizer, n)]

    def rows(self, whole: Encoding, what: str) -> list[Row]:
        (part,) = self.parts(whole, what)
        masks = tuple(place for place, number in enumerate(part.ids) if number == self.tokenizer.mask)
        if not masks:
            mask, cut = (
                self.tokenizer.token(self.tokenizer.mask or 0),
                " in what is left of it" * (part is not whole),
            )
            raise ValueError(f"{what}: no {mask}{cut}; expected one where a word is to be put")
        return [Row(part, masks)]

    def read(self, out: Out, batch: Batch, rows: Sequence[Row]) -> list[Any]:
        scores = out["logits"].float().softmax(-1)  # (all masks of all rows, tokens)
        numbers = torch.tensor(self.targets_ids() if self.targets else self.known(scores.shape[-1]))
        numbers = numbers.to(scores.device)
        scores = scores[:, numbers]
        values, places = scores.topk(min(self.top, scores.shape[-1]))
        best = iter(zip(values.tolist(), numbers[places].tolist(), strict=True))
        return [[next(best) for _ in row.ask] for row in rows]

    def found(self, given: str, rows: Sequence[Row], said: Sequence[Any]) -> Filled:
        (row,), (every,) = rows, said
        gaps, text = [], given
        for place, (scores, numbers) in reversed([*zip(row.ask, every, strict=True)]):
            start, end = trimmed(given, *row.tokens.offsets[place])
            best = tuple(
                Word(spelled(self.tokenizer, number)[0], score, number, self.put(given, start, end, number))
                for score, number in zip(scores, numbers, strict=True)
            )
            gaps.append(Gap(start, end, best))
            text = self.put(text, start, end, numbers[0])  # from the last gap on: offsets before it stay
        return Filled(text, tuple(reversed(gaps)))

    def put(self, text: str, start: int, end: int, number: int) -> str:
        """A text with a token in a gap: a piece that goes on with a word takes the blanks before it away."""
        word, begins = spelled(self.tokenizer, number)
        front = text[:start] if begins else text[:start].rstrip()
        return front + word + text[end:]


def named(tokenizer: Tokenizer, number: int) -> bool:
    try:
        return bool(tokenizer.token(number))
    except ValueError:
        return False


def spelled(tokenizer: Tokenizer, number: int) -> tuple[str, bool]:
    """A token as it is written, and whether it begins a word."""
    token = tokenizer.token(number)
    if number in tokenizer.roles.values():
        return token, True
    if tokenizer.joint:
        return token.removeprefix(tokenizer.joint), not token.startswith(tokenizer.joint)
    begins = token.startswith(BEGINS)
    return tokenizer.decode([number]).lstrip(" ") if begins else tokenizer.decode([number]), begins
