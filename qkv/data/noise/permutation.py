"""Order: which tokens of a text are guessed, in which order, and who may see whom (XLNet). Knows no ids.

rank      2  -1   0  -1   1     guessed in the order 0, 1, 2; a token of rank -1 is not guessed but given
permute   1   0   0   0   0     a guessed token sees the given ones and those guessed before it, not itself
          1   0   1   0   1     a given one sees the given ones alone: it would tell what else it saw
          1   0   1   0   1
          1   0   1   0   1     1: the token of this row may not see the token of this column
          1   0   0   0   1
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Order(NamedTuple):
    """An order of guessing for a text of T tokens, P of which are guessed."""

    rank: NDArray[np.int64]  # (T,)
    permute: NDArray[np.bool_]  # (T, T)
    targets: NDArray[np.int64]  # (P,) the places of the guessed tokens, rising

    @property
    def one_hot(self) -> NDArray[np.float32]:
        """The targets as (P, T), one 1 in each row."""
        return np.eye(len(self.rank), dtype=np.float32)[self.targets]


def order(
    special: NDArray[np.bool_], rng: np.random.Generator, *, window: int = 6, longest: int = 5,
    count: int | None = None, reuse: int = 0,
) -> Order:  # fmt: skip
    """A random order over random targets, about one token in `window`; special tokens are given.

    The targets are spans of 1 to `longest` tokens, each at random within a stretch `window` times as long.
    With `count` there are exactly so many, that rows of a batch may be stacked: spans are left out, or single
    tokens added, at random. The first `reuse` tokens see none of the others, which see them all: they are a
    memory for the next row, which begins after them, and must not know what it guesses.
    """
    chosen = _targets(special, rng, window, longest, count)
    rank = np.append(rng.permutation(reuse), reuse + rng.permutation(len(special) - reuse))
    rank[~chosen] = -1
    permute = unseen(rank)
    permute[:reuse, reuse:] = True
    permute[reuse:, :reuse] = False
    return Order(rank, permute, np.flatnonzero(chosen))


def unseen(rank: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The tokens that each token may not see (T, T): those guessed together with it or later."""
    return (rank[:, None] <= rank[None, :]) & (rank >= 0)[None, :]


def _targets(
    special: NDArray[np.bool_], rng: np.random.Generator, window: int, longest: int, count: int | None
) -> NDArray[np.bool_]:
    length = len(special)
    sizes = rng.integers(1, longest + 1, size=-(-length // window))  # as many windows as the text can have
    ends = np.cumsum(sizes)
    begins = window * (ends - sizes) + rng.integers(0, (window - 1) * sizes + 1)
    number = np.repeat(np.arange(len(sizes)), sizes)
    places = (begins - (ends - sizes))[number] + np.arange(len(number))
    within = places < length
    span = np.full(length, -1)  # which one a token is of
    span[places[within]] = number[within]
    chosen = (span >= 0) & ~special
    if count is None:
        return chosen
    free = length - int(special.sum())
    if count > free:
        raise ValueError(
            f"count {count}, expected at most {free}: the tokens of the text that are not special"
        )
    turn = np.where(chosen, rng.permutation(len(sizes))[span], len(sizes) + rng.permutation(length))
    turn[special] = len(sizes) + length
    exact = np.zeros(length, np.bool_)
    exact[np.argsort(turn, kind="stable")[:count]] = True
    return exact
