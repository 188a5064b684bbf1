"""Span corruption (T5): random spans of a text are replaced by sentinels and form the target. Works on
token ids and does not depend on tokenizers.

text     we hold these truths to be self evident that
source   we hold X to be Y that .              X, Y: sentinels, descending ids; .: the end token
target   X these truths Y self evident .
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qkv.data.store.shards import TokenIdArray


class SpanCorruptionExample(NamedTuple):
    """The encoder's input and the decoder's target."""

    source: NDArray[np.int64]
    target: NDArray[np.int64]


def corrupt_spans(
    ids: TokenIdArray,
    rng: np.random.Generator,
    *,
    first_sentinel_id: int,
    eos_token_id: int,
    num_sentinels: int = 100,
    noise_density: float = 0.15,
    mean_span_length: float = 3.0,
) -> SpanCorruptionExample:
    """Replace random spans of a text by sentinels; `first_sentinel_id` is the highest sentinel id.

    The target does not end with a sentinel, as in T5's code; a figure of its paper shows one.
    """
    num_spans = _count_noise_spans(len(ids), noise_density, mean_span_length)[1]
    if num_spans > num_sentinels:
        raise ValueError(
            f"{num_spans} spans in {len(ids)} tokens, but only {num_sentinels} sentinels; "
            "truncate the text, or use a larger mean_span_length"
        )
    noise_mask = sample_span_noise_mask(
        len(ids), rng, noise_density=noise_density, mean_span_length=mean_span_length
    )
    return SpanCorruptionExample(
        _replace_spans_with_sentinels(ids, noise_mask, first_sentinel_id, eos_token_id),
        _replace_spans_with_sentinels(ids, ~noise_mask, first_sentinel_id, eos_token_id),
    )


def sample_span_noise_mask(
    length: int,
    rng: np.random.Generator,
    *,
    noise_density: float = 0.15,
    mean_span_length: float = 3.0,
) -> NDArray[np.bool_]:
    """Sample a noise mask of round(noise_density · length) tokens (T,), as T5 does.

    They form round(tokens / mean_span_length) spans. There is at least one noise token and one other
    token. Other spans and noise spans alternate; a noise span comes last. All such masks have the
    same probability.
    """
    num_noise, num_spans = _count_noise_spans(length, noise_density, mean_span_length)
    noise_lengths = _random_segmentation(num_noise, num_spans, rng)
    kept_lengths = _random_segmentation(max(length, 2) - num_noise, num_spans, rng)
    span_lengths = np.stack([kept_lengths, noise_lengths], axis=1).reshape(-1)
    return np.repeat(np.arange(2 * num_spans) % 2 == 1, span_lengths)[:length]


def compute_input_and_target_lengths(
    source_length: int, *, noise_density: float = 0.15, mean_span_length: float = 3.0
) -> tuple[int, int]:
    """Return the length of the longest text whose source has `source_length` tokens, and the length
    of its target.

    T5 is trained on sources of 512 tokens, from texts of 568 tokens.
    """
    if source_length < 3:
        raise ValueError(
            f"source_length {source_length}, expected at least 3: a token, a sentinel and the end"
        )

    def compute_source_length(text_length: int) -> int:
        num_noise, num_spans = _count_noise_spans(text_length, noise_density, mean_span_length)
        return text_length - num_noise + num_spans + 1

    text_length = source_length - 1
    while compute_source_length(text_length + 1) <= source_length:
        text_length += 1
    num_noise, num_spans = _count_noise_spans(text_length, noise_density, mean_span_length)
    return text_length, num_noise + num_spans + 1


def _count_noise_spans(
    length: int, noise_density: float, mean_span_length: float
) -> tuple[int, int]:
    """Return the number of noise tokens and of noise spans; a shorter text counts as two tokens."""
    length = max(length, 2)
    num_noise = min(max(round(length * noise_density), 1), length - 1)
    num_spans = min(max(round(num_noise / mean_span_length), 1), num_noise, length - num_noise)
    return num_noise, num_spans


def _random_segmentation(
    num_items: int, num_segments: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Sample positive lengths that sum to `num_items`, uniformly."""
    boundaries = 1 + np.sort(rng.permutation(num_items - 1)[: num_segments - 1])
    return np.diff(boundaries, prepend=0, append=num_items)


def _replace_spans_with_sentinels(
    ids: TokenIdArray, noise_mask: NDArray[np.bool_], first_sentinel_id: int, eos_token_id: int
) -> NDArray[np.int64]:
    """Replace each noise span by one sentinel and append the end token."""
    is_first = noise_mask & ~np.append(False, noise_mask)[:-1]
    replaced = np.where(is_first, first_sentinel_id + 1 - np.cumsum(is_first), ids)
    return np.append(replaced[is_first | ~noise_mask], eos_token_id)
