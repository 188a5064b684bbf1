"""ONNX files with the names that Hugging Face's Optimum gives to files, inputs, outputs and axes."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.onnx import ONNXProgram

from qkv.export.graphs import Graph, build_graphs
from qkv.export.pt2 import eval_mode, trace_graph
from qkv.model.model import Model
from qkv.model.transforms.hf_family import convert_to_hf_family, find_unsupported_part

REQUIRED_PACKAGES = ("onnx", "onnxscript")


def export_onnx(model: Model, folder: Path) -> None:
    """Write each graph of a model as an ONNX file, with its config and tokenizer."""
    missing = [name for name in REQUIRED_PACKAGES if find_spec(name) is None]
    if missing:
        raise ValueError(
            f"export to ONNX needs the packages {' and '.join(missing)}: pip install 'qkv[onnx]'"
        )
    if model.family.hf_family and find_unsupported_part(model) is None:
        model = convert_to_hf_family(model)  # Optimum reads config.json of models that it knows
    with eval_mode(model):
        programs = {graph.name: convert_graph(graph) for graph in build_graphs(model)}
    model.save_config(folder)
    for name, program in programs.items():
        program.save(folder / f"{name}.onnx")


def convert_graph(graph: Graph) -> ONNXProgram:
    """Convert a graph to ONNX, with Optimum's names of inputs, outputs and dynamic axes."""
    exported = trace_graph(graph)
    with quiet_exporter(), torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        program = torch.onnx.export(
            exported,
            input_names=list(graph.example_inputs),
            output_names=list(graph.output_axes),
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    axes_by_name = graph.input_axes | graph.output_axes
    for value in (*program.model.graph.inputs, *program.model.graph.outputs):
        assert value.shape is not None
        for axis, axis_name in axes_by_name[str(value.name)].items():
            value.shape[axis] = axis_name
    return program


@contextmanager
def quiet_exporter() -> Iterator[None]:
    """Hide the warnings of torch's exporter about its own deprecated functions and about packages
    that are not installed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
