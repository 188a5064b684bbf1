"""ONNX files in onnxruntime: the outputs and generated ids of the model, at other sizes than traced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import qkv
from qkv.export.formats import export_model
from qkv.export.graphs import build_graphs
from tests.export.test_graphs import CASES, build, make_inputs, select_tokens
from tests.support import saved_models, tiny
from tests.support.onnx_models import OnnxModel, generate_greedily, translate_greedily

STEPS = 32
SETTINGS: dict[str, Any] = dict(max_new_tokens=STEPS, eos_token_id=None)
# One model of each kind runs in every test run, the others in `make slow`.
FAST_FORWARD = {("bert", "question-answering"), ("clip", "both")}
FAST_DECODERS = {"llama"}
FAST_SEQ2SEQ = {"t5"}


def mark(is_fast: bool) -> Any:
    return () if is_fast else pytest.mark.slow


def is_forward(family: str, head: str) -> bool:
    """Return whether a model is exported as one forward pass."""
    if head == "causal-lm":
        return False  # BART's decoder, which cannot be exported
    graphs = build_graphs(build(family, head))
    return len(graphs) == 1 and "position_ids" not in graphs[0].input_axes


FORWARD = [pytest.param(*case, marks=mark(case in FAST_FORWARD)) for case in CASES]
DECODERS = [
    pytest.param(name, marks=mark(name in FAST_DECODERS))
    for name in ("gpt", "gpt2", "gpt3", "ctrl", "llama", "sparse")
]
SEQ2SEQ = [
    pytest.param(name, marks=mark(name in FAST_SEQ2SEQ))
    for name in ("transformer", "bart", "mbart", "marian", "t5")
]


@pytest.mark.parametrize(("family", "head"), FORWARD)
def test_outputs_in_onnxruntime_equal_those_of_the_model(
    family: str, head: str, tmp_path: Path
) -> None:
    if not is_forward(family, head):
        pytest.skip("a decoder, see below")
    model = build(family, head).to(torch.float32)
    export_model(model, tmp_path / "onnx", to="onnx")
    session = OnnxModel(tmp_path / "onnx" / "model.onnx")
    (graph,) = build_graphs(model)
    assert session.inputs.keys() == graph.input_axes.keys()
    for name, axes in graph.input_axes.items():
        assert {axis: session.inputs[name][axis] for axis in axes} == axes
    for name, axes in graph.output_axes.items():
        assert {axis: session.outputs[name][axis] for axis in axes} == axes
    results = []
    for batch_size, length in ((1, 5), (3, 9), (2, 30)):
        inputs = make_inputs(graph, batch_size, length)
        inputs_32 = {name: x.float() if x.is_floating_point() else x for name, x in inputs.items()}
        with torch.no_grad():
            results.append((inputs, graph.module(inputs_32), session(inputs_32)))
    (exact_graph,) = build_graphs(model.to(torch.float64))
    for inputs, expected, actual in results:
        inputs_64 = {name: x.double() if x.is_floating_point() else x for name, x in inputs.items()}
        with torch.no_grad():
            exact = exact_graph.module(inputs_64)
        assert actual.keys() == expected.keys() == exact.keys()
        mask = inputs.get("attention_mask")
        for name, value in exact.items():
            value = select_tokens(value, mask)
            rounding = (select_tokens(expected[name], mask).double() - value).abs().max().item()
            # onnxruntime may round differently than torch does, but not much worse.
            torch.testing.assert_close(
                select_tokens(torch.from_numpy(actual[name]), mask).double(), value,
                atol=2e-5 + 4 * rounding, rtol=1e-4,
            )  # fmt: skip


def make_prompts(batch_size: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and a mask with padding on the left."""
    input_ids = tiny.random_ids(batch_size, length, seed=length)
    mask = torch.ones_like(input_ids)
    if batch_size > 1:
        mask[0, : length // 2] = mask[1, :1] = 0
    return input_ids, mask


SIZES = ((1, 1), (1, 7), (3, 9), (5, 4))


@pytest.mark.parametrize("family", DECODERS)
def test_decoders_generate_the_same_ids(family: str, tmp_path: Path) -> None:
    model = tiny.build(family, dtype=torch.float32, tie_embeddings=False, depth=1)
    saved_models.vary_generated_ids(model)
    export_model(model, tmp_path / "onnx", to="onnx")
    generated = set()
    for size in SIZES:
        input_ids, mask = make_prompts(*size)
        actual = generate_greedily(tmp_path / "onnx", input_ids, mask, STEPS)
        expected = [
            model.generate(row[keep][None], **SETTINGS)[0, -STEPS:]
            for row, keep in zip(input_ids, mask.bool(), strict=True)
        ]
        np.testing.assert_array_equal(actual, torch.stack(expected).numpy())
        generated |= {*actual.flatten().tolist()}
    assert len(generated) > 5


@pytest.mark.parametrize("family", SEQ2SEQ)
def test_encoder_decoders_generate_the_same_ids(family: str, tmp_path: Path) -> None:
    model = tiny.build(family, dtype=torch.float32, tie_embeddings=False, depth=1, decoder_depth=1)
    saved_models.vary_generated_ids(model)
    folder = tmp_path / "onnx"
    export_model(model, folder, to="onnx")
    start = model.args["decoder_start_token_id"] or 0
    generated = set()
    for size in SIZES:
        input_ids, mask = make_prompts(*size)
        actual = translate_greedily(folder, input_ids, mask, start, STEPS)
        expected = model.generate(input_ids, mask, decoder_start_token_id=start, **SETTINGS)
        np.testing.assert_array_equal(actual, expected[:, 1:].numpy())
        generated |= {*actual.flatten().tolist()}
    assert len(generated) > 2
    if family == "transformer":
        assert json.loads((folder / "config.json").read_text())["model_type"] == "marian"


@pytest.mark.slow
def test_half_precision(tmp_path: Path) -> None:
    model = build("distilbert", "masked-lm").to(torch.float16)
    export_model(model, tmp_path / "onnx", to="onnx")
    proto = onnx.load(tmp_path / "onnx" / "model.onnx")
    types = {tensor.data_type for tensor in proto.graph.initializer if len(tensor.dims) == 2}
    assert types == {onnx.TensorProto.FLOAT16}
    ids, mask = make_prompts(3, 9)
    actual = OnnxModel(tmp_path / "onnx" / "model.onnx")({"input_ids": ids, "attention_mask": mask})
    with torch.no_grad():
        expected = model.to(torch.float32)(ids, attention_mask=mask).logits
    scale = float(expected.abs().max())
    difference = torch.from_numpy(actual["logits"]).float() - expected
    assert float(difference[mask.bool()].abs().max()) < 0.02 * scale


@pytest.mark.slow
def test_a_folder_has_config_tokenizer_and_generation_config(tmp_path: Path) -> None:
    """The built-in translation model has an embedding of 8,000 tokens and 10 layers."""
    model = qkv.load("builtin:translate")
    export_model(model, tmp_path / "onnx", to="onnx")
    names = {path.name for path in (tmp_path / "onnx").iterdir()}
    assert names == {
        "encoder_model.onnx", "decoder_model.onnx", "decoder_with_past_model.onnx", "config.json",
        "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    } | ({"generation_config.json"} if model.generation_config is not None else set())  # fmt: skip
    tokenizer = model.tokenizer
    assert tokenizer is not None
    texts = ["Wo ist der Bahnhof?", "Das Haus ist alt."]
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    start = model.args["decoder_start_token_id"]
    actual = translate_greedily(tmp_path / "onnx", ids, mask, start, STEPS)
    expected = model.generate(ids, mask, num_beams=1, **SETTINGS)
    np.testing.assert_array_equal(actual, expected[:, 1:].numpy())
