"""Traces: the weights of every layer are those of `qkv.look`, also of parts, pooled, averaged, multiplied
and computed again; and the memory that they need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import qkv
from qkv.explorer.inputs.builder import InputBuilder
from qkv.explorer.inputs.trace_inputs import UserInput
from qkv.explorer.trace import trace as trace_module
from qkv.explorer.trace.trace import Trace
from qkv.model.inputs import build_input_batch
from qkv.nn.attention_record import count_bytes
from tests.explorer import models
from tests.support import tiny
from tests.support.compare import SAME_KERNELS, assert_bitwise_equal
from tests.support.errors import assert_error

WHOLE = slice(None)
TILES = [
    (WHOLE, WHOLE),
    (slice(0, 1), slice(0, 1)),
    (slice(2, 5), slice(1, 4)),
    (slice(3, None), WHOLE),
]
MEMORY_MODELS = ("transformer-xl", "transformer-xl-same")
LENGTH = 4096


def look(trace: Trace) -> dict[str, Tensor]:
    """Return the weights (H, T, S) of the call that a trace has made, computed by `qkv.look`."""
    model = trace.model
    arguments: dict[str, Any] = dict(trace.inputs.arguments)
    for token_ids in trace.inputs.memory_segments:
        arguments["mems"] = model(torch.tensor([[*token_ids]])).mems
    with qkv.look(model) as weights, torch.no_grad():
        model(**arguments)
    return {path: tensor[0] for path, tensor in weights.items()}


def assert_equal_weights(actual: Tensor, expected: Tensor) -> None:
    """Assert that weights are the expected ones in single precision."""
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected.float(), rtol=0, atol=1e-6)


def count_changes(weights: Mapping[str, Tensor]) -> int:
    """Return how many attentions have weights of different sizes."""
    return sum(float(tensor.std()) > 1e-3 for tensor in weights.values())


@pytest.mark.parametrize("name", models.MODELS)
def test_weights_are_those_of_look(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = models.build_trace(name)
    expected = look(trace)
    assert count_changes(expected) == len(expected)
    assert {path: weights.shape for path, weights in expected.items()} == trace.shapes
    for path, weights in expected.items():
        heads = [*range(len(weights))]
        for max_scores in (2**24, 13):  # all rows at a time, and a few
            monkeypatch.setattr(trace_module, "MAX_SCORES", max_scores)
            for rows, columns in TILES:
                part = trace.compute_weights(path, heads, rows, columns)
                assert_equal_weights(part, weights[:, rows, columns])
            mean = trace.compute_mean_weights(path, slice(1, 4), slice(1, None))
            assert_equal_weights(mean, weights.mean(0)[None, 1:4, 1:])
        order = heads[::-1][:2]
        assert_equal_weights(trace.compute_weights(path, order, WHOLE, WHOLE), weights[order])


def test_weights_of_some_keys_do_not_need_those_of_others() -> None:
    """After the first keys of a head, the scores of the keys that are asked for are enough."""
    model = models.build_tiny_model("gpt2", torch.float32, max_positions=512, depth=1, heads=2)
    trace = Trace(model, InputBuilder(model=model).build(UserInput(text="the cat " * 64)))
    (path,) = trace.shapes
    expected = look(trace)[path]
    length = trace.shapes[path][2]
    for column in (3, 40, length - 1):
        columns = slice(column, column + 1)
        with record_largest() as largest:
            weights = trace.compute_weights(path, [0, 1], WHOLE, columns)
        assert_equal_weights(weights, expected[:, :, columns])
        if column != 3:
            assert largest.numel < 64 * length
    keys = slice(5, 9)
    assert_equal_weights(
        trace.compute_mean_weights(path, slice(7, None), keys), expected[:, 7:, keys].mean(0)[None]
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_tiles_of_half_precision_are_those_of_whole_rows(dtype: torch.dtype) -> None:
    model = models.build_tiny_model("t5", dtype)
    trace = Trace(model, InputBuilder(model=model).build(UserInput(text="the cat", target="sat")))
    for path, (heads, _, num_keys) in trace.shapes.items():
        rows = trace.compute_weights(path, range(heads), WHOLE, WHOLE)
        for key in range(num_keys):
            column = trace.compute_weights(path, range(heads), WHOLE, slice(key, key + 1))
            torch.testing.assert_close(column, rows[..., key : key + 1], rtol=0, atol=0.01)


def pool_naively(weights: Tensor, pool: int) -> Tensor:
    """Return the largest weight of each block: (H, T, S) -> (H, T / pool, S / pool)."""
    _, num_rows, num_columns = weights.shape
    return torch.stack(
        [
            torch.stack(
                [
                    weights[:, row : row + pool, column : column + pool].amax((1, 2))
                    for column in range(0, num_columns, pool)
                ],
                dim=-1,
            )
            for row in range(0, num_rows, pool)
        ],
        dim=-2,
    )


@pytest.mark.parametrize("pool", [2, 3, 7, 100])
@pytest.mark.parametrize("name", ["gpt2", "t5", "transformer-xl", "bahdanau"])
def test_pooled_weights_are_the_largest_of_each_block(
    name: str, pool: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = models.build_trace(name)
    for path, weights in look(trace).items():
        heads = range(len(weights))
        for max_scores in (2**24, 40):
            monkeypatch.setattr(trace_module, "MAX_SCORES", max_scores)
            for rows, columns in TILES:
                part = weights[:, rows, columns]
                assert_equal_weights(
                    trace.compute_weights(path, heads, rows, columns, pool),
                    pool_naively(part, pool),
                )
                assert_equal_weights(
                    trace.compute_mean_weights(path, rows, columns, pool),
                    pool_naively(part.mean(0, keepdim=True), pool),
                )


@pytest.mark.parametrize("name", ["bert", "albert", "gpt2", "t5", "modernbert", "clip", "vit"])
def test_rollout_is_the_product_of_the_layers(name: str) -> None:
    """Abnar and Zuidema (2020): half of every layer is the residual connection."""
    trace = models.build_trace(name)
    weights = look(trace)
    for stack in {info.stack for info in trace.attentions.values()}:
        rollout: list[list[float]] = []
        for info in trace.attentions.values():
            if info.stack != stack or info.kind != "self":
                continue
            mean = weights[info.path].mean(0)
            length = len(mean)
            mixed = [
                [mean[i, j].item() / 2 + (0.5 if i == j else 0.0) for j in range(length)]
                for i in range(length)
            ]
            mixed = [[value / sum(row) for value in row] for row in mixed]
            if rollout:
                rollout = [
                    [sum(row[k] * rollout[k][j] for k in range(length)) for j in range(length)]
                    for row in mixed
                ]
            else:
                rollout = mixed
            expected = torch.tensor(rollout)[None]
            for _ in range(2):  # computed, and kept
                actual = trace.compute_rollout(info.path, WHOLE, WHOLE)
                torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)
            part = trace.compute_rollout(info.path, slice(1, 4), slice(0, 3), 2)
            torch.testing.assert_close(
                part, pool_naively(expected[:, 1:4, :3], 2), rtol=0, atol=1e-6
            )


def test_rollout_needs_self_attention_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, path in (
        ("bart", "decoder.layers.0.cross_attention"),
        ("transformer-xl", "decoder.layers.0.attention"),
        ("lstmn", "encoder.layers.0.attention"),
    ):
        trace = models.build_trace(name)
        assert_error(lambda: trace.compute_rollout(path, WHOLE, WHOLE), path, "without memory")  # noqa: B023
    monkeypatch.setattr(trace_module, "MAX_ROLLOUT_TOKENS", 5)
    trace = models.build_trace("gpt2")
    path = "decoder.layers.0.attention"
    assert_error(lambda: trace.compute_rollout(path, WHOLE, WHOLE), "6 tokens", "at most 5")


def test_a_few_rollouts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_module, "MAX_ROLLOUTS", 2)
    trace = models.build_trace("albert")
    paths = [*trace.shapes]
    for path in (paths[0], paths[1], paths[0], paths[2]):
        trace.compute_rollout(path, WHOLE, WHOLE)
    assert [*trace.rollouts] == [paths[0], paths[2]]


@pytest.mark.parametrize("name", ["albert", "transformer-xl", "t5", "gpt2-additive", "lstmn"])
def test_a_layer_whose_record_is_gone_runs_again(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = look(models.build_trace(name))
    full = models.build_trace(name)
    sizes = [count_bytes(full.records[path].tensors) for path in full.shapes]
    monkeypatch.setattr(trace_module, "MAX_RECORD_BYTES", max(sizes))
    trace = models.build_trace(name)
    assert 0 < len(trace.records) < len(expected)
    for path in [*expected, *expected]:
        for heads in ([0], [*range(len(expected[path]))]):
            weights = trace.compute_weights(path, heads, WHOLE, WHOLE)
            assert_equal_weights(weights, expected[path][heads])
        assert 0 < trace.num_bytes <= max(sizes)
    mean = trace.compute_mean_weights(path, WHOLE, WHOLE)
    assert_equal_weights(mean, expected[path].mean(0, keepdim=True))


def test_records_that_fit_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = models.build_trace("albert")
    assert trace.records.keys() == trace.shapes.keys()
    tensors = {id(x): x for record in trace.records.values() for x in record.tensors}
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage() for x in tensors.values()}
    assert trace.num_bytes == sum(storage.nbytes() for storage in storages.values())

    def run(*_: object) -> None:
        raise AssertionError("the model runs again")

    monkeypatch.setattr(Trace, "run", run)
    for path in trace.shapes:
        trace.compute_weights(path, [0], WHOLE, WHOLE)


@pytest.mark.parametrize("name", models.MODELS)
def test_the_sequences_are_the_axes(name: str) -> None:
    """Every query and every key has a token; memory columns come first."""
    trace = models.build_trace(name)
    stacks = {module for module, _ in trace.model.net.named_modules()}
    for info in trace.attentions.values():
        assert trace.shapes[info.path] == (info.heads, *info.shape)
        assert len(trace.sequences[info.queries]) == info.shape[0]
        assert sum(len(trace.sequences[key]) for key in info.keys) == info.shape[1]
        own_keys = "encoder" if info.kind == "cross" else info.queries
        assert info.keys in ((own_keys,), ("memory", own_keys))
        assert info.stack in stacks
        assert info.path.startswith(info.stack)
        assert info.has_neurons
    has_memory = {info.path for info in trace.attentions.values() if info.keys[0] == "memory"}
    if name in MEMORY_MODELS:
        assert has_memory == trace.attentions.keys()
    elif name == "lstmn":
        assert has_memory == {path for path in trace.attentions if ".layers." in path}
    else:
        assert not has_memory


@pytest.mark.parametrize("name", MEMORY_MODELS)
def test_memory_columns_have_the_last_tokens_of_the_first_text(name: str) -> None:
    builder = InputBuilder(model=models.build_model(name))
    memory_length = 5
    first = builder.labeler.tokenizer.encode(models.TEXT)  # longer than the memory
    assert len(first) > memory_length
    trace = Trace(builder.model, builder.build(UserInput(text=models.TEXT, text_pair="a bird")))
    tokens = trace.sequences["memory"].tokens
    assert [token.text for token in tokens] == [
        builder.labeler.get_text(token_id) for token_id in first[-memory_length:]
    ]
    assert {(token.special) for token in tokens} == {False}
    words = trace.sequences["memory"].words
    assert {words[token.word] for token in tokens if token.word is not None} >= {"on", "mat"}
    without = models.build_trace(name)
    assert [token.text for token in without.sequences["memory"].tokens] == [
        "−5", "−4", "−3", "−2", "−1",
    ]  # fmt: skip
    assert all(token.special and token.word is None for token in without.sequences["memory"].tokens)
    for path, weights in look(trace).items():
        heads = range(len(weights))
        assert_equal_weights(trace.compute_weights(path, heads, WHOLE, WHOLE), weights)


def test_a_short_first_text_follows_columns_without_tokens() -> None:
    builder = InputBuilder(model=models.build_model("transformer-xl"))
    trace = Trace(builder.model, builder.build(UserInput(text="the cat", text_pair="a bird")))
    tokens = trace.sequences["memory"].tokens
    assert [token.text for token in tokens] == ["−5", "−4", "−3", "the", "cat"]
    assert [token.special for token in tokens] == [True] * 3 + [False] * 2
    for path, weights in look(trace).items():
        assert_equal_weights(trace.compute_weights(path, [1], WHOLE, WHOLE), weights[1:2])


@pytest.mark.parametrize("name", models.MODELS)
def test_a_trace_does_not_change_the_model(name: str) -> None:
    """The logits of the last token are those of a call without a trace, and so is a later call."""
    model, inputs = models.build_model(name), models.build_trace_inputs(name)
    arguments: dict[str, Any] = inputs.arguments
    with torch.no_grad():
        before = dict(model(**arguments))
        batch = build_input_batch(model.spec, extra_outputs=(), **arguments)
        trace = Trace(model, inputs)
        after = dict(model(**arguments))
        assert_bitwise_equal(after, before, because=SAME_KERNELS)
        if inputs.predicts is None:
            assert trace.last_logits is None
            return
        length = len(inputs.sequences[inputs.predicts])
        batch = replace(batch, logit_positions=torch.tensor([length - 1]))
        expected = model.net(batch)["logits"].flatten()
    assert trace.last_logits is not None
    assert_bitwise_equal(trace.last_logits, expected, because=SAME_KERNELS)
    torch.testing.assert_close(trace.last_logits, before["logits"][0, -1], rtol=0, atol=1e-9)


def test_which_models_predict_tokens() -> None:
    names = [name for name in tiny.FAMILIES if name in models.MODELS]
    predicts = {name: models.build_trace_inputs(name).predicts for name in names}
    readers = (
        "bert roberta albert distilbert electra modernbert xlnet vit clip video-transformer".split()
    )
    assert {name for name, sequence in predicts.items() if sequence is None} == {*readers}
    assert {*predicts.values()} == {None, "decoder"}


def test_a_model_in_training_mode_is_looked_at_in_evaluation_mode() -> None:
    model = models.build_changed_model("transformer-hard")  # hard attention draws in training
    inputs = models.build_trace_inputs("transformer-hard")
    expected = Trace(model, inputs)
    assert expected.last_logits is not None
    model.net.train()
    trace = Trace(model, inputs)
    assert trace.last_logits is not None
    assert_bitwise_equal(trace.last_logits, expected.last_logits, because=SAME_KERNELS)
    assert all(module.training for module in model.net.modules())
    for path in trace.shapes:
        weights = trace.compute_weights(path, [0], WHOLE, WHOLE)
        assert torch.equal(weights, expected.compute_weights(path, [0], WHOLE, WHOLE))


def test_the_patterns_and_positions_of_attentions() -> None:
    def describe(name: str, path: str) -> tuple[str, str | None, str, str]:
        info = models.build_trace(name).attentions[path]
        return info.pattern, info.position, info.score, info.select

    decoder, cross = "decoder.layers.1.attention", "decoder.layers.1.cross_attention"
    encoder = "encoder.layers.1.attention"
    plain = ("scaled-dot", "softmax")
    expected = {
        ("gpt2", decoder): ("causal", None, *plain),
        ("gpt3", decoder): ("banded(3)", None, *plain),
        ("llama", decoder): ("causal", "rotary", *plain),
        ("t5", encoder): ("full", "t5", *plain),
        ("t5", decoder): ("causal", "t5", *plain),
        ("t5", cross): ("full", None, *plain),
        ("bert-alibi", encoder): ("full", "alibi", *plain),
        ("bert-rotary", encoder): ("full", "rotary", *plain),
        ("bert-xl", encoder): ("full", "xl", *plain),
        ("transformer-xl-same", decoder): ("banded(5)", "xl", *plain),
        ("modernbert", encoder): ("local(2)", "rotary", *plain),
        ("sparse-strided-merged", decoder): ("banded(4) | strided(4)", None, *plain),
        ("sparse-strided-heads", decoder): ("by head: banded(4), strided(4)", None, *plain),
        ("gpt2-additive", decoder): ("causal", None, "additive", "softmax"),
        ("transformer-top-k", cross): ("full", None, "scaled-dot", "top-k"),
        ("luong", "decoder.cross_attention"): ("full", None, "general", "softmax"),
        ("lstmn", "encoder.layers.1.attention"): ("full", None, "additive", "softmax"),
    }
    assert {key: describe(*key) for key in expected} == expected


def test_json_has_every_sequence_and_attention() -> None:
    trace = models.build_trace("bart")
    description = trace.to_json()
    assert description["predictions"] == {"sequence": "decoder", "shift": 1}
    assert description["target"] == models.TARGET
    assert description["sequences"].keys() == {"encoder", "decoder"}
    assert [info["path"] for info in description["attentions"]] == [*trace.shapes]
    info = description["attentions"][-1]
    assert info["kind"] == "cross"
    assert (info["stack"], info["layer"]) == ("decoder", 1)
    assert models.build_trace("bert").to_json()["predictions"] is None


def test_wrong_paths_and_parts() -> None:
    trace = models.build_trace("gpt2")
    path = "decoder.layers.0.attention"
    unknown = "decoder.9"
    assert_error(lambda: trace.compute_weights(unknown, [0], WHOLE, WHOLE), "'decoder.9'", path)
    assert_error(lambda: trace.compute_mean_weights(unknown, WHOLE, WHOLE), "'decoder.9'", path)
    assert_error(lambda: trace.compute_terms(unknown, 0, 0), "'decoder.9'", path)
    for rows, columns in ((slice(3, 3), WHOLE), (slice(6, 9), WHOLE), (WHOLE, slice(6, 7))):
        computations: list[Callable[[slice, slice], Tensor]] = [
            partial(trace.compute_weights, path, [0]),
            partial(trace.compute_mean_weights, path),
            partial(trace.compute_rollout, path),
        ]
        for compute in computations:
            assert_error(partial(compute, rows, columns), "are empty", "0:6")


@pytest.mark.parametrize("name", tiny.WITHOUT_ATTENTION)
def test_models_without_attention_are_refused(name: str) -> None:
    model = models.build_changed_model(name)
    assert_error(lambda: InputBuilder(model=model), name, "has no attention")


# --- memory ---


class LargestTensor(TorchDispatchMode):
    """Records the number of elements of the largest tensor that is computed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numel = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, Tensor) and 0 not in x.stride():  # an expanded tensor is small
                self.numel = max(self.numel, x.numel())
        return out


@contextmanager
def record_largest() -> Iterator[LargestTensor]:
    with LargestTensor() as largest:
        yield largest


@pytest.mark.parametrize("name", ["gpt2", "modernbert", "bart"])
def test_memory_of_a_long_text(name: str) -> None:
    """A tile needs the scores of its rows, not those of all heads and tokens."""
    model = models.build_tiny_model(name, torch.float32, max_positions=LENGTH, depth=1, heads=2)
    builder = InputBuilder(model=model)
    text = "the cat " * LENGTH
    target = text if name == "bart" else None
    with record_largest() as largest:
        trace = Trace(model, builder.build(UserInput(text=text, target=target)))
    assert trace.inputs.notice is not None
    assert max(info.shape[1] for info in trace.attentions.values()) == LENGTH
    assert largest.numel < LENGTH * 256
    tiles = [(slice(0, 256), slice(0, 256)), (slice(-256, None), slice(1024, 1280))]
    for path, (heads, _, num_keys) in trace.shapes.items():
        for rows, columns in tiles:
            with record_largest() as largest:
                tile = trace.compute_weights(path, [0, 1], rows, columns)
            assert tile.shape == (2, 256, 256)
            assert largest.numel <= 256 * num_keys
            with record_largest() as largest:
                trace.compute_mean_weights(path, rows, columns)
            assert largest.numel <= heads * 256 * num_keys
        with record_largest() as largest:
            trace.compute_terms(path, 1, 100)
        assert largest.numel <= num_keys * model.args["width"]
    with record_largest() as largest:  # the map of a whole layer
        weights = trace.compute_weights(path, [0], WHOLE, WHOLE, 16)
    assert weights.shape == (1, LENGTH // 16, LENGTH // 16)
    assert largest.numel <= trace_module.MAX_SCORES
    assert trace.num_bytes < 2**26
