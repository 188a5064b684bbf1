"""Score: how likely a text is, token by token. A masked model hides each token in turn (Salazar et al. 2020).

A causal model scores a token by what stands before it; the first of a text, where no start token stands
before it, has no score. In a window after the first, only tokens that no earlier window has shown are
scored: the shared ones are what they are seen by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from qkv.batch import Batch
from qkv.nn.transformer import Transformer
from qkv.spec import Spec
from qkv.tasks.base import Out, Row, Task
from qkv.tasks.requirements import one_way
from qkv.text import Encoding

MOST = 2**24  # logits that are made at once
HIGHEST = 700.0  # e to this is still a float


@dataclass(frozen=True)
class Token:
    """A token, the user's own text from `start` up to `end`, and its log-probability; None: it has none."""

    text: str
    score: float | None
    start: int
    end: int


@dataclass(frozen=True)
class Score:
    """The sum of the log-probabilities, and the perplexity over the tokens that have one."""

    score: float
    perplexity: float
    tokens: tuple[Token, ...]


@dataclass(frozen=True, kw_only=True)
class Measure(Task[str, Score]):
    name: ClassVar[str] = "score"
    ways: ClassVar[tuple[str, ...]] = ("refuse", "cut", "window")
    long: str = "window"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.causal and self.tokenizer.mask is None:
            raise ValueError(
                "`score`: this tokenizer has no mask to hide tokens by; expected one, or a decoder"
            )

    @property
    def causal(self) -> bool:
        assert isinstance(self.model.spec, Spec)
        return one_way(self.model.spec)

    def rows(self, whole: Encoding, what: str) -> list[Row]:
        """Causal: a window a row, and the tokens to be scored in it; masked: a row for each of these."""
        parts = self.parts(whole, what)
        shared = self.shared(whole)
        found = []
        for nth, part in enumerate(parts):
            places = [place for place, special in enumerate(part.special) if not special]
            fresh = places[shared:] if nth else places
            found += [Row(part, tuple(fresh))] if self.causal else [Row(part, (place,)) for place in fresh]
        if self.causal and not any(place for row in found for place in row.ask):
            raise ValueError(f"{what}: no token with one before it to score it by; expected more words")
        return found

    def ids(self, row: Row) -> list[int]:
        if self.causal:
            return row.tokens.ids
        hidden = list(row.tokens.ids)
        hidden[row.ask[0]] = self.tokenizer.mask or 0
        return hidden

    def run(self, rows: Sequence[Row]) -> tuple[Out, Batch]:
        """The states alone: logits of all tokens would take more memory than all the rest."""
        batch = self.batch(rows)
        batch = replace(batch, read=torch.zeros(0, dtype=torch.long, device=self.model.device))
        return self.model.net(batch), batch

    def read(self, out: Out, batch: Batch, rows: Sequence[Row]) -> list[list[float | None]]:
        states = out["hidden"]
        back = int(self.causal)  # the state that tells a token stands before it
        asked = [(i, place) for i, row in enumerate(rows) for place in row.ask if place >= back]
        index = [i * states.shape[1] + place - back for i, place in asked]
        words = [rows[i].tokens.ids[place] for i, place in asked]
        both = (torch.tensor(each, dtype=torch.long, device=states.device) for each in (index, words))
        logs = iter(self.logs(states.flatten(0, 1), *both))
        return [[next(logs) if place >= back else None for place in row.ask] for row in rows]

    def logs(self, states: Tensor, index: Tensor, words: Tensor) -> list[float]:
        """The log-probability of each word (N,) by the state of its index (N,), out of all states."""
        net = self.model.net
        assert isinstance(net, Transformer)
        found: list[float] = []
        step = max(MOST // net.tower.stack.embed.vocab, 1)
        for some, wanted in zip(index.split(step), words.split(step), strict=True):
            logits = net.heads["lm"]({"hidden": states[some][None]}, Batch())["logits"][0]
            found += logits.float().log_softmax(-1).gather(1, wanted[:, None])[:, 0].tolist()
        return found

    def found(self, given: str, rows: Sequence[Row], said: Sequence[Any]) -> Score:
        tokens = [
            Token(given[start:end], score, start, end)
            for row, scores in zip(rows, said, strict=True)
            for (start, end), score in zip((row.tokens.offsets[n] for n in row.ask), scores, strict=True)
        ]
        every = [token.score for token in tokens if token.score is not None]
        mean = -sum(every) / len(every)
        return Score(sum(every), math.exp(min(mean, HIGHEST)), tuple(tokens))
