"""Denoising: noise functions that corrupt a text for the model to restore (BART, mBART). They work on
token ids; start, end and language tokens are added afterwards.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from qkv.data.store.shards import TokenIdArray

NoiseFunction = Callable[[TokenIdArray, np.random.Generator], NDArray[np.int64]]


def apply_noise(
    ids: TokenIdArray, rng: np.random.Generator, noise_functions: Sequence[NoiseFunction]
) -> NDArray[np.int64]:
    """Apply noise functions to a text, one after another."""
    for noise in noise_functions:
        ids = noise(ids, rng)
    return ids.astype(np.int64)


def infill_text(
    ids: TokenIdArray,
    rng: np.random.Generator,
    *,
    mask_token_id: int,
    mask_prob: float = 0.3,
    mean_span_length: float = 3.0,
) -> NDArray[np.int64]:
    """Text infilling: replace spans, ceil(mask_prob · T) tokens in total, by one mask token each.

    Span lengths are sampled from a Poisson distribution until they sum to that count; the last span
    is truncated. A span of length 0 inserts a mask token. Spans do not overlap.
    """
    if mean_span_length <= 0:
        raise ValueError(
            f"mean_span_length {mean_span_length}, expected more than 0: empty spans mask no token"
        )
    num_masked = min(math.ceil(mask_prob * len(ids)), len(ids))
    span_lengths = np.empty(0, np.int64)
    while span_lengths.sum() < num_masked:
        span_lengths = np.append(span_lengths, rng.poisson(mean_span_length, num_masked))
    cumulative = np.cumsum(span_lengths)
    num_spans = int(np.searchsorted(cumulative, num_masked)) + 1 if num_masked else 0
    span_lengths = span_lengths[:num_spans]
    span_lengths[-1:] -= cumulative[num_spans - 1 : num_spans] - num_masked
    # Spans and kept tokens are items of one sequence; all orders have the same probability.
    widths = np.ones(len(ids) - num_masked + num_spans, np.int64)
    span_positions = rng.permutation(len(widths))[:num_spans]
    widths[span_positions] = span_lengths
    item_starts = np.cumsum(widths) - widths
    infilled = np.append(ids, mask_token_id)[item_starts]  # an empty span may begin at the end
    infilled[span_positions] = mask_token_id
    return infilled.astype(np.int64)


def permute_sentences(
    ids: TokenIdArray, rng: np.random.Generator, *, sentence_end_ids: Sequence[int]
) -> NDArray[np.int64]:
    """Sentence permutation: shuffle the sentences, which end with one of `sentence_end_ids`."""
    is_end = np.isin(ids, sentence_end_ids)
    sentence_of_token: NDArray[np.int64] = np.cumsum(is_end) - is_end
    order = rng.permutation(int(is_end.sum()) + 1)
    return ids[np.argsort(order[sentence_of_token], kind="stable")].astype(np.int64)


def delete_tokens(
    ids: TokenIdArray, rng: np.random.Generator, *, delete_prob: float
) -> NDArray[np.int64]:
    """Token deletion: remove round(delete_prob · T) random tokens."""
    deleted = rng.permutation(len(ids))[: round(delete_prob * len(ids))]
    return np.delete(ids, deleted).astype(np.int64)


def rotate_document(ids: TokenIdArray, rng: np.random.Generator) -> NDArray[np.int64]:
    """Document rotation: move the tokens before a random position to the end."""
    start = int(rng.integers(max(len(ids), 1)))
    return np.roll(ids, -start).astype(np.int64)
