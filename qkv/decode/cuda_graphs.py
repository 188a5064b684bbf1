"""CUDA graphs: a step with static shapes is captured once and then replayed as one call.

A graph always uses the same memory: cache buffers, lengths, and its own input and output."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

import torch
from torch import Tensor

ForwardFunction = Callable[[Tensor], tuple[Tensor, Tensor]]


class CapturedGraph(NamedTuple):
    graph: torch.cuda.CUDAGraph
    input_ids: Tensor  # input buffer
    outputs: tuple[Tensor, Tensor]  # output buffers


class CUDAGraphCache:
    """Captured steps by shape; they are discarded when the cache buffers are reallocated."""

    def __init__(self) -> None:
        self.buffer_shape: Hashable = None
        self.graphs: dict[Hashable, CapturedGraph] = {}

    def __call__(
        self, forward: ForwardFunction, input_ids: Tensor, buffer_shape: Hashable, shape: Hashable
    ) -> tuple[Tensor, Tensor]:
        """Run `forward` by replaying the graph of this shape, which is captured first."""
        if buffer_shape != self.buffer_shape:
            self.buffer_shape = buffer_shape
            self.graphs = {}
        if shape not in self.graphs:
            self.graphs[shape] = capture_cuda_graph(forward, input_ids)
        captured = self.graphs[shape]
        captured.input_ids.copy_(input_ids)
        captured.graph.replay()
        return captured.outputs


def capture_cuda_graph(forward: ForwardFunction, input_ids: Tensor) -> CapturedGraph:
    """Capture a call as a CUDA graph, after a warm-up call on a side stream as torch requires."""
    static_input_ids = input_ids.clone()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        forward(static_input_ids)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = forward(static_input_ids)
    return CapturedGraph(graph, static_input_ids, outputs)
