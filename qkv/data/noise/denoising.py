"""Noise: a text is damaged, to be written as it was (BART, mBART). Knows ids, no tokenizer; the tokens for
start, end and language are put around the text afterwards.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from qkv.data.store.shards import Ids

Noise = Callable[[Ids, np.random.Generator], NDArray[np.int64]]


def bart(mask: int, stops: Sequence[int]) -> tuple[Noise, ...]:
    """BART's noises, in order; `stops` are the ids that end a sentence."""
    return partial(shuffle, stops=stops), partial(infill, mask=mask, share=0.3, mean=3.0)


def mbart(mask: int, stops: Sequence[int]) -> tuple[Noise, ...]:
    """mBART's: more of the text is hidden, in longer spans."""
    return partial(shuffle, stops=stops), partial(infill, mask=mask, share=0.35, mean=3.5)


def damage(ids: Ids, rng: np.random.Generator, noises: Sequence[Noise]) -> NDArray[np.int64]:
    """A text after one noise and then the next."""
    for noise in noises:
        ids = noise(ids, rng)
    return ids.astype(np.int64)


def infill(
    ids: Ids, rng: np.random.Generator, *, mask: int, share: float = 0.3, mean: float = 3.0
) -> NDArray[np.int64]:
    """Spans of the text become one mask token each, ceil(share · T) tokens in all; those of length 0 add one.

    The lengths are drawn from Poisson's with this mean until they suffice, the last one cut to fit. Spans do
    not overlap.
    """
    if mean <= 0:
        raise ValueError(f"mean {mean}, expected more than 0: spans of no length never hide a token")
    hidden = min(math.ceil(share * len(ids)), len(ids))
    sizes = np.empty(0, np.int64)
    while sizes.sum() < hidden:
        sizes = np.append(sizes, rng.poisson(mean, hidden))
    reach = np.cumsum(sizes)
    spans = int(np.searchsorted(reach, hidden)) + 1 if hidden else 0
    sizes = sizes[:spans]
    sizes[-1:] -= reach[spans - 1 : spans] - hidden
    # Spans and kept tokens in a row: all orders have the same chance.
    widths = np.ones(len(ids) - hidden + spans, np.int64)
    places = rng.permutation(len(widths))[:spans]
    widths[places] = sizes
    read = np.append(ids, mask)[np.cumsum(widths) - widths]  # a span of length 0 may stand at the end
    read[places] = mask
    return read.astype(np.int64)


def shuffle(ids: Ids, rng: np.random.Generator, *, stops: Sequence[int]) -> NDArray[np.int64]:
    """The sentences in random order; each ends with one of `stops`, the last also without."""
    ends = np.isin(ids, stops)
    sentence: NDArray[np.int64] = np.cumsum(ends) - ends  # of each token
    turn = rng.permutation(int(ends.sum()) + 1)
    return ids[np.argsort(turn[sentence], kind="stable")].astype(np.int64)


def delete(ids: Ids, rng: np.random.Generator, *, share: float) -> NDArray[np.int64]:
    """The text without round(share · T) random tokens."""
    gone = rng.permutation(len(ids))[: round(share * len(ids))]
    return np.delete(ids, gone).astype(np.int64)


def rotate(ids: Ids, rng: np.random.Generator) -> NDArray[np.int64]:
    """The text from a random token on, then what was before it."""
    start = int(rng.integers(max(len(ids), 1)))
    return np.roll(ids, -start).astype(np.int64)
