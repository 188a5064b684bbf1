"""Gradients of a batch in micro-batches, for losses over all rows of the batch."""

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
from qkv.train.distributed import DistributedContext
from qkv.train.loop.prefetch import MicroBatch, count_batch_tokens
from qkv.train.loop.step import BackwardPass
from qkv.train.objectives import VocabularyInfo, build_objective
from qkv.train.objectives.objective import ForwardOutputs, Objective, wrap_loss_function
from qkv.train.sharding import Sharding
from tests.support import compare, tiny

CPU = torch.device("cpu")
NUM_IMAGE_TOKENS = 10  # patches of tiny CLIP's images, and the class token


def make_examples(count: int = 7) -> list[Example]:
    """Return texts of different lengths that end with CLIP's end token, each with an image."""
    rng = np.random.default_rng(0)

    def text() -> Any:
        return np.append(rng.integers(8, tiny.VOCAB, rng.integers(3, 12)), 7)

    return [
        {"source": text(), "target": text(), "tokens": text(),
         "pixels": rng.integers(0, 256, (12, 12, 3), np.uint8)}
        for _ in range(count)
    ]  # fmt: skip


def build_net_and_objective(name: str, dropout: float = 0.0) -> tuple[nn.Module, Objective]:
    """Return a tiny network in fp32, with random parameters, and its objective."""
    objective = build_objective(
        name, VocabularyInfo(vocab_size=tiny.VOCAB, num_image_tokens=NUM_IMAGE_TOKENS)
    )
    if name == "sentence-contrastive":
        model = tiny.build(
            "bert", dtype=torch.float32, pooling="mean", dropout=dropout, attention_dropout=dropout
        )
    else:
        model = tiny.build("clip", dtype=torch.float32, attention_dropout=dropout)
    for module in model.net.modules():
        if isinstance(module, nn.Dropout):
            module.p = dropout
    return model.net.train(), objective


def build_micro_batches(
    objective: Objective, groups: Sequence[Sequence[Example]]
) -> list[MicroBatch]:
    batches = [objective.collate(group) for group in groups]
    return [
        MicroBatch(batch, objective.count_targets(batch), count_batch_tokens(batch))
        for batch in batches
    ]


def split_examples(count: int) -> list[list[Example]]:
    examples = make_examples()
    return [examples[i::count] for i in range(count)]


@contextmanager
def collect_gradients(net: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Yield a dict that receives the gradients when the block ends."""
    gradients: dict[str, Tensor] = {}
    net.zero_grad(set_to_none=True)
    yield gradients
    gradients |= {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


def compute_gradients(
    net: nn.Module,
    objective: Objective,
    micro_batches: list[MicroBatch],
    forward: Callable[[Batch], ForwardOutputs] | None = None,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    target_counts = {
        name: sum(item.target_counts[name] for item in micro_batches)
        for name in micro_batches[0].target_counts
    }
    backward = BackwardPass(
        forward=forward or net,
        objective=objective,
        sharding=Sharding("ddp", DistributedContext(), 0, 1),
        scale_loss=lambda loss: loss,
        device=CPU,
    )
    with collect_gradients(net) as gradients:
        losses = backward(micro_batches, target_counts)
    return losses, gradients


@pytest.mark.parametrize("count", [2, 3, 7])
@pytest.mark.parametrize("name", ["sentence-contrastive", "image-text-contrastive"])
def test_micro_batches_equal_one_batch(name: str, count: int) -> None:
    net, objective = build_net_and_objective(name)
    with collect_gradients(net) as expected:
        loss = objective(net(objective.collate(make_examples())))
        loss.backward()
    for num_micro_batches in (1, count):
        losses, gradients = compute_gradients(
            net, objective, build_micro_batches(objective, split_examples(num_micro_batches))
        )
        torch.testing.assert_close(losses["loss"], loss.detach(), atol=1e-6, rtol=0)
        assert gradients.keys() == expected.keys()
        compare.assert_close(gradients, expected, 1e-6)
    assert (expected["logit_scale"].abs() > 1e-3) if name == "image-text-contrastive" else expected


@pytest.mark.parametrize("name", ["sentence-contrastive", "image-text-contrastive"])
def test_dropout_is_the_same_in_both_passes(name: str) -> None:
    """The expected values are of one graph over all micro-batches, with the same random numbers."""
    net, objective = build_net_and_objective(name, dropout=0.3)
    micro_batches = build_micro_batches(objective, split_examples(3))
    torch.manual_seed(5)
    with collect_gradients(net) as expected:
        outs = [net(item.batch) for item in micro_batches]
        objective(
            {key: torch.cat([out[key] for out in outs]) for key in objective.full_batch_outputs}
        ).backward()
    after = torch.rand(3)
    torch.manual_seed(5)
    _, gradients = compute_gradients(net, objective, micro_batches)
    assert torch.rand(3).tolist() == after.tolist()  # as many random numbers were used
    compare.assert_close(gradients, expected, 1e-6)
    torch.manual_seed(6)
    _, other = compute_gradients(net, objective, micro_batches)
    assert max(compare.max_difference(other[key], expected[key]) for key in expected) > 1e-3


def test_only_one_graph_is_in_memory() -> None:
    net, objective = build_net_and_objective("sentence-contrastive")
    calls: list[tuple[int, bool]] = []

    def forward(batch: Batch) -> ForwardOutputs:
        assert batch.encoder is not None
        calls.append((batch.encoder.batch_size, torch.is_grad_enabled()))
        return net(batch)

    compute_gradients(net, objective, build_micro_batches(objective, split_examples(3)), forward)
    assert calls == [(6, False), (4, False), (4, True), (6, True), (4, True)]


def test_uncounted_micro_batch_has_no_effect() -> None:
    net, objective = build_net_and_objective("image-text-contrastive")
    micro_batches = build_micro_batches(objective, split_examples(2))
    uncounted = micro_batches[0]._replace(target_counts={"loss": 0}, num_tokens=0)
    expected_losses, expected = compute_gradients(net, objective, micro_batches)
    for order in ([*micro_batches, uncounted], [uncounted, *micro_batches]):
        losses, gradients = compute_gradients(net, objective, order)
        torch.testing.assert_close(losses, expected_losses, atol=1e-6, rtol=0)
        compare.assert_close(gradients, expected, 1e-6)


def test_custom_loss_function_reads_all_rows_and_labels() -> None:
    """Supervised contrastive learning (Khosla et al. 2020): the classes are integers without gradient."""
    net, base_objective = build_net_and_objective("sentence-contrastive")
    seen: list[set[str]] = []

    def loss_function(outputs: ForwardOutputs) -> Tensor:
        seen.append({*outputs})
        embeddings = outputs["sentence_embedding"]
        same = (outputs["class"][:, None] == outputs["class"]).float()
        return F.binary_cross_entropy_with_logits(embeddings @ embeddings.T, same)

    def collate(examples: Sequence[Example]) -> Batch:
        classes = torch.tensor(
            [len(example["source"]) % 2 for example in examples]
        ).repeat_interleave(2)
        batch = base_objective.collate(examples)
        return replace(batch, labels={**batch.labels, "class": classes})

    objective = replace(
        wrap_loss_function(loss_function, base_objective),
        collate=collate,
        full_batch_outputs=("sentence_embedding", "class"),
    )
    expected, actual = (
        compute_gradients(net, objective, build_micro_batches(objective, split_examples(count)))
        for count in (1, 3)
    )
    assert seen[-1] == {"sentence_embedding", "class"}
    torch.testing.assert_close(actual[0], expected[0], atol=1e-6, rtol=0)
    compare.assert_close(actual[1], expected[1], 1e-6)


def test_error_for_a_model_without_pooling() -> None:
    net = tiny.build("bert", dtype=torch.float32).net
    objective = build_objective("sentence-contrastive", VocabularyInfo(vocab_size=tiny.VOCAB))
    with pytest.raises(
        ValueError, match=r'returns no sentence embedding; model\.pooling = "mean" adds one'
    ):
        compute_gradients(net, objective, build_micro_batches(objective, split_examples(2)))
