"""torch.compile: the forward is one graph with the same outputs, and `qkv.look` works."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from qkv.torch_compat import set_compiled_call
from tests.support import compare, tiny

GRAPH: dict[str, Any] = dict(fullgraph=True, backend="aot_eager")
ARCHITECTURES = {
    "encoder": "bert",
    "decoder": "gpt2",
    "encoder-decoder": "t5",
    "dual-encoder": "clip",
}


@pytest.fixture(autouse=True)
def _reset_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def build_inputs(family: str, length: int = 9) -> dict[str, Any]:
    """Return padded rows and the other inputs of a family."""
    mask = torch.arange(length) < torch.tensor([[length], [length - 3]])
    if family in tiny.PIXEL_FAMILIES:
        inputs = tiny.build_inputs(tiny.build(family))
        return inputs | ({} if family != "video-transformer" else {"attention_mask": mask})
    inputs = {"input_ids": tiny.random_ids(2, length), "attention_mask": mask}
    if family in tiny.ENCODER_DECODERS:
        inputs["decoder_input_ids"] = tiny.random_ids(2, 5, seed=1)
        inputs["decoder_attention_mask"] = torch.arange(5) >= torch.tensor([[2], [0]])
    if family == "clip":
        inputs["input_ids"][:, 4] = 7
        inputs["pixel_values"] = torch.randn(2, 3, 12, 12, dtype=torch.float64)
    if family in ("xlnet", "transformer-xl"):
        inputs["mems"] = torch.randn(2, 2, 5, tiny.WIDTH, dtype=torch.float64)
    if family == "xlnet":
        inputs["token_type_ids"] = torch.randint(2, (2, length))
        inputs["perm_mask"] = torch.ones(2, length, length).triu()
        inputs["target_mapping"] = torch.eye(length)[torch.tensor([[3, 5], [2, 4]])]
    return inputs


def compute_gradients(model: qkv.Model, out: dict[str, Tensor]) -> dict[str, Tensor]:
    model.net.zero_grad(set_to_none=True)
    losses = [value.sin().sum() for name, value in out.items() if name != "mems"]
    torch.stack(losses).sum().backward()
    return {name: p.grad for name, p in model.net.named_parameters() if p.grad is not None}


# Recurrent models have no blocks to compile: their kernels run whole sequences.
COMPILED = [family for family in tiny.FAMILIES if family not in tiny.RECURRENT_DECODERS]


@pytest.mark.parametrize("family", COMPILED)
def test_the_forward_is_one_graph_with_the_same_outputs(family: str) -> None:
    model = tiny.build(family)
    inputs = build_inputs(family)
    with torch.no_grad():
        plain = model(**inputs)
        model.net.compile(**GRAPH)
        compare.assert_close(model(**inputs), plain, 1e-12)


@pytest.mark.parametrize("family", ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_the_backward_gives_the_same_gradients(family: str) -> None:
    model = tiny.build(family)
    inputs = build_inputs(family)
    plain = compute_gradients(model, model(**inputs))
    assert plain.keys() == {name for name, p in model.net.named_parameters() if p.requires_grad}
    model.net.compile(**GRAPH)
    compare.assert_close(compute_gradients(model, model(**inputs)), plain, 1e-12)


@pytest.mark.parametrize(("family", "changes"), [
    ("sparse", dict(split="heads", stride=16, num_summary=2)), ("modernbert", dict(local_attention=16)),
], ids=["sparse", "modernbert"])  # fmt: skip
def test_sparse_attention_of_long_rows_is_one_graph(family: str, changes: dict[str, Any]) -> None:
    """From 256 tokens on, sparse patterns have a kernel of their own."""
    model = tiny.build(family, **dict(max_positions=300) | changes)
    ids = tiny.random_ids(1, 260)
    plain = model(ids)
    grads = compute_gradients(model, plain)
    model.net.compile(**GRAPH)
    out = model(ids)
    compare.assert_close(out, plain, 1e-12)
    compare.assert_close(compute_gradients(model, out), grads, 1e-12)


@pytest.mark.parametrize("family", [*ARCHITECTURES.values(), "albert"])
def test_look_records_a_model_compiled_in_place(family: str) -> None:
    model = tiny.build(family)
    inputs = build_inputs(family)
    names = list(model.net.state_dict())
    with torch.no_grad(), qkv.look(model) as weights:
        plain = model(**inputs)
    expected_weights = dict(weights)
    model.net.compile(**GRAPH)
    assert list(model.net.state_dict()) == names
    with torch.no_grad():
        before = model(**inputs)
        with qkv.look(model) as weights:
            out = model(**inputs)
        after = model(**inputs)
    compare.assert_close(out, plain, 1e-12)
    for other in (out, after):
        compare.assert_bitwise_equal(other, before, because=compare.SAME_KERNELS)
    assert weights.keys() == expected_weights.keys()
    compare.assert_close(weights, expected_weights, 1e-12)


@pytest.mark.parametrize("family", ["gpt2", "bart", "transformer-xl", "bahdanau", "lstmn"])
def test_look_does_not_change_what_a_compiled_model_generates(family: str) -> None:
    """The second run, which records the weights, must not advance the caches."""
    model = tiny.build(family)
    set_compiled_call(model.net, model.net.forward)
    ids = tiny.random_ids(1, 5)
    settings: dict[str, Any] = dict(max_new_tokens=12, do_sample=True, seed=3)
    expected = model.generate(ids, **settings)
    with qkv.look(model):
        token_ids = model.generate(ids, **settings)
    compare.assert_bitwise_equal(token_ids, expected, because=compare.SAME_KERNELS)


def test_look_does_not_change_the_random_numbers_of_a_compiled_model() -> None:
    model = tiny.build("gpt2", dropout=0.5)
    set_compiled_call(model.net, model.net.forward)
    ids = tiny.random_ids(2, 6)
    model.train()
    torch.manual_seed(0)
    expected = [model(ids).logits for _ in range(2)]
    torch.manual_seed(0)
    with torch.no_grad(), qkv.look(model):
        logits = [model(ids).logits for _ in range(2)]
    for actual, plain in zip(logits, expected, strict=True):
        compare.assert_bitwise_equal(actual, plain.detach(), because=compare.SAME_KERNELS)


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
    caches = tiny.create_caches(model, 2)
    with torch.no_grad():
        for t in range(3):
            out = model.net(tiny.build_batch(model, ids[:, t : t + 1]), caches)["logits"]
            compare.assert_close({"logits": out}, {"logits": full[:, t : t + 1]})


@pytest.mark.slow
@pytest.mark.parametrize("family", COMPILED)
def test_inductor_gives_the_same_outputs_and_gradients(family: str) -> None:
    model = tiny.build(family)
    inputs = build_inputs(family)
    plain = model(**inputs)
    grads = compute_gradients(model, plain)
    model.net.compile(fullgraph=True)
    out = model(**inputs)
    compare.assert_close(out, plain)
    compare.assert_close(compute_gradients(model, out), grads)
