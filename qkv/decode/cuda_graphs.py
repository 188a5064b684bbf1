"""Graphs: a step of static shapes is recorded once by CUDA, and then replayed as one call.

What is recorded reads and writes the same memory ever after: buffers, counts, and the ids that are given."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

import torch
from torch import Tensor

Run = Callable[[Tensor], tuple[Tensor, Tensor]]


class Recorded(NamedTuple):
    graph: torch.cuda.CUDAGraph
    ids: Tensor  # where those of a step are put
    out: tuple[Tensor, Tensor]  # where its results are found


class Graphs:
    """Recorded steps by what their shapes depend on; a new room for buffers makes the old ones useless."""

    def __init__(self) -> None:
        self.room: Hashable = None
        self.made: dict[Hashable, Recorded] = {}

    def __call__(self, run: Run, ids: Tensor, room: Hashable, shape: Hashable) -> tuple[Tensor, Tensor]:
        if ids.device.type != "cuda":
            return run(ids)
        if room != self.room:
            self.room, self.made = room, {}
        if shape not in self.made:
            self.made[shape] = record(run, ids)
        graph, given, out = self.made[shape]
        given.copy_(ids)
        graph.replay()
        return out


def record(run: Run, ids: Tensor) -> Recorded:
    """A run to make what is made once, on a stream of its own as CUDA wants it; then one that is recorded."""
    given, stream = ids.clone(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run(given)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run(given)
    return Recorded(graph, given, out)
