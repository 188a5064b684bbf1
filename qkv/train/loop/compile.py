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
from qkv.data.batches.collate import seats
from qkv.kernels.bias import Where
from qkv.nn.transformer import Cross, Memory
from qkv.train.loop.activation_checkpointing import blocks_of, forwards_kept
from qkv.train.objectives.objective import Objective

Out = tuple[Tensor, Tensor | None]


def compiled(objective: Objective, device: torch.device, *, ragged: bool) -> Objective:
    """The objective with losses that are compiled."""
    if device.type != "cpu":
        start_compilers()
    torch.compiler.config.cache_key_tag = "qkv without cudnn"  # graphs made with it lie in the same cache
    return replace(objective, parts=torch.compile(objective.parts, dynamic=ragged or None))


@contextmanager
def by_blocks(net: nn.Module, *, ragged: bool) -> Iterator[None]:
    """A network whose blocks are compiled, each kind once: blocks that are alike share a graph. One of the
    whole network takes as many times longer to make as it is deep. `ragged` rows, every batch of another
    shape, are read by one graph from the first on: lengths that are equal then are so by chance ("duck
    shapes")."""
    with forwards_kept(net), config.patch(use_duck_shape=False), warnings.catch_warnings():  # type: ignore[attr-defined]
        # dynamo asks every tensor
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
        for block in blocks_of(net):
            block.forward = biased(block.forward, ragged=ragged)  # type: ignore[method-assign]
        yield


def biased(forward: Callable[..., Out], *, ragged: bool) -> Callable[..., Out]:
    """A block's forward as a graph that is given the biases of its masks: made inside, by the first block for
    all, they would ask for a graph of their own."""

    def inside(
        x: Tensor, where: Where, seen: Tensor | None, cross: Cross | None, memory: Memory | None,
        biases: tuple[Tensor | None, Tensor | None],
    ) -> Out:  # fmt: skip
        where = given(where, biases[0])
        cross = cross and (cross[0], given(cross[1], biases[1]))
        return forward(x, where, seen, cross, memory)

    graph = torch.compile(inside, dynamic=ragged or None)

    def outside(
        x: Tensor, where: Where, seen: Tensor | None, cross: Cross | None, memory: Memory | None
    ) -> Out:
        return graph(own(x), where, seen, cross, memory, (bias_of(where), bias_of(cross and cross[1])))

    return outside


def bias_of(where: Where | None) -> Tensor | None:
    return where.bias(None) if where is not None and where.kernel == "mask" else None


def given(where: Where, bias: Tensor | None) -> Where:
    return where if bias is None else replace(where, made={"bias": bias})


def with_seats(batch: Batch) -> Batch:
    """The same batch with a seat for every token, also where there is no pad: one graph reads both."""

    def told(rows: Rows | None) -> Rows | None:
        if rows is None or rows.ids is None:
            return rows
        return replace(rows, seat=seats(rows), positions=own(rows.positions))

    return replace(batch, rows=told(batch.rows), target=told(batch.target))


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
