"""Spans: stretches of a text are taken out and asked for, a sentinel in the place of each (T5). Knows ids, no
tokenizer.

text     we hold these truths to be self evident that
source   we hold X to be Y that .              X, Y: sentinels, falling by one; .: the end token
target   X these truths Y self evident .
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qkv.data.store.shards import Ids


class Corrupted(NamedTuple):
    """What an encoder reads, and what a decoder writes."""

    source: NDArray[np.int64]
    target: NDArray[np.int64]


def corrupt(
    ids: Ids, rng: np.random.Generator, *, sentinel: int, end: int, sentinels: int = 100,
    density: float = 0.15, mean: float = 3.0,
) -> Corrupted:  # fmt: skip
    """A text without random spans, and the spans; `sentinel` is the first of `sentinels` ids, the highest.

    No sentinel closes the target: T5's code has none, though a figure of its paper does.
    """
    spans = _counts(len(ids), density, mean)[1]
    if spans > sentinels:
        advice = "cut the text, or take longer spans"
        raise ValueError(f"{spans} spans in {len(ids)} tokens, but only {sentinels} sentinels; {advice}")
    noise = choose(len(ids), rng, density=density, mean=mean)
    return Corrupted(_collapsed(ids, noise, sentinel, end), _collapsed(ids, ~noise, sentinel, end))


def choose(
    length: int, rng: np.random.Generator, *, density: float = 0.15, mean: float = 3.0
) -> NDArray[np.bool_]:
    """T5's noise: round(density · length) tokens in round(tokens / mean) spans, at least one and not all.

    Kept and taken spans take turns; a kept one comes first, a taken one last. All ways have the same chance.
    """
    tokens, spans = _counts(length, density, mean)
    taken = _parts(tokens, spans, rng)
    kept = _parts(max(length, 2) - tokens, spans, rng)
    turns = np.stack([kept, taken], axis=1).reshape(-1)
    return np.repeat(np.arange(2 * spans) % 2 == 1, turns)[:length]


def lengths(source: int, *, density: float = 0.15, mean: float = 3.0) -> tuple[int, int]:
    """The length of the longest text whose corrupted source has `source` tokens, and of its target.

    T5 trains on sources of 512 tokens, made of texts of 568.
    """
    if source < 3:
        raise ValueError(f"source {source}, expected at least 3: a token, a sentinel and the end")

    def read(text: int) -> int:
        tokens, spans = _counts(text, density, mean)
        return text - tokens + spans + 1

    text = source - 1
    while read(text + 1) <= source:
        text += 1
    tokens, spans = _counts(text, density, mean)
    return text, tokens + spans + 1


def _counts(length: int, density: float, mean: float) -> tuple[int, int]:
    """How many tokens are taken, in how many spans; a shorter text is taken for one of two tokens."""
    length = max(length, 2)
    tokens = min(max(round(length * density), 1), length - 1)
    return tokens, min(max(round(tokens / mean), 1), tokens, length - tokens)


def _parts(items: int, parts: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Lengths, none of them 0, that add up to `items`; all ways have the same chance."""
    cuts = 1 + np.sort(rng.permutation(items - 1)[: parts - 1])
    return np.diff(cuts, prepend=0, append=items)


def _collapsed(ids: Ids, away: NDArray[np.bool_], sentinel: int, end: int) -> NDArray[np.int64]:
    """The ids with a sentinel for each run that is away, and the end."""
    first = away & ~np.append(False, away)[:-1]
    read = np.where(first, sentinel + 1 - np.cumsum(first), ids)
    return np.append(read[first | ~away], end)
