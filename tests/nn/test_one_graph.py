"""torch.compile: the forward is one graph with the same numbers, and `look` works."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from tests.support import compare, tiny

GRAPH: dict[str, Any] = dict(fullgraph=True, backend="aot_eager")
SHAPES = {"encoder": "bert", "decoder": "gpt2", "both": "t5", "towers": "clip"}


@pytest.fixture(autouse=True)
def _reset_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def inputs(family: str, length: int = 9) -> dict[str, Any]:
    """Return padded rows and the other inputs of a family."""
    mask = torch.arange(length) < torch.tensor([[length], [length - 3]])
    x: dict[str, Any] = {"input_ids": tiny.random_ids(2, length), "attention_mask": mask}
    if family in tiny.ENCODER_DECODERS:
        x["decoder_input_ids"] = tiny.random_ids(2, 5, seed=1)
        x["decoder_attention_mask"] = torch.arange(5) >= torch.tensor([[2], [0]])
    if family == "clip":
        x["input_ids"][:, 4] = 7
        x["pixel_values"] = torch.randn(2, 3, 12, 12, dtype=torch.float64)
    if family in ("xlnet", "transformer-xl"):
        x["mems"] = torch.randn(2, 2, 5, tiny.WIDTH, dtype=torch.float64)
    if family == "xlnet":
        x["token_type_ids"] = torch.randint(2, (2, length))
        x["perm_mask"] = torch.ones(2, length, length).triu()
        x["target_mapping"] = torch.eye(length)[torch.tensor([[3, 5], [2, 4]])]
    return x


def gradients(model: qkv.Model, out: dict[str, Tensor]) -> dict[str, Tensor]:
    model.net.zero_grad(set_to_none=True)
    torch.stack(
        [value.sin().sum() for name, value in out.items() if name != "mems"]
    ).sum().backward()
    return {name: p.grad for name, p in model.net.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_one_graph_with_the_same_numbers(family: str) -> None:
    model = tiny.build(family)
    x = inputs(family)
    with torch.no_grad():
        plain = model(**x)
        model.net.compile(**GRAPH)
        compare.assert_close(model(**x), plain, 1e-12)


@pytest.mark.parametrize("family", SHAPES.values(), ids=SHAPES)
def test_one_graph_with_the_same_gradients(family: str) -> None:
    model = tiny.build(family)
    x = inputs(family)
    plain = gradients(model, model(**x))
    assert plain.keys() == {name for name, p in model.net.named_parameters() if p.requires_grad}
    model.net.compile(**GRAPH)
    compare.assert_close(gradients(model, model(**x)), plain, 1e-12)


@pytest.mark.parametrize(("family", "changes"), [
    ("sparse", dict(split="heads", stride=16, num_summary=2)), ("modernbert", dict(local_attention=16)),
], ids=["sparse", "modernbert"])  # fmt: skip
def test_one_graph_of_long_rows(family: str, changes: dict[str, Any]) -> None:
    """From 256 tokens on, sparse patterns have a kernel of their own."""
    model = tiny.build(family, **dict(max_positions=300) | changes)
    ids = tiny.random_ids(1, 260)
    plain = model(ids)
    grads = gradients(model, plain)
    model.net.compile(**GRAPH)
    out = model(ids)
    compare.assert_close(out, plain, 1e-12)
    compare.assert_close(gradients(model, out), grads, 1e-12)


@pytest.mark.parametrize("family", [*SHAPES.values(), "albert"])
def test_attention_weights_of_a_model_compiled_in_place(family: str) -> None:
    model = tiny.build(family)
    x = inputs(family)
    names = list(model.net.state_dict())
    with torch.no_grad(), qkv.look(model) as weights:
        plain = model(**x)
    expected_weights = dict(weights)
    model.net.compile(**GRAPH)
    assert list(model.net.state_dict()) == names
    with torch.no_grad():
        before = model(**x)
        with qkv.look(model) as weights:
            out = model(**x)
        after = model(**x)
    compare.assert_close(out, plain, 1e-12)
    assert all(
        torch.equal(out[name], before[name]) and torch.equal(after[name], before[name])
        for name in out
    )
    assert weights.keys() == expected_weights.keys()
    compare.assert_close(weights, expected_weights, 1e-12)


def test_look_at_a_wrapped_model_is_an_error() -> None:
    """`torch.compile(net)` is another module, inside whose graph hooks do not run."""
    model = tiny.build("gpt2")
    ids = tiny.random_ids(2, 6)
    batch = tiny.build_batch(model, ids)
    net = torch.compile(model.net, **GRAPH)
    with torch.no_grad():
        compare.assert_close(net(batch), model.net(batch), 1e-12)
        with pytest.raises(ValueError, match="no attention weights"), qkv.look(model):
            net(batch)


def test_a_step_with_a_cache_is_one_graph() -> None:
    model = tiny.build("gpt2", depth=1)
    ids = tiny.random_ids(2, 3)
    full = model(ids)["logits"]
    model.net.compile(**GRAPH, dynamic=True)
    caches = tiny.empty_caches(model, 2)
    with torch.no_grad():
        for t in range(3):
            out = model.net(tiny.build_batch(model, ids[:, t : t + 1]), caches)["logits"]
            compare.assert_close({"logits": out}, {"logits": full[:, t : t + 1]})


@pytest.mark.slow
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_inductor(family: str) -> None:
    model = tiny.build(family)
    x = inputs(family)
    plain = model(**x)
    grads = gradients(model, plain)
    model.net.compile(fullgraph=True)
    out = model(**x)
    compare.assert_close(out, plain)
    compare.assert_close(gradients(model, out), grads)
