"""Parts: the batches of a run from a place on, in the parts that this process runs. Knows no network."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple

from qkv.batch import Batch
from qkv.data.feed import Feed, Indices, Place
from qkv.learn.objective import Objective
from qkv.learn.spread import Spread

AHEAD = 4  # batches that are made while the net works


class Part(NamedTuple):
    """A part of a batch, its targets and its tokens: none where it is run only for company."""

    batch: Batch
    counts: dict[str, int]
    tokens: int


@contextmanager
def drawn(
    feed: Feed, objective: Objective, spread: Spread, accumulate: int, start: Place
) -> Iterator[Iterator[tuple[Place, list[Part]]]]:
    """Batches from a place on, made ahead by a thread; they are functions of their place."""

    def part(indices: Indices, epoch: int, counts: bool) -> Part:
        batch = objective.collate(feed.draw(indices, epoch, objective.noise))
        found = objective.counts(batch)
        return Part(batch, found, size(batch)) if counts else Part(batch, dict.fromkeys(found, 0), 0)

    def make(place: Place) -> list[Part]:
        parts = feed.parts(place, accumulate * spread.world)
        return [part(indices, place.epoch, counts) for indices, counts in spread.deal(parts)]

    def queue() -> Iterator[tuple[Place, list[Part]]]:
        place = start
        waiting: list[tuple[Place, Future[list[Part]]]] = []
        while True:
            while len(waiting) < AHEAD:
                waiting.append((place, pool.submit(make, place)))
                place = feed.after(place)
            first, made = waiting.pop(0)
            yield first, made.result()

    pool = ThreadPoolExecutor(1)
    try:
        yield queue()
    finally:
        pool.shutdown(cancel_futures=True)


def size(batch: Batch) -> int:
    """Tokens that a batch holds, pads left out."""
    sides = [side for side in (batch.rows, batch.target) if side is not None]
    return sum(int(s.seat.sum()) if s.seat is not None else s.size * s.length for s in sides)
