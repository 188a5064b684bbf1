"""Guide: which ids may follow, by a matcher that reads one id after another. Knows no text, the matcher does.

llguidance's `LLMatcher` is one: of a regular expression, a JSON schema or a grammar."""

from __future__ import annotations

from typing import Protocol, Self

import torch
from torch import Tensor

MOST = 4096  # matchers kept: each stands after some ids


class Matcher(Protocol):
    def deep_copy(self) -> Self: ...
    def consume_token(self, sampled_token: int) -> bool: ...
    def compute_logit_bias(self) -> bytes: ...  # a byte for every id, 0 where it may not follow


class Guide:
    """An `allowed` for `Engine.admit`; rows and beams share what they have in common."""

    def __init__(self, matcher: Matcher, words: int) -> None:
        self.first, self.words = matcher, words
        self.at: dict[tuple[int, ...], Matcher] = {(): matcher}

    def __call__(self, ids: list[int]) -> Tensor:
        """(V,) true for the ids that may follow these."""
        bias = bytearray(self.after(tuple(ids)).compute_logit_bias())
        flags = torch.zeros(self.words, dtype=torch.bool)
        count = min(self.words, len(bias))
        flags[:count] = torch.frombuffer(bias, dtype=torch.uint8)[:count] > 0
        return flags

    def after(self, ids: tuple[int, ...]) -> Matcher:
        """The matcher that has read these ids, from the longest beginning that is known."""
        known = next(n for n in range(len(ids), -1, -1) if ids[:n] in self.at)
        if known == len(ids):
            return self.at[ids]
        if len(self.at) >= MOST:
            self.at, known = {(): self.first}, 0
        matcher = self.at[ids[:known]].deep_copy()
        for id_ in ids[known:]:
            matcher.consume_token(id_)
        self.at[ids] = matcher
        return matcher
