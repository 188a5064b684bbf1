"""Drawn: the batches of a run, made ahead of the step that takes them. Knows no network.

A batch is a function of its place, so it does not matter who makes it: a thread beside the loop, or, where
noise costs more than the network, other processes."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import tee
from typing import Any, NamedTuple

import torch

from qkv.batch import Batch
from qkv.data.batches.sampler import Feed, Indices, Place
from qkv.data.store.workers import in_order
from qkv.train.objectives.objective import Objective

AHEAD = 4  # batches that a thread makes while the net works
Dealt = list[tuple[Indices, bool]]  # the examples of each part, and whether they count


class Part(NamedTuple):
    """A part of a batch, its targets and its tokens: none where it is run only for company."""

    batch: Batch
    counts: dict[str, int]
    tokens: int


class Maker:
    """Makes the parts of a batch. Sent to another process, it makes its objective anew."""

    def __init__(self, feed: Feed, objective: Objective) -> None:
        self.feed, self.objective = feed, objective

    def __call__(self, task: tuple[int, Dealt]) -> list[Part]:
        epoch, dealt = task
        return [self.part(indices, epoch, counts) for indices, counts in dealt]

    def part(self, indices: Indices, epoch: int, counts: bool) -> Part:
        batch = self.objective.collate(self.feed.draw(indices, epoch, self.objective.noise))
        found = self.objective.counts(batch)
        return Part(batch, found, size(batch)) if counts else Part(batch, dict.fromkeys(found, 0), 0)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.objective.again is None:
            raise TypeError(f"the objective {self.objective.name} is a function of the user's")
        return afar, (self.feed, self.objective.again)


def afar(feed: Feed, again: Callable[[], Objective]) -> Packing:
    return Packing(Maker(feed, again()))


class Packing(NamedTuple):
    """A maker whose batches travel: as bytes, for which no memory need be shared."""

    maker: Maker

    def __call__(self, task: tuple[int, Dealt]) -> bytes:
        made = io.BytesIO()
        Pickler(made, protocol=5).dump(self.maker(task))
        return made.getvalue()


class Pickler(pickle.Pickler):
    """Tensors as arrays: torch's own way takes ten times as long to open."""

    def reducer_override(self, x: object) -> Any:
        return (torch.from_numpy, (x.numpy(),)) if isinstance(x, torch.Tensor) else NotImplemented


def drawn(
    feed: Feed, objective: Objective, deal: Callable[[Place], Dealt], place: Place, workers: int
) -> Generator[tuple[Place, list[Part]]]:
    """Every place from this one on and its batch, made by so many processes, or by a thread."""
    maker = Maker(feed, objective)
    places, again = tee(after(feed, place))
    tasks = ((each.epoch, deal(each)) for each in again)
    if not workers:
        with closing(by_thread(maker, tasks)) as made:
            yield from zip(places, made, strict=False)
        return
    sent: Any = in_order(maker, tasks, workers)
    with closing(sent):
        yield from zip(places, map(pickle.loads, sent), strict=False)


def after(feed: Feed, place: Place) -> Iterator[Place]:
    while True:
        yield place
        place = feed.after(place)


def by_thread(maker: Maker, tasks: Iterable[tuple[int, Dealt]]) -> Generator[list[Part]]:
    pool, waiting = ThreadPoolExecutor(1), list[Future[list[Part]]]()
    try:
        for task in tasks:
            waiting.append(pool.submit(maker, task))
            if len(waiting) == AHEAD:
                yield waiting.pop(0).result()
    finally:
        pool.shutdown(cancel_futures=True)


def size(batch: Batch) -> int:
    """Tokens that a batch holds, pads left out."""
    sides = [side for side in (batch.rows, batch.target) if side is not None]
    return sum(int(s.seat.sum()) if s.seat is not None else s.size * s.length for s in sides)
