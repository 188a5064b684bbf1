"""Compiled: a network and its losses, compiled in place. Knows no data."""

from __future__ import annotations

import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.fx.experimental import _config as config

from qkv.batch import Batch, Rows
from qkv.kernels.where import Where
from qkv.learn.objective import Objective
from qkv.nn.stack import Block, Cross, Memory

Out = tuple[Tensor, Tensor | None]


def compiled(net: nn.Module, objective: Objective, device: torch.device, *, ragged: bool) -> Objective:
    """Compiles the network where it is, unless rows are `ragged`: then `by_blocks` does while it runs. Gives
    the objective with losses that are compiled too."""
    if device.type != "cpu":
        start_compilers()
    torch.compiler.config.cache_key_tag = "qkv without cudnn"  # graphs made with it lie in the same cache
    if not ragged:
        net.compile(dynamic=None)
    return replace(objective, parts=torch.compile(objective.parts, dynamic=ragged or None))


@contextmanager
def by_blocks(net: nn.Module) -> Iterator[None]:
    """A network for ragged rows, every batch of another shape: a graph for all shapes takes long to make, and
    as many times longer as it is deep, so one is made of a block; blocks that are alike share it. Lengths
    that are equal in the first batch are so by chance ("duck shapes")."""
    found = [(block, vars(block).get("forward")) for block in net.modules() if isinstance(block, Block)]
    for block, _ in found:
        block.forward = settled(torch.compile(block.forward, dynamic=True))  # type: ignore[method-assign]
    try:
        with config.patch(use_duck_shape=False), warnings.catch_warnings():  # type: ignore[attr-defined]
            warnings.filterwarnings(
                "ignore", "The .grad attribute of a Tensor that is not a leaf"
            )  # dynamo's own
            yield
    finally:
        for block, own in found:
            del block.forward
            if own is not None:
                block.forward = own  # type: ignore[method-assign]


def settled(forward: Callable[..., Out]) -> Callable[..., Out]:
    """A block's forward, given masks that are made already: the first block would need a graph of its own."""

    def run(x: Tensor, where: Where, seen: Tensor | None, cross: Cross | None, memory: Memory | None) -> Out:
        for each in (where, *(cross or ())[1:]):
            if each.kernel == "mask":
                each.bias(None)
        return forward(own(x), where, seen, cross, memory)

    return run


def seated(batch: Batch) -> Batch:
    """The same batch with a seat for every token, also where there is no pad: one graph reads both."""

    def seats(rows: Rows | None) -> Rows | None:
        if rows is None or rows.ids is None:
            return rows
        seat = torch.ones_like(rows.ids, dtype=torch.bool) if rows.seat is None else rows.seat
        return replace(rows, seat=seat, positions=own(rows.positions))

    return replace(batch, rows=seats(batch.rows), target=seats(batch.target))


def own(x: Tensor) -> Tensor:
    """In memory of its own: a graph is made for a view of another tensor, and one for what is no view."""
    return x if x._base is None else x.clone()


def start_compilers() -> None:
    """Starts the processes that inductor compiles in, deaf to SIGTERM.

    Who ends a run often signals all of its processes (timeout, Slurm). The trainer then saves and leaves, but
    would wait for ever for a kernel whose compiler is gone."""
    if threading.current_thread() is not threading.main_thread():  # which alone may change signals
        return
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        from torch._inductor.async_compile import AsyncCompile

        AsyncCompile.warm_pool()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
