"""The data of a page without a server: weights, queries, keys, masks and biases of every attention."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from qkv.explorer import embedding
from qkv.explorer.embedding import build_embedded_config, encode_array
from qkv.explorer.explorer import Explorer
from qkv.explorer.trace.trace import Trace
from tests.explorer import models
from tests.explorer.trace.test_score_parts import get_parts
from tests.explorer.trace.test_trace import look
from tests.support.errors import assert_error


def decode_array(encoded: dict[str, Any]) -> Tensor:
    """Return an array as the page reads it."""
    data = np.frombuffer(
        base64.b64decode(encoded["data"]), np.dtype(encoded["dtype"]).newbyteorder("<")
    )
    return torch.tensor(data.astype(np.float64)).reshape(encoded["shape"])


def embed(name: str, paths: Any = None) -> tuple[Trace, dict[str, Any]]:
    """Return a trace, and the data of its page after JSON."""
    explorer: Explorer = models.build_explorer(name)
    builder = explorer.main.inputs
    trace = Trace(builder.model, builder.build(models.build_user_input(builder)))
    config = build_embedded_config(explorer, trace, paths)
    return trace, json.loads(json.dumps(config, allow_nan=False))


@pytest.mark.parametrize(
    "name",
    ["bert", "albert", "gpt2", "t5", "transformer-xl", "clip", "lstmn", "sparse-strided-heads"],
)
def test_weights_are_those_of_look(name: str) -> None:
    trace, config = embed(name)
    expected = look(trace)
    assert config["weights"].keys() == expected.keys()
    for path, weights in expected.items():
        assert config["weights"][path]["dtype"] == "uint16"
        actual = decode_array(config["weights"][path]) / 65_535
        torch.testing.assert_close(actual, weights.double(), rtol=0, atol=1e-5)
    assert config["mode"] == "embedded"
    assert [info["path"] for info in config["trace"]["attentions"]] == [*expected]
    sequences = json.loads(json.dumps(trace.to_json()["sequences"]))
    assert config["trace"]["sequences"] == sequences


@pytest.mark.parametrize(
    "name", ["bert", "gpt2", "llama", "t5", "bert-alibi", "transformer-xl", "sparse-strided-heads"]
)
def test_vectors_and_biases_give_the_scores(name: str) -> None:
    """score = query · key * scale + biases, without the keys that the mask hides."""
    trace, config = embed(name)
    arrays = {key: decode_array(array) for key, array in config["biases"].items()}

    def select(array: Tensor, head: int) -> Tensor:
        return array[head if len(array) > 1 else 0]

    assert config["vectors"].keys() == trace.shapes.keys()
    for path, vectors in config["vectors"].items():
        heads, num_queries, _ = trace.shapes[path]
        queries, keys = decode_array(vectors["queries"]), decode_array(vectors["keys"])
        for head, row in ((0, 1), (heads - 1, num_queries - 1)):
            parts = get_parts(trace, path, head, row)
            score = keys[head * len(keys) // heads] @ queries[head, row] * vectors["scale"]
            for term, key in vectors["biases"]:
                bias = select(arrays[key], head)[row]
                torch.testing.assert_close(parts[f"position:{term}"], bias)
                score += bias
            if vectors["mask"] is not None:
                is_visible = select(arrays[vectors["mask"]], head)[row].bool()
                score = score.masked_fill(~is_visible, torch.nan)
            torch.testing.assert_close(score, parts["score"], rtol=1e-5, atol=1e-5, equal_nan=True)
    if name == "t5":  # a bias and a mask of each stack
        assert len(arrays) == 3
    if name in ("bert", "llama"):
        assert len(arrays) == (name == "llama")


@pytest.mark.parametrize(
    "name",
    ["bahdanau", "luong", "lstmn", "show-attend-tell", "transformer-sparsemax", "gpt2-additive"],
)
def test_the_parts_of_scores_that_are_no_dot_products(name: str) -> None:
    trace, config = embed(name)
    assert config["vectors"].keys() == {
        path for path, info in trace.attentions.items() if info.has_neurons
    }
    path = [path for path, vectors in config["vectors"].items() if "parts" in vectors][-1]
    heads, num_queries, _ = trace.shapes[path]
    encoded = config["vectors"][path]["parts"]
    assert len(encoded) == heads * num_queries
    for head, query in ((0, 1), (heads - 1, num_queries - 1)):
        parts = get_parts(trace, path, head, query)
        actual = {name: decode_array(array) for name, array in encoded[f"{head},{query}"]}
        assert actual.keys() == parts.keys()
        for part, values in parts.items():
            torch.testing.assert_close(
                actual[part], values.double(), rtol=1e-6, atol=1e-6, equal_nan=True
            )
    assert config["trace"]["notice"] is None


def test_patterns_are_those_of_the_attentions() -> None:
    _, config = embed("bert-alibi", r"encoder\.layers\.1\.attention")
    (mask,) = config["patterns"]["attentions"]
    assert mask["path"] == "encoder.layers.1.attention"
    assert mask["bias"]["name"] == "ALiBi"
    assert len(base64.b64decode(mask["mask"])) == 48 * 48


@pytest.mark.parametrize(
    ("paths", "count"),
    [
        (None, 8),
        (".*cross.*", 3),
        (r"decoder\.layers\.0\..*", 2),
        (lambda path: "encoder" in path, 2),
    ],
)
def test_paths_select_attentions(paths: Any, count: int) -> None:
    trace, config = embed("t5", paths)
    assert len(trace.shapes) == 8
    selected = config["weights"].keys()
    assert len(selected) == count
    assert {info["path"] for info in config["trace"]["attentions"]} == selected
    assert {mask["path"] for mask in config["patterns"]["attentions"]} == selected
    assert config["vectors"].keys() == selected


def test_paths_without_attention_are_refused() -> None:
    for paths in ("encoder", "x", lambda path: False):
        assert_error(lambda: embed("bert", paths), "matches none of", "encoder.layers.1.attention")  # noqa: B023
    assert_error(lambda: embed("bert", "["), "paths='['", "is not a regular expression")


def test_large_pages_have_weights_of_8_bits_and_then_none(monkeypatch: pytest.MonkeyPatch) -> None:
    num_weights = 2 * 4 * 8 * 8
    monkeypatch.setattr(embedding, "ENCODED_BYTES", 1)
    monkeypatch.setattr(embedding, "MAX_PAGE_BYTES", 2 * num_weights)
    trace, config = embed("bert")
    assert {array["dtype"] for array in config["weights"].values()} == {"uint16"}
    assert (config["vectors"], config["biases"]) == ({}, {})
    monkeypatch.setattr(embedding, "MAX_PAGE_BYTES", 2 * num_weights - 1)
    trace, config = embed("bert")
    assert {array["dtype"] for array in config["weights"].values()} == {"uint8"}
    for path, weights in look(trace).items():
        actual = (decode_array(config["weights"][path]) / 255) ** 2
        torch.testing.assert_close(actual, weights.double(), rtol=0, atol=4e-3)
        small = weights < 0.01
        torch.testing.assert_close(actual[small], weights[small].double(), rtol=0, atol=4e-4)
    assert "differ from the exact ones by at most 0.004" in config["trace"]["notice"]
    monkeypatch.setattr(embedding, "MAX_PAGE_BYTES", num_weights - 1)
    assert_error(
        lambda: embed("bert"), "512 weights", "expected at most 511", "a shorter text", "paths"
    )
    embed("bert", r".*\.0\..*")


def test_vectors_need_room_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "ENCODED_BYTES", 1)
    weights, vectors = 2 * 2 * 4 * 8 * 8, 2 * 2 * 8 * 24 * 4
    monkeypatch.setattr(embedding, "MAX_PAGE_BYTES", weights + vectors)
    assert len(embed("bert")[1]["vectors"]) == 2
    monkeypatch.setattr(embedding, "MAX_PAGE_BYTES", weights + vectors - 1)
    config = embed("bert")[1]
    assert config["vectors"] == {}
    assert "no view Neurons" in config["trace"]["notice"]
    config = embed("gpt2-additive", r"decoder\.layers\.0.*")[
        1
    ]  # no room for the parts of its scores
    assert config["vectors"] == {}
    assert "no view Neurons" in config["trace"]["notice"]


def test_arrays_of_every_dtype() -> None:
    for dtype in (torch.uint16, torch.uint8, torch.float32):
        array = torch.arange(6).reshape(2, 3).to(dtype)
        encoded = json.loads(json.dumps(encode_array(array)))
        assert encoded["dtype"] == str(dtype).removeprefix("torch.")
        assert torch.equal(decode_array(encoded), array.double())
    transposed = torch.arange(6).reshape(2, 3).to(torch.uint8).T
    assert torch.equal(decode_array(dict(encode_array(transposed))), transposed.double())
