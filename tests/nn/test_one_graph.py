"""The forward compiles as one graph, with the same numbers, and can still be looked at."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from tests.support import tiny

GRAPH: dict[str, Any] = dict(fullgraph=True, backend="aot_eager")
SHAPES = {"encoder": "bert", "decoder": "gpt2", "both": "t5", "towers": "clip"}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def inputs(family: str, length: int = 9) -> dict[str, Any]:
    """Padded rows, and whatever else a family reads."""
    seats = torch.arange(length) < torch.tensor([[length], [length - 3]])
    x: dict[str, Any] = {"ids": tiny.ids(2, length), "mask": seats}
    if family in tiny.PAIRS:
        x |= {"target": tiny.ids(2, 5, seed=1), "target_mask": torch.arange(5) >= torch.tensor([[2], [0]])}
    if family == "clip":
        x["ids"][:, 4] = 7
        x["images"] = torch.randn(2, 3, 12, 12, dtype=torch.float64)
    if family in ("xlnet", "transformer-xl"):
        x["memory"] = torch.randn(2, 2, 5, tiny.WIDTH, dtype=torch.float64)
    if family == "xlnet":
        x["types"] = torch.randint(2, (2, length))
        x["permute"] = torch.ones(2, length, length).triu()
        x["targets"] = torch.eye(length)[torch.tensor([[3, 5], [2, 4]])]
    return x


def gradients(made: qkv.Model, out: dict[str, Tensor]) -> dict[str, Tensor]:
    made.net.zero_grad(set_to_none=True)
    torch.stack([value.sin().sum() for name, value in out.items() if name != "memory"]).sum().backward()
    return {name: p.grad for name, p in made.net.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_one_graph_with_the_same_numbers(family: str) -> None:
    made, x = tiny.model(family), inputs(family)
    with torch.no_grad():
        plain = made.run(**x)
        made.net.compile(**GRAPH)
        tiny.close(made.run(**x), plain, 1e-12)


@pytest.mark.parametrize("family", SHAPES.values(), ids=SHAPES)
def test_one_graph_with_the_same_gradients(family: str) -> None:
    made, x = tiny.model(family), inputs(family)
    plain = gradients(made, made.run(**x))
    assert plain.keys() == {name for name, p in made.net.named_parameters() if p.requires_grad}
    made.net.compile(**GRAPH)
    tiny.close(gradients(made, made.run(**x)), plain, 1e-12)


@pytest.mark.parametrize(("family", "changes"), [
    ("sparse", dict(split="heads", stride=16, cells=2)), ("modernbert", dict(window=16)),
], ids=["sparse", "modernbert"])  # fmt: skip
def test_one_graph_of_long_rows(family: str, changes: dict[str, Any]) -> None:
    """From 256 tokens on another kernel sees to patterns that show few keys."""
    made = tiny.model(family, **dict(length=300) | changes)
    ids = tiny.ids(1, 260)
    plain = made.run(ids)
    grads = gradients(made, plain)
    made.net.compile(**GRAPH)
    out = made.run(ids)
    tiny.close(out, plain, 1e-12)
    tiny.close(gradients(made, out), grads, 1e-12)


@pytest.mark.parametrize("family", [*SHAPES.values(), "albert"])
def test_compiled_in_place_it_can_be_looked_at(family: str) -> None:
    made, x = tiny.model(family), inputs(family)
    names = list(made.net.state_dict())
    with torch.no_grad(), qkv.look(made) as seen:
        plain = made.run(**x)
    weights = dict(seen)
    made.net.compile(**GRAPH)
    assert list(made.net.state_dict()) == names
    with torch.no_grad():
        unseen = made.run(**x)
        with qkv.look(made) as seen:
            out = made.run(**x)
        after = made.run(**x)
    tiny.close(out, plain, 1e-12)
    assert all(
        torch.equal(out[name], unseen[name]) and torch.equal(after[name], unseen[name]) for name in out
    )
    assert seen.keys() == weights.keys()
    tiny.close(seen, weights, 1e-12)


def test_wrapped_it_is_never_looked_at_in_silence() -> None:
    """`torch.compile(net)` is another module, whose graph no hook sees into."""
    made, ids = tiny.model("gpt2"), tiny.ids(2, 6)
    batch = tiny.batch(made, ids)
    net = torch.compile(made.net, **GRAPH)
    with torch.no_grad():
        tiny.close(net(batch), made.net(batch), 1e-12)
        with pytest.raises(ValueError, match="nothing was seen"), qkv.look(made):
            net(batch)


def test_a_step_with_memory_is_one_graph() -> None:
    made, ids = tiny.model("gpt2", depth=1), tiny.ids(2, 3)
    full = made.run(ids)["logits"]
    made.net.compile(**GRAPH, dynamic=True)
    memory = tiny.memory(made, 2)
    with torch.no_grad():
        for t in range(3):
            out = made.net(tiny.batch(made, ids[:, t : t + 1]), memory)["logits"]
            tiny.close({"logits": out}, {"logits": full[:, t : t + 1]})


@pytest.mark.slow
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_inductor(family: str) -> None:
    made, x = tiny.model(family), inputs(family)
    plain = made.run(**x)
    grads = gradients(made, plain)
    made.net.compile(fullgraph=True)
    out = made.run(**x)
    tiny.close(out, plain)
    tiny.close(gradients(made, out), grads)
