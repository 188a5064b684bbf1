"""Feed: examples and the order in which they come. The batch of a place is a function of the seed alone.

So a run is continued by knowing its place, and a batch is the same however many processes share it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qkv.data.batches.collate import Example, Examples
from qkv.data.batches.packing import blocks, buckets, split, streams

Indices = NDArray[np.int64]
Plan = Callable[[np.random.Generator], list[Indices]]  # the batches of an epoch, as indices of examples


def unchanged(example: Example, rng: np.random.Generator) -> Example:
    """No noise: every objective that has none names this one."""
    return example


class Place(NamedTuple):
    """Which batch of which epoch comes next."""

    epoch: int = 0
    batch: int = 0


class Feed:
    """`static`: the noise of an example is the same in every epoch."""

    def __init__(
        self, examples: Examples, plan: Plan, *, seed: int = 0, static: bool = False,
        lengths: Indices | None = None,
    ) -> None:  # fmt: skip
        self.examples, self.plan, self.seed, self.static = examples, plan, seed, static
        self.lengths = lengths  # (N,) of every example; None: they are alike
        self._epochs: dict[int, list[Indices]] = {}

    def __getstate__(self) -> dict[str, object]:
        """In another process it draws examples, and plans nothing."""
        return {**self.__dict__, "plan": None, "_epochs": {}}

    def batches(self, epoch: int) -> list[Indices]:
        """The batches of an epoch; it and its neighbours are kept, for who reads ahead and who does not."""
        found = self._epochs.get(epoch)
        if found is None:
            found = self.plan(np.random.default_rng((self.seed, epoch)))
            if not found:
                raise ValueError("no example to learn from: is the file empty, or shorter than one row?")
            near = {each: held for each, held in self._epochs.items() if abs(each - epoch) == 1}
            self._epochs = {**near, epoch: found}  # put in place at once: two threads ask
        return found

    def after(self, place: Place) -> Place:
        """The next place."""
        over = place.batch + 1 >= len(self.batches(place.epoch))
        return Place(place.epoch + 1, 0) if over else Place(place.epoch, place.batch + 1)

    def parts(self, place: Place, count: int) -> list[Indices]:
        """The batch of a place in so many parts of like size, those left out that would be empty."""
        whole = self.batches(place.epoch)[place.batch]
        if count == 1:
            return [whole]
        lengths = np.ones(len(whole), np.int64) if self.lengths is None else self.lengths[whole]
        return [whole[part] for part in split(lengths, count) if len(part)]

    def draw(
        self, indices: Indices, epoch: int, noise: Callable[[Example, np.random.Generator], Example]
    ) -> list[Example]:
        """These examples, each changed by a generator of its own."""
        if noise is unchanged:  # generators take longer to make than most batches
            return [self.examples[i] for i in indices]
        turn = 0 if self.static else epoch
        return [noise(self.examples[i], np.random.default_rng((self.seed, turn, int(i)))) for i in indices]


def stream_feed(
    stream: Examples, size: int, ahead: int, rows: int, *, seed: int = 0, shuffled: bool = True,
    static: bool = False,
) -> Feed:  # fmt: skip
    """Blocks that cover a stream once an epoch, cut at other places each time unless it is static."""

    def plan(rng: np.random.Generator) -> list[Indices]:
        spare = len(stream) - size - ahead
        offset = int(rng.integers(0, min(size, spare + 1))) if shuffled and not static else 0
        starts = blocks(len(stream), size, offset=offset, ahead=ahead)
        starts = rng.permutation(starts) if shuffled else starts
        whole = len(starts) - len(starts) % rows if shuffled and len(starts) >= rows else len(starts)
        return [starts[i : min(i + rows, whole)] for i in range(0, whole, rows)]

    return Feed(stream, plan, seed=seed, static=static)


def recurrent_feed(stream: Examples, size: int, ahead: int, rows: int, *, seed: int = 0) -> Feed:
    """Each row of a batch goes on where the same row of the last one ended (Transformer-XL)."""
    return Feed(stream, lambda rng: list(streams(len(stream), rows, size, ahead=ahead)), seed=seed)


def rows_feed(
    examples: Examples, lengths: NDArray[np.int64] | None = None, *, rows: int = 0, tokens: int = 0,
    seed: int = 0, shuffled: bool = True, static: bool = False,
) -> Feed:  # fmt: skip
    """Examples by number, or gathered by length, (N,) or (N, fields): no batch is larger than `tokens`."""
    plan: Plan = by_rows(len(examples), rows or 1, shuffled=shuffled)
    if tokens and lengths is not None:
        plan = lambda rng: buckets(lengths, tokens, rng)  # noqa: E731
    longest = lengths if lengths is None or lengths.ndim == 1 else lengths.max(axis=1)
    return Feed(examples, plan, seed=seed, static=static, lengths=longest)


def by_rows(count: int, rows: int, *, shuffled: bool = True) -> Plan:
    """So many examples a batch, each once an epoch; the last batch may be smaller."""

    def plan(rng: np.random.Generator) -> list[Indices]:
        order = rng.permutation(count) if shuffled else np.arange(count)
        return [order[i : i + rows] for i in range(0, count, rows)]

    return plan
