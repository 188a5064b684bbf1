"""GrammarConstraint: the tokens that a grammar allows next, given by a matcher.

An example of a matcher is llguidance's `LLMatcher`, for a regular expression, a JSON schema or a
grammar. This module does not depend on text."""

from __future__ import annotations

from typing import Protocol, Self

import torch
from torch import Tensor

MAX_CACHED_MATCHERS = 4096


class GrammarMatcher(Protocol):
    """State of a grammar after some tokens, with the methods of llguidance's LLMatcher."""

    def deep_copy(self) -> Self: ...
    def consume_token(self, sampled_token: int) -> bool: ...
    def compute_logit_bias(self) -> bytes: ...  # one byte per token id, 0 where it is not allowed
    def is_error(self) -> bool: ...  # no token of the vocabulary continues the text


class GrammarConstraint:
    """A `prefix_allowed_tokens_fn` for `Engine.add_request`; equal prefixes share matchers."""

    def __init__(self, matcher: GrammarMatcher, vocab_size: int) -> None:
        self.initial_matcher = matcher
        self.vocab_size = vocab_size
        # By prefix; None after a token that was not allowed.
        self.matchers: dict[tuple[int, ...], GrammarMatcher | None] = {(): matcher}

    def __call__(self, token_ids: list[int]) -> Tensor:
        """Return (V,) true for the token ids that may follow these; none after a token not allowed."""
        matcher = self.get_matcher(tuple(token_ids))
        if matcher is None:
            return torch.zeros(self.vocab_size, dtype=torch.bool)
        bias = bytearray(matcher.compute_logit_bias())
        allowed = torch.zeros(self.vocab_size, dtype=torch.bool)
        if matcher.is_error():
            return allowed
        count = min(self.vocab_size, len(bias))
        allowed[:count] = torch.frombuffer(bias, dtype=torch.uint8)[:count] > 0
        return allowed

    def get_matcher(self, token_ids: tuple[int, ...]) -> GrammarMatcher | None:
        """Return the matcher after these tokens, continued from the longest cached prefix.

        Beams without allowed tokens go on with any token, after which there is no matcher."""
        length = next(n for n in range(len(token_ids), -1, -1) if token_ids[:n] in self.matchers)
        if length == len(token_ids):
            return self.matchers[token_ids]
        if len(self.matchers) >= MAX_CACHED_MATCHERS:
            self.matchers = {(): self.initial_matcher}
            length = 0
        known = self.matchers[token_ids[:length]]
        matcher = None if known is None else known.deep_copy()
        if matcher and not all(matcher.consume_token(token_id) for token_id in token_ids[length:]):
            matcher = None
        self.matchers[token_ids] = matcher
        return matcher
