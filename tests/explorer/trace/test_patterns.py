"""Patterns: masks are those of the rules and of traces, and bias curves are what is added to scores."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
import torch

import qkv
from qkv.explorer.trace.patterns import build_mask, choose_scale, list_layer_masks
from qkv.nn.transformer import Stack
from qkv.spec import Banded, Local, Strided, causal, full
from qkv.spec.patterns import Chunk, ChunkEnds, MemoryWindow
from tests.explorer import models
from tests.explorer.trace.test_score_parts import get_parts, is_visible
from tests.support.errors import assert_error

SIZE = 16  # cells: three windows of the tiny models
MEMORY = 5  # of the tiny models
BIASED = ("t5", "switch", "bert-t5", "bert-alibi")
T5_NAME = "T5 relative position bias"
NAMES = {"t5": T5_NAME, "switch": T5_NAME, "bert-t5": T5_NAME, "bert-alibi": "ALiBi"}


@pytest.mark.parametrize("name", models.MODELS)
def test_masks_are_those_of_the_rule(name: str) -> None:
    model = models.build_model(name)
    masks = list_layer_masks(model, SIZE)
    paths = [
        path
        for path in models.build_trace(name).shapes
        if isinstance(model.net.get_submodule(path.split(".layers.")[0]), Stack)
    ]
    assert [*dict.fromkeys(layer.path for layer in masks)] == paths
    for layer in masks:
        memory = MEMORY if name.startswith(("transformer-xl", "xlnet")) else 0
        memory = 0 if name == "transformer-xl-none" else memory
        assert layer.memory == memory
        expected = [
            [is_visible(layer.pattern, memory + i, j) for j in range(memory + SIZE)]
            for i in range(SIZE)
        ]
        assert layer.mask.dtype == torch.uint8
        assert layer.mask.tolist() == expected, layer.path


@pytest.mark.parametrize(
    "name", ["gpt3", "modernbert", "sparse-strided-merged", "transformer-xl-same"]
)
def test_masks_are_those_of_a_trace(name: str) -> None:
    """Of six or more tokens, in the last columns of the memory."""
    trace = models.build_trace(name)
    for layer in list_layer_masks(trace.model, SIZE):
        heads, num_queries, num_keys = trace.shapes[layer.path]
        count = min(num_queries, SIZE)
        for head in range(heads):
            for row in range(count):
                score = get_parts(trace, layer.path, head, row)["score"]
                visible = ~score.isnan()[num_keys - num_queries - layer.memory :]
                width = min(len(visible), layer.memory + count)
                assert layer.mask[row, :width].bool().tolist() == visible[:width].tolist()


def test_heads_with_different_patterns_have_a_mask_each() -> None:
    masks = list_layer_masks(models.build_model("sparse-strided-heads"), SIZE)
    assert [(layer.path, layer.pattern) for layer in masks] == [
        (f"decoder.layers.{depth}.attention", pattern)
        for depth in range(2)
        for pattern in ("banded(4)", "strided(4)")
    ]
    assert not torch.equal(masks[0].mask, masks[1].mask)
    merged = list_layer_masks(models.build_model("sparse-strided-merged"), SIZE)
    assert torch.equal(merged[0].mask, masks[0].mask | masks[1].mask)


def test_layers_with_different_patterns() -> None:
    masks = list_layer_masks(models.build_model("sparse-strided-layers"), SIZE)
    assert [layer.pattern for layer in masks] == ["banded(4)", "strided(4)"]


@pytest.mark.parametrize("name", BIASED)
def test_bias_curves_are_what_is_added_to_the_scores(name: str) -> None:
    trace = models.build_trace(name)
    for layer in list_layer_masks(trace.model, SIZE):
        heads, num_queries, num_keys = trace.shapes[layer.path]
        if "cross" in layer.path:
            assert layer.bias is None
            continue
        assert layer.bias is not None
        assert layer.bias.name == NAMES[name]
        last = (
            SIZE
            if name == "bert-alibi"
            else max(SIZE, trace.model.args.get("relative_attention_max_distance", 128))
        )
        assert layer.bias.distances == (*range(-last, last + 1),)
        assert layer.bias.values.shape == (heads, 2 * last + 1)
        assert layer.bias.values.std() > 1e-2
        for head in range(heads):
            for row in (0, 3, num_queries - 1):
                term = get_parts(trace, layer.path, head, row)[f"position:{NAMES[name]}"]
                columns = [layer.bias.distances.index(key - row) for key in range(num_keys)]
                expected = layer.bias.values[head, columns].double()
                torch.testing.assert_close(term, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "name", ["bert", "llama", "transformer-xl", "bert-rotary", "bert-xl", "gpt2"]
)
def test_positions_that_are_not_added_have_no_curves(name: str) -> None:
    assert {layer.bias for layer in list_layer_masks(models.build_model(name), SIZE)} == {None}


@pytest.mark.parametrize("window", [4, 5, 100])
@pytest.mark.parametrize("name", ["banded", "strided", "local", "chunks"])
def test_a_wide_window_is_drawn_in_blocks(name: str, window: int) -> None:
    """A cell is filled if some query of its rows may attend to some key of its columns."""
    patterns = {
        "banded": Banded(window),
        "strided": Strided(window),
        "local": Local(window),
        "chunks": Chunk(window) | ChunkEnds(window, 1),
    }
    scale = choose_scale(patterns[name], SIZE)
    assert (scale - 1) * SIZE < 3 * window <= scale * SIZE
    mask = build_mask(patterns[name], SIZE, 0, scale)
    positions = torch.arange(SIZE * scale)
    visible = patterns[name](positions[:, None], positions)
    blocks = visible.view(SIZE, scale, SIZE, scale).any(3).any(1)
    assert torch.equal(mask.bool(), blocks)
    assert 0.1 < mask.float().mean() < 0.9


def test_patterns_without_a_window_are_drawn_by_token() -> None:
    for pattern in (full, causal, MemoryWindow()):
        assert choose_scale(pattern, SIZE) == 1
    assert choose_scale(causal & Local(40), SIZE) == choose_scale(Local(40), SIZE) == 8
    layers = list_layer_masks(qkv.build("gpt3", width=16, depth=2, heads=2), SIZE)
    assert [(layer.pattern, layer.scale) for layer in layers] == [
        ("causal", 1),
        ("banded(256)", 48),
    ]


def test_recurrent_models_have_no_masks() -> None:
    for name in ("bahdanau", "lstmn", "show-attend-tell"):
        assert list_layer_masks(models.build_model(name), SIZE) == []


def test_json() -> None:
    for name in ("bert-alibi", "transformer-xl"):
        for layer in list_layer_masks(models.build_model(name), SIZE):
            description = json.loads(json.dumps(layer.to_json(), allow_nan=False))
            data = base64.b64decode(description["mask"])
            assert [*data] == layer.mask.flatten().tolist()
            assert len(data) == SIZE * description["keys"]
            assert description["keys"] == SIZE + description["memory"]
            if layer.bias is None:
                assert description["bias"] is None
            else:
                assert description["bias"]["heads"] == layer.bias.values.tolist()
                assert description["bias"]["name"] == "ALiBi"


@pytest.mark.parametrize("size", [1, 0, -3, 257, 10**30, 8.0, "8", None, True])
def test_wrong_sizes_are_refused(size: Any) -> None:
    assert_error(lambda: list_layer_masks(models.build_model("bert"), size), "size is")
