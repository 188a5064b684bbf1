"""Gradients of a batch that is run in parts, where all of its rows are told from each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.batch import Batch
from qkv.data.batches.collate import Example
from qkv.train.distributed import Team
from qkv.train.loop.prefetch import Part, size
from qkv.train.loop.step import Backward
from qkv.train.objectives import Words, objective
from qkv.train.objectives.objective import Objective, Out, written
from qkv.train.sharding import Spread
from tests.support import tiny

CPU = torch.device("cpu")
CELLS = 10  # of tiny CLIP's images, and the token in front of them


def examples(count: int = 7) -> list[Example]:
    """Texts of different lengths, which end with CLIP's end token, and an image each."""
    rng = np.random.default_rng(0)

    def text() -> Any:
        return np.append(rng.integers(8, tiny.VOCAB, rng.integers(3, 12)), 7)

    return [
        {"source": text(), "target": text(), "tokens": text(),
         "pixels": rng.normal(size=(3, 12, 12)).astype(np.float32)}
        for _ in range(count)
    ]  # fmt: skip


def taught(name: str, drop: float = 0.0) -> tuple[nn.Module, Objective]:
    """A tiny net in fp32, every tensor random."""
    goal = objective(name, Words(size=tiny.VOCAB, cells=CELLS))
    if name == "contrastive":
        made = tiny.model("bert", dtype=torch.float32, vector="mean", drop=drop, attend_drop=drop)
    else:
        made = tiny.model("clip", dtype=torch.float32, attend_drop=drop)
    for module in made.net.modules():
        if isinstance(module, nn.Dropout):
            module.p = drop
    return made.net.train(), goal


def parts_of(goal: Objective, shares: Sequence[Sequence[Example]]) -> list[Part]:
    batches = [goal.collate(share) for share in shares]
    return [Part(batch, goal.counts(batch), size(batch)) for batch in batches]


def shared(count: int) -> list[list[Example]]:
    held = examples()
    return [held[i::count] for i in range(count)]


@contextmanager
def clean(net: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Fills in the gradients that there are in the end."""
    found: dict[str, Tensor] = {}
    net.zero_grad(set_to_none=True)
    yield found
    found |= {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


def gradients(
    net: nn.Module, goal: Objective, parts: list[Part], forward: Callable[[Batch], Out] | None = None
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    whole = {name: sum(part.counts[name] for part in parts) for name in parts[0].counts}
    backward = Backward(
        forward=forward or net, objective=goal, spread=Spread("copy", Team(), 0, 1), scale=lambda loss: loss,
        device=CPU,
    )  # fmt: skip
    with clean(net) as found:
        losses = backward(parts, whole)
    return losses, found


@pytest.mark.parametrize("count", [2, 3, 7])
@pytest.mark.parametrize("name", ["contrastive", "image-text"])
def test_parts_are_one_batch(name: str, count: int) -> None:
    net, goal = taught(name)
    with clean(net) as plain:
        loss = goal(net(goal.collate(examples())))
        loss.backward()
    for shares in (1, count):
        losses, found = gradients(net, goal, parts_of(goal, shared(shares)))
        torch.testing.assert_close(losses["loss"], loss.detach(), atol=1e-6, rtol=0)
        assert found.keys() == plain.keys()
        tiny.close(found, plain, 1e-6)
    assert (plain["temperature"].abs() > 1e-3) if name == "image-text" else plain


@pytest.mark.parametrize("name", ["contrastive", "image-text"])
def test_dropout_is_the_same_both_times(name: str) -> None:
    """One graph over all parts, drawn one after the other, says what is right, and what is drawn next."""
    net, goal = taught(name, drop=0.3)
    parts = parts_of(goal, shared(3))
    torch.manual_seed(5)
    with clean(net) as right:
        outs = [net(part.batch) for part in parts]
        goal({key: torch.cat([out[key] for out in outs]) for key in goal.together}).backward()
    after = torch.rand(3)
    torch.manual_seed(5)
    _, found = gradients(net, goal, parts)
    assert torch.equal(torch.rand(3), after)
    tiny.close(found, right, 1e-6)
    torch.manual_seed(6)
    _, other = gradients(net, goal, parts)
    assert max(tiny.apart(other[key], right[key]) for key in right) > 1e-3


def test_one_graph_is_held_at_a_time() -> None:
    net, goal = taught("contrastive")
    calls: list[tuple[int, bool]] = []

    def forward(batch: Batch) -> Out:
        assert batch.rows is not None
        calls.append((batch.rows.size, torch.is_grad_enabled()))
        return net(batch)

    gradients(net, goal, parts_of(goal, shared(3)), forward)
    assert calls == [(6, False), (4, False), (4, True), (6, True), (4, True)]


def test_a_part_that_is_run_for_company_is_nobodys() -> None:
    net, goal = taught("image-text")
    parts = parts_of(goal, shared(2))
    company = parts[0]._replace(counts={"loss": 0}, tokens=0)
    right_losses, right = gradients(net, goal, parts)
    for order in ([*parts, company], [company, *parts]):
        losses, found = gradients(net, goal, order)
        torch.testing.assert_close(losses, right_losses, atol=1e-6, rtol=0)
        tiny.close(found, right, 1e-6)


def test_a_function_of_ones_own_reads_all_rows_and_what_goes_along() -> None:
    """Vectors of one kind are near (Khosla et al. 2020); the kinds are numbers, which learn nothing."""
    net, like = taught("contrastive")
    seen: list[set[str]] = []

    def near(out: Out) -> Tensor:
        seen.append({*out})
        scores = out["vector"] @ out["vector"].T
        same = (out["kind"][:, None] == out["kind"]).float()
        return F.binary_cross_entropy_with_logits(scores, same)

    def collate(held: Sequence[Example]) -> Batch:
        kinds = torch.tensor([len(one["source"]) % 2 for one in held]).repeat_interleave(2)
        batch = like.collate(held)
        return replace(batch, labels={**batch.labels, "kind": kinds})

    goal = replace(written(near, like), collate=collate, together=("vector", "kind"))
    one, two = (gradients(net, goal, parts_of(goal, shared(count))) for count in (1, 3))
    assert seen[-1] == {"vector", "kind"}
    torch.testing.assert_close(two[0], one[0], atol=1e-6, rtol=0)
    tiny.close(two[1], one[1], 1e-6)


def test_a_model_without_vectors_says_so() -> None:
    net = tiny.model("bert", dtype=torch.float32).net
    goal = objective("contrastive", Words(size=tiny.VOCAB))
    with pytest.raises(ValueError, match=r'gives no vector; model\.vector = "mean" adds one'):
        gradients(net, goal, parts_of(goal, shared(2)))
