"""Masking of random tokens for masked language modeling (BERT, RoBERTa, ALBERT) and replaced token
detection (ELECTRA). Works on token ids and does not depend on tokenizers.

All randomness comes from the generator: one seed per epoch gives dynamic masking (RoBERTa), one seed
for all epochs gives static masking (BERT).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from qkv.data.store.shards import TokenIdArray


def list_regular_token_ids(vocab_size: int, special_token_ids: Sequence[int]) -> NDArray[np.int64]:
    """Return the ids of a vocabulary that are not special."""
    return np.setdiff1d(np.arange(vocab_size), np.asarray(special_token_ids, np.int64))


def choose_mask_positions(
    special_tokens_mask: NDArray[np.bool_],
    rng: np.random.Generator,
    *,
    mask_prob: float = 0.15,
    word_starts: NDArray[np.bool_] | None = None,
    max_ngram: int = 1,
) -> NDArray[np.bool_]:
    """Choose the tokens to predict (T,): max(1, round(mask_prob · n)) of the n regular tokens.

    BERT uses the same count (its n includes [CLS] and [SEP]). With `word_starts`, true where a word
    begins, whole words are masked. With `max_ngram`, spans of up to `max_ngram` tokens or words are
    masked, a span of n with probability proportional to 1/n; ALBERT uses 3. A span ends before a
    special token, and where the count is reached. It is skipped if it overlaps another span, or if
    its first word has more tokens than remain to be chosen, so that there may be fewer tokens than
    the count.
    """
    length = len(special_tokens_mask)
    num_regular = length - int(np.count_nonzero(special_tokens_mask))
    remaining = min(max(1, round(mask_prob * num_regular)), num_regular)
    begins = ~special_tokens_mask
    if word_starts is None and max_ngram == 1:  # equivalent, and faster
        mask = np.zeros(length, np.bool_)
        mask[rng.choice(np.flatnonzero(begins), remaining, replace=False, shuffle=False)] = True
        return mask
    chosen = bytearray(length)  # searching a span is faster than in a numpy array
    if word_starts is not None:
        begins &= word_starts | np.append(True, special_tokens_mask)[:-1]
    boundaries = np.flatnonzero(begins | special_tokens_mask)
    is_unit = begins[boundaries]  # a unit is a token or a word
    unit_starts = boundaries[is_unit].tolist()
    unit_stops = np.append(boundaries, length)[1:][is_unit].tolist()
    weights = 1 / np.arange(1, max_ngram + 1)
    num_units = len(unit_starts)
    ngrams = (1 + rng.choice(max_ngram, num_units, p=weights / weights.sum())).tolist()
    for first in rng.permutation(num_units).tolist():
        if not remaining:
            break
        start = stop = unit_starts[first]
        for unit in range(first, min(first + ngrams[first], num_units)):
            if unit_starts[unit] != stop or unit_stops[unit] - start > remaining:
                break
            stop = unit_stops[unit]
        if stop > start and chosen.find(1, start, stop) < 0:
            chosen[start:stop] = b"\1" * (stop - start)
            remaining -= stop - start
    return np.frombuffer(chosen, np.bool_)


def mask_tokens(
    ids: TokenIdArray,
    mask_positions: NDArray[np.bool_],
    rng: np.random.Generator,
    *,
    mask_token_id: int,
    regular_token_ids: TokenIdArray,
    mask_token_prob: float = 0.8,
    random_token_prob: float = 0.1,
) -> NDArray[np.int64]:
    """Replace 80% of the chosen tokens by the mask token and 10% by a random token; keep 10%.

    The labels are the original ids at all chosen positions, including unchanged ones. ELECTRA's
    generator uses mask_token_prob=0.85 and random_token_prob=0.
    """
    masked = ids.astype(np.int64)
    positions = np.flatnonzero(mask_positions)
    draws = rng.random(len(positions))
    masked[positions[draws < mask_token_prob]] = mask_token_id
    is_random = (draws >= mask_token_prob) & (draws < mask_token_prob + random_token_prob)
    positions = positions[is_random]
    masked[positions] = regular_token_ids[rng.integers(len(regular_token_ids), size=len(positions))]
    return masked
