"""Writer: which network writes for a model: its own, or a copy of it that is laid out for speed.

On a CPU a prepared copy (`decode.prepare`) is quicker where several rows step together, and says the same.
Making it takes as long as it saves in `PAYS` steps: it is made once the network itself has gone through so
many, so that no single short text waits for it. What becomes of the network later, by training or an adapter,
is noticed: a copy of what it was is dropped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from qkv.decode import Engine, prepare
from qkv.nn.transformer import Transformer

ROWS = 4  # fewer are as quick in the network itself
PAYS = 64  # steps
LARGEST = 1 << 32  # bytes of weights, which are there twice then


@dataclass
class Known:
    """A network as it is now: its tensors and their versions, the steps that it went through, its copy."""

    marks: list[tuple[int, int]]
    steps: int = 0
    copy: Transformer | None = None


_known: WeakKeyDictionary[Transformer, Known] = WeakKeyDictionary()


@contextmanager
def writer(net: Transformer, rows: int) -> Iterator[Engine]:
    """An engine for so many rows that step together."""
    if rows < ROWS or not fits(net):
        yield Engine(net)
        return
    marks = [(x.data_ptr(), x._version) for x in held(net)]
    known = _known.get(net)
    if known is None or known.marks != marks:
        known = _known[net] = Known(marks)
    if known.copy is None and known.steps >= PAYS:
        known.copy = prepare(net)
    engine = Engine(known.copy or net)
    yield engine
    known.steps += engine.steps


def held(net: nn.Module) -> list[Tensor]:
    return [*net.parameters(), *net.buffers()]


def fits(net: nn.Module) -> bool:
    """May a copy stand for it? Not where it is no quicker, nor where someone looks into the network."""
    tensors = held(net)
    return (
        all(x.device.type == "cpu" and not x.is_inference() for x in tensors)  # which have no versions
        and all(x.dtype == torch.float32 for x in tensors if x.is_floating_point())
        and sum(x.nbytes for x in tensors) <= LARGEST
        and net._compiled_call_impl is None
        and not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
    )
