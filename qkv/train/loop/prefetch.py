"""Prefetching: batches are built before the step that uses them. Does not depend on networks.

A batch depends only on the sampler state, so that it can be built by a thread of this process, or by
worker processes if noise takes longer than the network."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import tee
from typing import Any, NamedTuple

import torch

from qkv.batch import Batch
from qkv.data.batches.sampler import BatchSampler, Indices, SamplerState
from qkv.data.store.workers import map_in_order
from qkv.train.objectives.objective import Objective

NUM_PREFETCH_BATCHES = 4  # batches that the thread builds in advance
MicroBatchIndices = list[
    tuple[Indices, bool]
]  # examples of each micro-batch, and whether it counts


class MicroBatch(NamedTuple):
    """A part of a batch with its numbers of targets and tokens, which are zero if it is not counted."""

    batch: Batch
    target_counts: Mapping[str, float]
    num_tokens: int


class MicroBatchBuilder:
    """Builds the micro-batches of a batch. A pickled builder rebuilds its objective in the worker."""

    def __init__(self, sampler: BatchSampler, objective: Objective) -> None:
        self.sampler = sampler
        self.objective = objective

    def __call__(self, task: tuple[int, MicroBatchIndices]) -> list[MicroBatch]:
        epoch, micro_batches = task
        return [
            self.build_micro_batch(indices, epoch, is_counted)
            for indices, is_counted in micro_batches
        ]

    def build_micro_batch(self, indices: Indices, epoch: int, is_counted: bool) -> MicroBatch:
        noise = self.objective.train_noise or self.objective.noise
        examples = self.sampler.fetch_examples(indices, epoch, noise)
        batch = self.objective.collate(examples)
        target_counts = self.objective.count_targets(batch)
        if not is_counted:
            return MicroBatch(batch, dict.fromkeys(target_counts, 0), 0)
        return MicroBatch(batch, target_counts, count_batch_tokens(batch))

    def __reduce__(self) -> tuple[Any, ...]:
        if self.objective.rebuild is None:
            raise TypeError(
                f"objective {self.objective.name}: a custom loss function cannot be sent to worker "
                "processes; set num_workers to 0"
            )
        return rebuild_in_worker, (self.sampler, self.objective.rebuild)


def rebuild_in_worker(
    sampler: BatchSampler, rebuild_objective: Callable[[], Objective]
) -> PickledBatchBuilder:
    return PickledBatchBuilder(MicroBatchBuilder(sampler, rebuild_objective()))


class PickledBatchBuilder(NamedTuple):
    """A builder that returns batches as bytes, which need no shared memory."""

    builder: MicroBatchBuilder

    def __call__(self, task: tuple[int, MicroBatchIndices]) -> bytes:
        buffer = io.BytesIO()
        TensorPickler(buffer, protocol=5).dump(self.builder(task))
        return buffer.getvalue()


class TensorPickler(pickle.Pickler):
    """Pickles tensors as arrays, which load ten times as fast as torch's format."""

    def reducer_override(self, x: object) -> Any:
        return (torch.from_numpy, (x.numpy(),)) if isinstance(x, torch.Tensor) else NotImplemented


def prefetch_batches(
    sampler: BatchSampler,
    objective: Objective,
    assign_micro_batches: Callable[[SamplerState], MicroBatchIndices],
    sampler_state: SamplerState,
    num_workers: int,
) -> Generator[tuple[SamplerState, list[MicroBatch]]]:
    """Yield this and all later sampler states with their batches, built by workers or by a thread."""
    builder = MicroBatchBuilder(sampler, objective)
    states, task_states = tee(iterate_sampler_states(sampler, sampler_state))
    tasks = ((state.epoch, assign_micro_batches(state)) for state in task_states)
    if not num_workers:
        with closing(build_in_thread(builder, tasks)) as batches:
            yield from zip(states, batches, strict=False)
        return
    pickled: Any = map_in_order(builder, tasks, num_workers)
    with closing(pickled):
        yield from zip(states, map(pickle.loads, pickled), strict=False)


def iterate_sampler_states(
    sampler: BatchSampler, sampler_state: SamplerState
) -> Iterator[SamplerState]:
    while True:
        yield sampler_state
        sampler_state = sampler.advance(sampler_state)


def build_in_thread(
    builder: MicroBatchBuilder, tasks: Iterable[tuple[int, MicroBatchIndices]]
) -> Generator[list[MicroBatch]]:
    pool = ThreadPoolExecutor(1)
    pending: list[Future[list[MicroBatch]]] = []
    try:
        for task in tasks:
            pending.append(pool.submit(builder, task))
            if len(pending) == NUM_PREFETCH_BATCHES:
                yield pending.pop(0).result()
    finally:
        pool.shutdown(cancel_futures=True)


def count_batch_tokens(batch: Batch) -> int:
    """Return the number of tokens in a batch, without padding."""
    sides = [side for side in (batch.encoder, batch.decoder) if side is not None]
    return sum(
        int(side.attention_mask.sum())
        if side.attention_mask is not None
        else side.batch_size * side.length
        for side in sides
    )
