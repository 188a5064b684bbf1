"""Permutation language modeling (XLNet): the predicted tokens, their order, and the permutation mask.
Does not depend on token ids.

ranks      2  -1   0  -1   1    predicted in the order 0, 1, 2; a token of rank -1 is context
perm_mask  1   0   0   0   0    a target attends to the context and to earlier targets
           1   0   1   0   1    a context token attends to the context only
           1   0   1   0   1
           1   0   1   0   1    1: the token of this row may not attend to the token of this column
           1   0   0   0   1
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class FactorizationOrder(NamedTuple):
    """A prediction order for a text of T tokens, P of which are predicted."""

    ranks: NDArray[np.int64]  # (T,)
    perm_mask: NDArray[np.bool_]  # (T, T)
    target_positions: NDArray[np.int64]  # (P,) ascending


def sample_factorization_order(
    special_tokens_mask: NDArray[np.bool_],
    rng: np.random.Generator,
    *,
    tokens_per_target: int = 6,
    max_span_length: int = 5,
    num_targets: int | None = None,
) -> FactorizationOrder:
    """Sample targets, about one token in `tokens_per_target`, and a random order of them.

    Targets are spans of 1 to `max_span_length` tokens, each at a random position in a context
    `tokens_per_target` times as long. Special tokens are never targets. With `num_targets`, the
    number of targets is exact, so that the rows of a batch can be stacked: random spans are removed
    or random single tokens are added.
    """
    is_target = _sample_target_mask(
        special_tokens_mask, rng, tokens_per_target, max_span_length, num_targets
    )
    ranks = rng.permutation(len(special_tokens_mask))
    ranks[~is_target] = -1
    return FactorizationOrder(ranks, build_perm_mask(ranks), np.flatnonzero(is_target))


def build_perm_mask(ranks: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return the mask (T, T), true where attention is not allowed: targets of the same or a later
    rank."""
    return (ranks[:, None] <= ranks[None, :]) & (ranks >= 0)[None, :]


def _sample_target_mask(
    special_tokens_mask: NDArray[np.bool_],
    rng: np.random.Generator,
    tokens_per_target: int,
    max_span_length: int,
    num_targets: int | None,
) -> NDArray[np.bool_]:
    length = len(special_tokens_mask)
    max_spans = -(-length // tokens_per_target)
    span_lengths = rng.integers(1, max_span_length + 1, size=max_spans)
    ends = np.cumsum(span_lengths)
    span_offsets = rng.integers(0, (tokens_per_target - 1) * span_lengths + 1)
    span_starts = tokens_per_target * (ends - span_lengths) + span_offsets
    span_indices = np.repeat(np.arange(max_spans), span_lengths)
    positions = (span_starts - (ends - span_lengths))[span_indices] + np.arange(len(span_indices))
    is_inside = positions < length
    span_of_token = np.full(length, -1)
    span_of_token[positions[is_inside]] = span_indices[is_inside]
    is_target = (span_of_token >= 0) & ~special_tokens_mask
    if num_targets is None:
        return is_target
    num_regular = length - int(special_tokens_mask.sum())
    if num_targets > num_regular:
        raise ValueError(
            f"num_targets {num_targets}, expected at most {num_regular}, "
            "the tokens of the text that are not special"
        )
    # Tokens are taken span by span, then single tokens; special tokens come last.
    priority = np.where(
        is_target, rng.permutation(max_spans)[span_of_token], max_spans + rng.permutation(length)
    )
    priority[special_tokens_mask] = max_spans + length
    exact_mask = np.zeros(length, np.bool_)
    exact_mask[np.argsort(priority, kind="stable")[:num_targets]] = True
    return exact_mask
