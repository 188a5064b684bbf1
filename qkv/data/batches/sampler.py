"""Batch samplers: the order in which the examples of a dataset are read.

A batch depends only on the seed, the epoch and its index. A run can therefore be resumed from its
SamplerState, and a batch does not depend on the number of processes that share it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qkv.data.batches.collate import Dataset, Example
from qkv.data.batches.packing import (
    bucket_by_length,
    compute_block_starts,
    compute_segment_starts,
    partition_by_tokens,
)

Indices = NDArray[np.int64]
BatchPlan = Callable[[np.random.Generator], list[Indices]]  # the batches of one epoch


def apply_no_noise(example: Example, rng: np.random.Generator) -> Example:
    """Return the example unchanged, for objectives without noise."""
    return example


class SamplerState(NamedTuple):
    """The next batch: its epoch and its index in that epoch."""

    epoch: int = 0
    batch_index: int = 0


class BatchSampler:
    """The batches of a dataset, epoch by epoch, in the order of `plan`.

    With `fixed_noise`, the noise of an example is the same in every epoch."""

    def __init__(
        self,
        dataset: Dataset,
        plan: BatchPlan,
        *,
        seed: int = 0,
        fixed_noise: bool = False,
        lengths: Indices | None = None,
    ) -> None:
        self.dataset = dataset
        self.plan = plan
        self.seed = seed
        self.fixed_noise = fixed_noise
        self.lengths = lengths  # (N,) tokens of every example; None: all have the same length
        self._epochs: dict[int, list[Indices]] = {}

    def __getstate__(self) -> dict[str, object]:
        """Omit the plan, because worker processes only fetch examples."""
        return {**self.__dict__, "plan": None, "_epochs": {}}

    def get_batches(self, epoch: int) -> list[Indices]:
        """Return the batches of an epoch; those of adjacent epochs stay cached for prefetching."""
        batches = self._epochs.get(epoch)
        if batches is None:
            batches = self.plan(np.random.default_rng((self.seed, epoch)))
            if not batches:
                raise ValueError(
                    "no training examples: is the file empty, or shorter than one row?"
                )
            neighbors = {
                number: cached
                for number, cached in self._epochs.items()
                if abs(number - epoch) == 1
            }
            self._epochs = {**neighbors, epoch: batches}  # one assignment: two threads read it
        return batches

    def count_batches(self, num_epochs: int) -> int:
        """Return the number of batches in `num_epochs` epochs, which may differ between epochs."""
        return sum(len(self.get_batches(epoch)) for epoch in range(num_epochs))

    def advance(self, state: SamplerState) -> SamplerState:
        """Return the state after this batch."""
        if state.batch_index + 1 >= len(self.get_batches(state.epoch)):
            return SamplerState(state.epoch + 1, 0)
        return SamplerState(state.epoch, state.batch_index + 1)

    def split_batch(self, state: SamplerState, num_parts: int) -> list[Indices]:
        """Split a batch into parts with similar numbers of tokens; empty parts are omitted."""
        batch = self.get_batches(state.epoch)[state.batch_index]
        if num_parts == 1:
            return [batch]
        lengths = np.ones(len(batch), np.int64) if self.lengths is None else self.lengths[batch]
        num_parts = min(num_parts, len(batch))
        return [batch[part] for part in partition_by_tokens(lengths, num_parts) if len(part)]

    def fetch_examples(
        self,
        indices: Indices,
        epoch: int,
        noise: Callable[[Example, np.random.Generator], Example],
    ) -> list[Example]:
        """Return these examples with noise; each example has a separate random generator."""
        if noise is apply_no_noise:  # creating generators takes longer than most batches
            return [self.dataset[i] for i in indices]
        noise_epoch = 0 if self.fixed_noise else epoch
        return [
            noise(self.dataset[i], np.random.default_rng((self.seed, noise_epoch, int(i))))
            for i in indices
        ]


def build_stream_sampler(
    dataset: Dataset,
    block_size: int,
    lookahead: int,
    batch_size: int,
    *,
    seed: int = 0,
    shuffle: bool = True,
    fixed_noise: bool = False,
) -> BatchSampler:
    """Build a sampler of blocks that cover a token stream once per epoch.

    The block boundaries change from epoch to epoch if the blocks are shuffled and the noise is not
    fixed."""

    def plan(rng: np.random.Generator) -> list[Indices]:
        num_spare = len(dataset) - block_size - lookahead
        move = shuffle and not fixed_noise
        offset = int(rng.integers(0, min(block_size, num_spare + 1))) if move else 0
        starts = compute_block_starts(len(dataset), block_size, offset=offset, lookahead=lookahead)
        stop = len(starts)
        if shuffle:
            starts = rng.permutation(starts)
            if stop >= batch_size:
                stop -= stop % batch_size  # drop the last, smaller batch
        return [starts[i : min(i + batch_size, stop)] for i in range(0, stop, batch_size)]

    return BatchSampler(dataset, plan, seed=seed, fixed_noise=fixed_noise)


def build_recurrent_sampler(
    dataset: Dataset, segment_length: int, lookahead: int, batch_size: int, *, seed: int = 0
) -> BatchSampler:
    """Build a sampler in which each row continues the same row of the previous batch
    (Transformer-XL)."""

    def plan(rng: np.random.Generator) -> list[Indices]:
        return list(
            compute_segment_starts(len(dataset), batch_size, segment_length, lookahead=lookahead)
        )

    return BatchSampler(dataset, plan, seed=seed)


def build_example_sampler(
    dataset: Dataset,
    lengths: NDArray[np.int64] | None = None,
    *,
    batch_size: int = 0,
    batch_tokens: int = 0,
    seed: int = 0,
    shuffle: bool = True,
    fixed_noise: bool = False,
) -> BatchSampler:
    """Build a sampler of `batch_size` examples, or of `batch_tokens` tokens, bucketed by length.

    `lengths` is (N,) or (N, fields)."""
    plan: BatchPlan = build_fixed_size_plan(len(dataset), batch_size or 1, shuffle=shuffle)
    if batch_tokens and lengths is not None:
        plan = lambda rng: bucket_by_length(lengths, batch_tokens, rng)  # noqa: E731
    longest = lengths if lengths is None or lengths.ndim == 1 else lengths.max(axis=1)
    return BatchSampler(dataset, plan, seed=seed, fixed_noise=fixed_noise, lengths=longest)


def build_fixed_size_plan(num_examples: int, batch_size: int, *, shuffle: bool = True) -> BatchPlan:
    """Build a plan of `batch_size` examples per batch; the last batch may be smaller."""

    def plan(rng: np.random.Generator) -> list[Indices]:
        order = rng.permutation(num_examples) if shuffle else np.arange(num_examples)
        return [order[i : i + batch_size] for i in range(0, num_examples, batch_size)]

    return plan
