"""torch.export programs: loaded again, at other sizes than traced, they give the outputs of the model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from qkv.export.formats import export_model
from qkv.export.graphs import Graph, build_graphs
from qkv.export.pt2 import eval_mode
from tests.export.test_graphs import CASES, build, make_inputs

FAST = {("distilbert", "sequence-classification"), ("gpt2", "lm")}
ALL = [case for case in CASES if case[1] != "causal-lm"]


def resize_examples(graph: Graph, **sizes: int) -> dict[str, torch.Tensor]:
    """Return random inputs of a graph, with these sizes of its axes."""
    inputs = {}
    for name, example in graph.example_inputs.items():
        shape = list(example.shape)
        for axis, axis_name in graph.input_axes[name].items():
            shape[axis] = sum(sizes[part] for part in axis_name.split(" + "))
        is_float = example.is_floating_point()
        inputs[name] = (
            torch.rand(shape, dtype=example.dtype) if is_float else example.new_ones(shape)
        )
    return inputs


@pytest.mark.parametrize(
    ("family", "head"),
    [pytest.param(*case, marks=() if case in FAST else pytest.mark.slow) for case in ALL],
)
def test_a_loaded_program_equals_the_model(family: str, head: str, tmp_path: Path) -> None:
    model = build(family, head)
    export_model(model, tmp_path / "pt2", to="pt2")
    for graph in build_graphs(model):
        program = torch.export.load(tmp_path / "pt2" / f"{graph.name}.pt2").module()
        for batch_size, length, cached in ((1, 1, 0), (1, 6, 0), (4, 1, 8), (2, 3, 1)):
            has_cache = any(name.startswith("past_key_values") for name in graph.input_axes)
            if has_cache or graph.name != "model":
                inputs = resize_examples(
                    graph, batch_size=batch_size, sequence_length=length,
                    past_sequence_length=cached, decoder_sequence_length=length,
                    past_decoder_sequence_length=cached, encoder_sequence_length=length + 2,
                )  # fmt: skip
            else:
                inputs = make_inputs(graph, batch_size, length + 4)
            with torch.no_grad():
                expected = graph.module(inputs)
                actual = program(inputs)
            assert actual.keys() == expected.keys()
            for name, value in expected.items():
                torch.testing.assert_close(actual[name], value, atol=1e-9, rtol=1e-9)


def test_graphs_are_traced_in_eval_mode() -> None:
    model = build("distilbert", "masked-lm").train()
    with eval_mode(model):
        assert not any(module.training for module in model.net.modules())
    assert all(module.training for module in model.net.modules())
