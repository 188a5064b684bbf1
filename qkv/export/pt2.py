"""torch.export programs (.pt2): graphs that torch runs without this library."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.export import Dim, ExportedProgram
from torch.nn.attention import SDPBackend, sdpa_kernel

from qkv.export.graphs import Graph, build_graphs
from qkv.model.model import Model


def export_pt2(model: Model, folder: Path) -> None:
    """Write each graph of a model as a program: `torch.export.load(path).module()(inputs)`."""
    with eval_mode(model):
        programs = {graph.name: trace_graph(graph) for graph in build_graphs(model)}
    model.save_config(folder)
    for name, program in programs.items():
        torch.export.save(program, folder / f"{name}.pt2")


def trace_graph(graph: Graph) -> ExportedProgram:
    """Trace a graph with dynamic axes.

    The math kernel is traced, because the layout of the output of a fused kernel depends on the
    device and on the bias."""
    names = {name for axes in graph.input_axes.values() for name in axes.values()}
    dims = {name: Dim(name.replace(" + ", "_plus_")) for name in names}
    dynamic_shapes = {
        name: {axis: dims[axis_name] for axis, axis_name in axes.items()}
        for name, axes in graph.input_axes.items()
    }
    with warnings.catch_warnings(), torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        warnings.simplefilter("ignore")  # deprecated functions that torch calls itself
        return torch.export.export(
            graph.module, (graph.example_inputs,), dynamic_shapes=(dynamic_shapes,), strict=True
        )


@contextmanager
def eval_mode(model: Model) -> Iterator[None]:
    """Trace without dropout, and restore the mode afterwards."""
    was_training = model.net.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
