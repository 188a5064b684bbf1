"""Models with sparse patterns: they equal dense masks, and no tensor is as large as a mask."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import qkv
from qkv import Batch, Inputs
from qkv.kernels import block_sparse
from qkv.kernels.window_flash import list_flash_parts
from qkv.spec import Pattern
from tests.support import compare, tiny
from tests.support.dense_masks import (
    LAYOUTS,
    Rule,
    build_dense_mask,
    build_layout,
    locate_tokens,
)

# The second part of the fixed pattern: the last positions of every chunk so far, and the query.
PARTS: dict[str, tuple[Rule, Rule]] = {
    "strided": (lambda i, j: 0 <= i - j < 16, lambda i, j: j in range(i, -1, -16)),
    "fixed": (
        lambda i, j: i - i % 16 <= j <= i,
        lambda i, j: j == i or (j < i and j % 16 in (13, 14, 15)),
    ),
}
GPT3_RULES: tuple[Rule, Rule] = (lambda i, j: j <= i, lambda i, j: 0 <= i - j < 20)
MODELS = {
    f"{pattern}-{split}": ("sparse", dict(pattern=pattern, split=split))
    for pattern in PARTS
    for split in ("merged", "heads", "layers")
}
MODELS |= {"gpt3": ("gpt3", {})}


def build_sparse_model(name: str, dtype: torch.dtype = torch.float64, **settings: Any) -> qkv.Model:
    """Return a model whose patterns have a stride or window of about 16."""
    family, changes = MODELS[name]
    sizes = dict(window=20, heads=3)
    if family == "sparse":
        sizes = dict(stride=16, num_summary=3, heads=3)
    return tiny.build(
        family, dtype=dtype, **dict(max_positions=4096, ffn_width=16) | changes | sizes | settings
    )


def build_masks_of_layers(name: str, layout: str, length: int) -> list[Tensor]:
    """Return the dense masks (B, H, T, T) of three layers with three heads."""
    rules = GPT3_RULES if name == "gpt3" else PARTS[name.split("-")[0]]
    first, second = (build_dense_mask(rule, layout, length)[:, None] for rule in rules)
    if name.endswith("merged"):
        return [first | second] * 3
    if name.endswith("heads"):
        return [torch.cat([first, second, first], dim=1)] * 3
    return [first, second, first]


def run_dense_decoder(
    model: qkv.Model, ids: Tensor, positions: Tensor, masks: list[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """Return logits and attention weights of a pre-norm decoder with dense masks, in plain torch."""
    p = dict(model.net.named_parameters(remove_duplicate=False))
    width = model.args["width"]
    heads = model.args["heads"]

    def norm(x: Tensor, name: str) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        x = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return x * p[f"{name}.weight"] + p[f"{name}.bias"]

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    tokens = p["decoder.embedding.tokens.weight"]
    x = tokens[ids] + p["decoder.embedding.positions.weight"][positions]
    weights = []
    for n, mask in enumerate(masks):
        layer = f"decoder.layers.{n}"
        y = norm(x, f"{layer}.pre_attention_norm")
        q, k, v = (
            linear(y, f"{layer}.attention.{name}").unflatten(-1, (heads, -1)).transpose(1, 2)
            for name in "qkv"
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // heads)
        weights.append(scores.masked_fill(~mask, -math.inf).softmax(-1))
        x = x + linear((weights[-1] @ v).transpose(1, 2).flatten(2), f"{layer}.attention.o")
        y = linear(norm(x, f"{layer}.pre_feed_forward_norm"), f"{layer}.feed_forward.up")
        y = y * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3))) / 2
        x = x + linear(y, f"{layer}.feed_forward.down")
    return norm(x, "decoder.final_norm") @ tokens.T, weights


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("length", [37, 256, 301])  # from 256 on, the block-sparse kernel runs
@pytest.mark.parametrize("name", MODELS)
def test_model_equals_dense_masks(name: str, length: int, layout: str) -> None:
    model = build_sparse_model(name, depth=3)
    ids = tiny.random_ids(2, length)
    positions, documents = locate_tokens(layout, length)
    is_token = documents >= 0
    with qkv.look(model) as recorded:
        batch = tiny.build_batch(model, ids, **build_layout(layout, length))
        logits = model.net(batch)["logits"]
    masks = build_masks_of_layers(name, layout, length)
    expected_logits, expected_weights = run_dense_decoder(model, ids, positions, masks)
    compare.assert_close({"logits": logits[is_token]}, {"logits": expected_logits[is_token]})
    for n, expected in enumerate(expected_weights):
        actual = recorded[f"decoder.layers.{n}.attention"]
        compare.assert_close(
            {"weights": actual.transpose(1, 2)[is_token]},
            {"weights": expected.transpose(1, 2)[is_token]},
        )
    parameters = dict(model.net.named_parameters())
    weight = torch.randn_like(expected_logits) * is_token[..., None] / is_token.sum() ** 0.5
    gradients, expected_gradients = (
        torch.autograd.grad((x * weight).sum(), list(parameters.values()))
        for x in (logits, expected_logits)
    )
    compare.assert_close(
        dict(zip(parameters, gradients, strict=True)),
        dict(zip(parameters, expected_gradients, strict=True)),
    )


@pytest.mark.parametrize("pattern", ["strided", "fixed"])
def test_padding_inside_a_row_adds_no_distance(pattern: str) -> None:
    """Padding between the tokens of a long row, where the sparse kernel would count columns."""
    model = tiny.build("sparse", pattern=pattern, stride=16, num_summary=3, max_positions=400)
    ids = tiny.random_ids(1, 330)
    columns = torch.arange(330)
    mask = ((columns < 100) | (columns >= 137))[None]
    together = model(ids, attention_mask=mask)["last_hidden_state"][mask]
    alone = model(ids[mask][None])["last_hidden_state"][0]
    compare.assert_close({"hidden": together}, {"hidden": alone})


class LargestTensor(TorchDispatchMode):
    """Records the largest storage of any operation's output, in elements."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.size = 0
        self.operation = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, Tensor):
                size = tensor.untyped_storage().nbytes() // tensor.element_size()
                self.size, self.operation = max((self.size, self.operation), (size, str(func)))
        return out


LONG = 2048
SMALL: dict[str, Any] = dict(dtype=torch.float32, width=16, heads=2, ffn_width=16)
NEIGHBORS: Rule = lambda i, j: -5 <= i - j <= 5  # noqa: E731
LOCAL: dict[str, Any] = dict(layer_types=("sliding_attention",) * 2, depth=2, local_attention=64)


def record_largest_tensor(model: qkv.Model, layout: str) -> LargestTensor:
    """Run a forward and a backward over a long row."""
    settings = {name: value[1:] for name, value in build_layout(layout, LONG).items()}
    ids = tiny.random_ids(1, LONG) % model.args["vocab_size"]
    batch = tiny.build_batch(model, ids, **settings)
    with LargestTensor() as record:
        model.net(batch)["last_hidden_state"].square().sum().backward()
    return record


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", [name for name in MODELS if name != "gpt3"])
def test_sparse_layers_make_no_square_tensor(name: str, layout: str) -> None:
    model = build_sparse_model(name, depth=2, stride=64, num_summary=4, **SMALL)
    record = record_largest_tensor(model, layout)
    assert record.size < LONG * LONG, record.operation


@pytest.mark.parametrize("layout", LAYOUTS)
def test_local_layers_make_no_square_tensor(layout: str) -> None:
    model = tiny.build("modernbert", head="none", **SMALL, **LOCAL)
    record = record_largest_tensor(model, layout)
    assert record.size < LONG * LONG, record.operation


def test_dense_layers_make_no_square_tensor_without_padding() -> None:
    """The dense layers of GPT-3 and ModernBERT, beside their sparse layers."""
    gpt3 = build_sparse_model("gpt3", depth=2, window=64, **SMALL)
    modernbert = tiny.build("modernbert", local_attention=64, head="none", **SMALL)
    for model in (gpt3, modernbert):
        record = record_largest_tensor(model, "plain")
        assert record.size < LONG * LONG, record.operation


def test_a_square_tensor_is_detected() -> None:
    model = tiny.build("gpt2", max_positions=LONG, **SMALL)
    assert record_largest_tensor(model, "left").size >= LONG * LONG


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("length", [60, 256, 300])
def test_local_layers_equal_dense_masks(length: int, layout: str) -> None:
    """ModernBERT's second layer, with and without the block-sparse kernel."""
    model = tiny.build("modernbert", **LOCAL | dict(local_attention=10))
    captured: list[Tensor] = []
    kernel = model.net.get_submodule("encoder.layers.1.attention.kernel")
    kernel.register_forward_hook(lambda module, args, out: captured.extend((*args[:3], out.out)))
    inputs = Inputs.create(tiny.random_ids(2, length), **build_layout(layout, length))
    model.net(Batch(encoder=inputs))
    q, k, v, out = captured
    mask = build_dense_mask(NEIGHBORS, layout, length)[:, None]
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    is_token = locate_tokens(layout, length)[1] >= 0
    compare.assert_close(
        {"out": out.transpose(1, 2)[is_token]}, {"out": expected.transpose(1, 2)[is_token]}
    )


@pytest.mark.parametrize("name", ["strided-merged", "strided-layers", "fixed-layers", "gpt3"])
@pytest.mark.parametrize("layout", [*LAYOUTS, "shifted"])
def test_only_rows_without_a_mask_are_computed_without_one(
    name: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flash kernel with a window has no mask: no row with padding, packing or other positions."""
    calls: list[str] = []

    def record(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, scale: float) -> Tensor:
        calls.append(type(pattern).__name__)
        return v

    monkeypatch.setattr(block_sparse, "window_flash_attention", record)
    monkeypatch.setattr(
        block_sparse, "supports_window_flash", lambda q, pattern, _: bool(list_flash_parts(pattern))
    )
    length = 300
    settings = (
        {"position_ids": torch.arange(5, 5 + length)[None]}
        if layout == "shifted"
        else build_layout(layout, length)
    )
    model = build_sparse_model(name, torch.float32)
    with torch.no_grad():
        model.net(tiny.build_batch(model, tiny.random_ids(2, length), **settings))
    assert bool(calls) == (layout == "plain")
