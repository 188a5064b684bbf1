"""How many texts are gone through: which are read together, in a network at rest, and how far it is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import torch

from qkv.kernels.attention import without_cudnn
from qkv.model.model import Model

PAUSE = 0.2  # seconds between two words on how far it is

Tell: TypeAlias = Callable[[str, int, int | None], None]  # how far it is: in words, so much, of so much
Progress: TypeAlias = bool | Tell


def by_length(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Places of rows that are read together: alike in length, no more than `budget` tokens, pads included."""
    some: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        if some and (len(some) + 1) * lengths[some[0]] > budget:
            yield some
            some = []
        some.append(place)
    if some:
        yield some


@contextmanager
def at_rest(model: Model) -> Iterator[None]:
    """Nothing is dropped, and no gradient is kept; afterwards the network trains on, if it did."""
    trains = model.net.training
    model.net.eval()
    try:
        with torch.inference_mode(), without_cudnn():
            yield
    finally:
        model.net.train(trains)


def far(name: str, before: int, some: int, total: int, progress: Progress) -> Callable[[float], None]:
    """Tells how far it is, once a share of `some` is done; `before` were done before."""
    last = 0.0

    def on_stderr(words: str, done: int, of: int | None) -> None:
        nonlocal last
        if sys.stderr.isatty() and (time.monotonic() - last > PAUSE or done == of):
            last = time.monotonic()
            print(f"\r{words}", end="\n" if done == of else "", file=sys.stderr, flush=True)

    def tell(share: float) -> None:
        done = before + int(some * share)
        if progress:
            (on_stderr if progress is True else progress)(f"{name}: {done:,} of {total:,}", done, total)

    return tell
