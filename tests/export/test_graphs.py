"""Graphs of plain tensors: the same outputs as the model, for every family and head."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from qkv.export.graphs import Graph, build_graphs
from qkv.families import list_families
from qkv.nn.network import Network
from tests.support import tiny
from tests.support.limits import get_error_message

REFUSED = {"transformer-xl": "segment memory", "switch": "a mixture of experts"}
REFUSED |= dict.fromkeys(tiny.RECURRENT_DECODERS, "recurrent layers")
CASES = [
    (family.name, head)
    for family in list_families()
    if family.name not in REFUSED
    for head in family.heads
    if head != "question-answering-beam"
]
IMAGE_SHAPE = (3, 3, 12, 12)


def build(family: str, head: str) -> qkv.Model:
    is_causal = head == "lm" and family in ("bert", "roberta", "electra")
    changes: dict[str, Any] = dict(is_decoder=True) if is_causal else {}
    return tiny.build(family, head=head, **changes)


def make_inputs(graph: Graph, batch_size: int, length: int) -> dict[str, Any]:
    """Return inputs of another size than the examples; the first rows have padding."""
    names = graph.input_axes
    shape: tuple[int, ...] = (batch_size, length)
    if "num_choices" in names.get("input_ids", {}).values():
        shape = (batch_size, 2, length)
    inputs: dict[str, Tensor] = {}
    if "input_ids" in names:
        inputs["input_ids"] = tiny.random_ids(*shape)
        for offset, end_token_id in enumerate((1, 2, 7)):  # of T5, BART and CLIP
            inputs["input_ids"][..., offset + 2] = end_token_id
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        if batch_size > 1:
            inputs["attention_mask"][0, ..., length - 2 :] = 0
            inputs["attention_mask"][1, ..., :2] = 0
    if "token_type_ids" in names:
        inputs["token_type_ids"] = inputs["input_ids"] % 2
    if "mc_token_ids" in names:
        inputs["mc_token_ids"] = torch.full(shape[:2], 3)
    if "pixel_values" in names:
        has_frames = "num_frames" in names["pixel_values"].values()
        pixel_shape = (batch_size, length, 2, 12, 12) if has_frames else IMAGE_SHAPE
        inputs["pixel_values"] = torch.rand(pixel_shape, dtype=torch.float64)
    return inputs


def select_tokens(output: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Return an output without those of padding."""
    if attention_mask is None:
        return output
    if output.shape[: attention_mask.dim()] != attention_mask.shape:
        return output
    return output[attention_mask.bool()]


@pytest.mark.parametrize(("family", "head"), CASES)
@torch.no_grad()
def test_a_forward_graph_equals_the_model(family: str, head: str) -> None:
    model = build(family, head)
    if head == "causal-lm":  # BART's decoder
        assert "cross-attention without an encoder" in get_error_message(
            lambda: build_graphs(model)
        )
        return
    graphs = build_graphs(model)
    if len(graphs) > 1 or "position_ids" in graphs[0].input_axes:
        return  # decoders, which the tests below run
    for batch_size, length in ((1, 6), (3, 9)):
        inputs = make_inputs(graphs[0], batch_size, length)
        expected = model(**inputs)
        actual = graphs[0].module(inputs)
        assert actual.keys() == graphs[0].output_axes.keys()
        for name, value in actual.items():
            name_here = "logits" if name == "logits_per_image" else name
            reference = expected["logits"].T if name == "logits_per_text" else expected[name_here]
            if name_here == "logits" and "mc_logits" in expected and "mc_logits" not in actual:
                reference = expected["mc_logits"]
            mask = inputs.get("attention_mask")
            torch.testing.assert_close(
                select_tokens(value, mask), select_tokens(reference, mask), atol=1e-9, rtol=1e-9
            )


def test_heads_of_encoders_have_optimum_names() -> None:
    outputs = {
        "none": ["last_hidden_state", "pooler_output"],
        "masked-lm": ["logits"],
        "sequence-classification": ["logits"],
        "token-classification": ["logits"],
        "multiple-choice": ["logits"],
        "question-answering": ["start_logits", "end_logits"],
    }
    for head, names in outputs.items():
        graph = build_graphs(build("bert", head))[0]
        assert list(graph.output_axes) == names
        assert list(graph.input_axes) == ["input_ids", "attention_mask", "token_type_ids"]
    single_type = tiny.build("roberta", type_vocab_size=1)
    assert list(build_graphs(single_type)[0].input_axes) == ["input_ids", "attention_mask"]
    axes = build_graphs(build("bert", "multiple-choice"))[0].output_axes["logits"]
    assert axes == {0: "batch_size", 1: "num_choices"}


# --- decoders ---


@torch.no_grad()
def generate(graph: Graph, input_ids: Tensor, attention_mask: Tensor, steps: int) -> Tensor:
    """Return the logits (B, T + steps, V) of prompts and of the tokens that follow greedily."""
    past = {
        name: value[: len(input_ids), :, :0].expand(len(input_ids), -1, -1, -1)
        for name, value in graph.example_inputs.items()
        if name.startswith("past_key_values")
    }
    all_logits = []
    for _ in range(steps):
        positions = (attention_mask.cumsum(1) - 1).clamp(min=0)[:, -input_ids.shape[1] :]
        out = graph.module(
            {
                "input_ids": input_ids,
                "attention_mask": attention_mask,
                "position_ids": positions,
                **past,
            }
        )
        past = {name: out[name.replace("past_key_values", "present")] for name in past}
        all_logits.append(out["logits"])
        input_ids = out["logits"][:, -1:].argmax(-1)
        attention_mask = torch.cat([attention_mask, torch.ones_like(input_ids)], dim=1)
    return torch.cat(all_logits, dim=1)


DECODERS = ("gpt", "gpt2", "gpt3", "ctrl", "llama", "sparse")


@pytest.mark.parametrize("family", DECODERS)
def test_a_decoder_graph_with_its_cache_equals_the_model(family: str) -> None:
    model = build(family, "lm")
    (graph,) = build_graphs(model)
    input_ids = tiny.random_ids(3, 6)
    mask = torch.ones_like(input_ids)
    mask[0, :4] = mask[1, :1] = 0
    logits = generate(graph, input_ids, mask, 10)
    for row, keep in enumerate(mask.bool()):
        ids = input_ids[row, keep]
        with torch.no_grad():
            new = [step.argmax() for step in logits[row, 5:-1]]
            expected = model(torch.cat([ids, torch.stack(new)])[None]).logits[0]
        torch.testing.assert_close(logits[row, 6 - len(ids) :], expected, atol=1e-9, rtol=1e-9)


@torch.no_grad()
def test_positions_of_a_decoder_may_begin_anywhere() -> None:
    """Cached keys have positions next to those of the new tokens, also if these count padding."""
    model = build("gpt3", "lm")  # attention to the last three positions
    (graph,) = build_graphs(model)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1]])
    ids = tiny.random_ids(1, 8)
    positions = torch.arange(8)[None]
    out = {
        name.replace("past_key_values", "present"): value[:1, :, :0]
        for name, value in graph.example_inputs.items()
        if name.startswith("past_key_values")
    }
    logits = []
    for start, end in ((0, 5), (5, 7), (7, 8)):
        past = {
            name.replace("present", "past_key_values"): value
            for name, value in out.items()
            if name.startswith("present")
        }
        new = slice(start, end)
        named = {"input_ids": ids[:, new], "position_ids": positions[:, new]}
        out = graph.module({**named, "attention_mask": mask[:, :end], **past})
        logits.append(out["logits"])
    expected = model(ids, attention_mask=mask, position_ids=positions).logits
    actual = torch.cat(logits, dim=1)
    torch.testing.assert_close(actual[:, 2:], expected[:, 2:], atol=1e-9, rtol=1e-9)


@torch.no_grad()
@pytest.mark.parametrize("head", ["lm", "none"])
@pytest.mark.parametrize("family", ["transformer", "bart", "mbart", "marian", "t5"])
def test_graphs_of_an_encoder_decoder_equal_the_model(family: str, head: str) -> None:
    model = build(family, head)
    encoder, first, later = build_graphs(model)
    assert [graph.name for graph in (encoder, first, later)] == [
        "encoder_model", "decoder_model", "decoder_with_past_model",
    ]  # fmt: skip
    source, target = tiny.random_ids(3, 8), tiny.random_ids(3, 7, seed=1)
    mask = torch.ones_like(source)
    mask[0, 5:] = mask[1, :2] = 0
    expected: Any = model(source, attention_mask=mask, decoder_input_ids=target)
    output = "logits" if head == "lm" else "last_hidden_state"
    states = encoder.module({"input_ids": source, "attention_mask": mask})["last_hidden_state"]
    keys = {"encoder_attention_mask": mask}
    out = first.module({"input_ids": target[:, :3], "encoder_hidden_states": states, **keys})
    assert list(out) == list(first.output_axes)
    outputs = [out[output]]
    past: dict[str, Tensor] = {}
    for step in (slice(3, 5), slice(5, 6), slice(6, 7)):
        past |= {
            name.replace("present", "past_key_values"): value
            for name, value in out.items()
            if name.startswith("present")
        }
        assert past.keys() == later.input_axes.keys() - {"input_ids", "encoder_attention_mask"}
        out = later.module({"input_ids": target[:, step], **keys, **past})
        assert list(out) == list(later.output_axes)
        outputs.append(out[output])
    torch.testing.assert_close(torch.cat(outputs, 1), expected[output], atol=1e-9, rtol=1e-9)


def test_caches_have_optimum_names_and_layout() -> None:
    (graph,) = build_graphs(build("llama", "lm"))
    assert list(graph.input_axes)[:4] == [
        "input_ids", "attention_mask", "position_ids", "past_key_values.0.key",
    ]  # fmt: skip
    assert graph.example_inputs["past_key_values.1.value"].shape[1] == 2  # key-value heads
    assert graph.output_axes["present.1.value"][2] == "past_sequence_length + sequence_length"
    _, first, later = build_graphs(build("bart", "lm"))
    assert list(first.output_axes)[1:5] == [
        "present.0.decoder.key", "present.0.decoder.value",
        "present.0.encoder.key", "present.0.encoder.value",
    ]  # fmt: skip
    assert "past_key_values.1.encoder.value" in later.input_axes
    assert "encoder_hidden_states" not in later.input_axes


@pytest.mark.parametrize(
    ("family", "part", "changes"),
    [
        *((family, part, {}) for family, part in REFUSED.items()),
        ("xlnet", "an answer head with a beam", dict(head="question-answering-beam")),
        ("gpt2", "cross-attention without an encoder", dict(add_cross_attention=True)),
    ],
)
def test_what_a_graph_cannot_hold_is_refused_by_name(
    family: str, part: str, changes: dict[str, Any]
) -> None:
    message = get_error_message(lambda: build_graphs(tiny.build(family, **changes)))
    assert f"{family}: {part} cannot be exported to ONNX or pt2" in message


def test_the_network_is_the_same() -> None:
    model = build("gpt2", "lm")
    (graph,) = build_graphs(model)
    assert isinstance(model.net, Network)
    assert graph.module.net is model.net
