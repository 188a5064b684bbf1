"""REINFORCE for hard attention: an unbiased gradient, a baseline that is saved, and learning."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import qkv
from qkv.batch import Batch, Inputs
from qkv.data.batches.collate import Example
from qkv.nn.selections import Hard
from qkv.train.objectives import build_objective
from qkv.train.objectives.objective import MovingBaseline, Objective
from qkv.train.objectives.reinforce import add_reinforce, prepare_hard_attention
from tests.support import tiny
from tests.support.objectives import VOCAB, make_batch, make_row, make_text

T = 3
NAMES = ("attention_log_probs", "attention_entropy")


def build_hard_model(**changes: Any) -> qkv.Model:
    settings: dict[str, Any] = dict(depth=1, heads=1, head_dim=6, attention_select="hard")
    dropouts = dict(dropout=0.0, embedding_dropout=0.0, attention_dropout=0.0)
    return tiny.build("gpt2", **settings | dropouts | changes)


def build_reinforced_objective(
    baseline: float = torch.nan, entropy_weight: float = 0.0, *, is_causal: bool = True
) -> Objective:
    moving = MovingBaseline(0.9)
    moving.value.fill_(baseline)
    objective = build_objective("causal-lm", VOCAB)
    return add_reinforce(objective, moving, 1.0, entropy_weight, is_causal=is_causal)


def repeat_batch(rows: int) -> Batch:
    ids = tiny.random_ids(1, T + 1)
    inputs = Inputs.create(ids[:, :-1].expand(rows, -1))
    labels = {"labels": ids[:, 1:].expand(rows, -1).contiguous()}
    return Batch(decoder=inputs, labels=labels, extra_outputs=NAMES)


def run_all_samples(
    model: qkv.Model, depth: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, Tensor], Tensor]:
    """Return the outputs of a row for all locations that the queries of all layers can attend to, and
    the probabilities (N,) of these samples."""
    choices = [*itertools.product(*(range(t + 1) for _ in range(depth) for t in range(T)))]
    samples = F.one_hot(torch.tensor(choices), T)[:, None].double()  # (N, 1, depth * T, S)
    layers = iter(samples.split(T, dim=2))

    def take_samples(self: Hard, scores: Tensor, mask: Tensor | None, query: Tensor) -> Tensor:
        return next(layers)

    with monkeypatch.context() as patch:
        patch.setattr(Hard, "forward", take_samples)
        outputs = model.net(repeat_batch(len(choices)))
    probs = outputs["attention_log_probs"].sum(1).exp()
    assert probs.sum().item() == pytest.approx(1)
    return outputs, probs


def compute_expected_loss(outputs: dict[str, Tensor], probs: Tensor) -> Tensor:
    losses = F.cross_entropy(outputs["logits"].transpose(1, 2), outputs["labels"], reduction="none")
    return (probs * losses.mean(1)).sum()


def flatten_gradients(model: qkv.Model, loss: Tensor) -> Tensor:
    parameters = [*model.net.parameters()]
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    return torch.cat(
        [
            torch.zeros_like(p).flatten() if g is None else g.flatten()
            for p, g in zip(parameters, gradients, strict=True)
        ]
    )


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("baseline", [0.0, 4.0])
def test_the_expectation_of_the_gradient_is_that_of_the_expected_loss(
    baseline: float, is_causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The estimate is unbiased for all parameters and any baseline: its mean over all samples, weighted
    by their probabilities, is exact."""
    model = build_hard_model(depth=2)
    objective = build_reinforced_objective(baseline, is_causal=is_causal)
    outputs, probs = run_all_samples(model, 2, monkeypatch)
    assert len(probs) == 36
    losses = [
        objective({name: x[n : n + 1] for name, x in outputs.items()}) for n in range(len(probs))
    ]
    mean = flatten_gradients(model, (torch.stack(losses) * probs.detach()).sum())
    outputs, probs = run_all_samples(model, 2, monkeypatch)
    expected = flatten_gradients(model, compute_expected_loss(outputs, probs))
    torch.testing.assert_close(mean, expected, rtol=0, atol=1e-10)


def test_the_mean_of_many_samples_is_the_gradient_of_the_expected_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The network draws its samples from the distribution whose log-probabilities it returns."""
    torch.manual_seed(0)
    model = build_hard_model()
    model.net.train()
    expected = flatten_gradients(
        model, compute_expected_loss(*run_all_samples(model, 1, monkeypatch))
    )
    objective = build_reinforced_objective(4.0)
    batch = repeat_batch(4000)
    estimates = torch.stack(
        [flatten_gradients(model, objective(model.net(batch))) for _ in range(20)]
    )
    standard_error = estimates.std(0) / 20**0.5
    difference = estimates.mean(0) - expected
    # Of about 5,000 parameters: the largest of so many deviations is below 6.
    assert (difference.abs() / (standard_error + 1e-9)).max() < 6
    without = flatten_gradients(model, build_objective("causal-lm", VOCAB)(model.net(batch)))
    assert (without - expected).norm() > 10 * difference.norm()


def test_a_good_baseline_and_causality_lower_the_variance() -> None:
    """Of the gradient of queries and keys, over random rows."""
    torch.manual_seed(0)
    model = build_hard_model()
    model.net.train()
    names = ("decoder.layers.0.attention.q.weight", "decoder.layers.0.attention.k.weight")
    parameters = [model.net.get_parameter(name) for name in names]

    def measure_variance(baseline: float, is_causal: bool) -> float:
        objective = build_reinforced_objective(baseline, is_causal=is_causal)
        gradients = []
        for seed in range(100):
            ids = tiny.random_ids(8, 17, seed=seed)
            inputs = Inputs.create(ids[:, :-1])
            labels = {"labels": ids[:, 1:].contiguous()}
            out = model.net(Batch(decoder=inputs, labels=labels, extra_outputs=NAMES))
            gradients.append(torch.cat(torch.autograd.grad(objective(out), parameters)))
        return torch.stack(gradients).var(0).sum().item()

    batch = Batch(decoder=Inputs.create(tiny.random_ids(99, 16)))
    labels = {"labels": tiny.random_ids(99, 16, seed=1)}
    mean_loss = build_objective("causal-lm", VOCAB)(model.net(batch) | labels).item()
    without, with_baseline = (measure_variance(x, False) for x in (0.0, mean_loss))
    assert with_baseline < 0.5 * without
    assert measure_variance(mean_loss, True) < 0.7 * with_baseline


def test_the_value_of_the_loss_does_not_change() -> None:
    model = build_hard_model()
    out = model.net(repeat_batch(2))
    losses = build_reinforced_objective(1.0).compute_losses(out)
    assert losses["loss"] == build_objective("causal-lm", VOCAB)(out)


def test_the_entropy_term_raises_the_entropy() -> None:
    model = build_hard_model()
    batch = repeat_batch(2)
    out = model.net(batch)
    losses = build_reinforced_objective(0.0, entropy_weight=0.5).compute_losses(out)
    expected = -0.5 * out["attention_entropy"].sum() / (2 * T)
    torch.testing.assert_close(losses["attention_entropy"], expected)


def make_examples(name: str) -> list[Example]:
    """Return two examples of different lengths."""
    if name == "seq2seq":
        return [{"source": make_text(5), "target": make_text(n, n)} for n in (7, 4)]
    if name == "sequence-classification":
        return [{**make_row(n, n), "label": make_text(1, n) % 3} for n in (7, 4)]
    return [make_row(n, n) for n in (9, 6)]


@pytest.mark.parametrize(
    ("name", "settings"),
    [("causal-lm", {}), ("masked-lm", dict(mask_prob=0.5)), ("sequence-classification", {}),
     ("seq2seq", {}), ("seq2seq", dict(label_smoothing=0.1))],
)  # fmt: skip
def test_losses_of_rows_sum_to_the_loss(name: str, settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    objective = build_objective(name, VOCAB, **settings)
    reinforced = add_reinforce(objective, MovingBaseline(0.9), 1.0, 0.0, is_causal=False)
    batch = make_batch(reinforced, make_examples(name))
    assert {*batch.extra_outputs} == {*NAMES}
    num_classes = 3 if name == "sequence-classification" else VOCAB.vocab_size
    logits = torch.randn(*batch.labels["labels"].shape, num_classes)
    outputs = {**batch.labels, "logits": logits, "last_hidden_state": torch.zeros(2, 1, 1)}
    assert reinforced.compute_row_losses is not None
    losses, is_target = reinforced.compute_row_losses(outputs)
    assert len(losses) == len(is_target) == 2
    row_losses, row_targets = losses.sum(1), is_target.sum(1)
    assert row_targets.sum() == objective.count_targets(batch)["loss"]
    mean = objective.compute_losses(outputs)["loss"]
    torch.testing.assert_close(row_losses.sum() / row_targets.sum(), mean)
    alone = make_batch(reinforced, make_examples(name)[:1]).labels["labels"]
    if name == "masked-lm":
        first_logits = logits[batch.labels["target_rows"] == 0][: len(alone)]
    else:
        first_logits = logits[:1] if alone.dim() == 1 else logits[:1, : alone.shape[1]]
    first = objective({"logits": first_logits, "labels": alone})
    torch.testing.assert_close(row_losses[0] / row_targets[0], first)


@pytest.mark.parametrize(
    "name", ["causal-lm", "permutation-lm", "masked-lm", "token-classification"]
)
def test_objectives_of_labels_train_hard_attention(name: str) -> None:
    objective = build_objective(name, VOCAB)
    prepared = prepare_hard_attention(objective, build_hard_model().net, {"baseline_decay": 0.9})
    assert prepared.baseline is not None


@pytest.mark.parametrize(
    ("name", "settings"),
    [("distillation", {}), ("image-text-contrastive", {}), ("question-answering", {}),
     ("sequence-classification", dict(problem_type="regression"))],
)  # fmt: skip
def test_other_objectives_refuse_hard_attention(name: str, settings: dict[str, Any]) -> None:
    objective = build_objective(name, VOCAB, **settings)
    with pytest.raises(ValueError, match=f"objective '{name}' cannot train hard attention"):
        prepare_hard_attention(objective, build_hard_model().net, {"baseline_decay": 0.9})


@pytest.mark.parametrize(
    ("settings", "select", "message"),
    [
        ({}, "hard", "hard attention without a baseline: set objective.baseline_decay"),
        (dict(entropy_weight=0.1), "hard", "hard attention without a baseline"),
        (dict(baseline_decay=1.0), "hard", "objective.baseline_decay is 1.0: expected a number"),
        (dict(baseline_decay="slow"), "hard", "objective.baseline_decay is 'slow'"),
        (dict(baseline_decay=0.9, reinforce_weight=0), "hard", "objective.reinforce_weight is 0"),
        (dict(baseline_decay=0.9, entropy_weight=-1), "hard", "objective.entropy_weight is -1"),
        (dict(baseline_decay=0.9), "gumbel", "the model has no hard attention; remove it"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], select: str, message: str) -> None:
    objective = build_objective("causal-lm", VOCAB)
    net = build_hard_model(attention_select=select).net
    with pytest.raises(ValueError, match=message) as error:
        prepare_hard_attention(objective, net, settings)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("select", ["softmax", "gumbel"])
def test_other_attention_needs_no_baseline(select: str) -> None:
    objective = build_objective("causal-lm", VOCAB)
    net = build_hard_model(attention_select=select).net
    assert prepare_hard_attention(objective, net, {}) is objective


def test_the_baseline_is_a_moving_average() -> None:
    baseline = MovingBaseline(0.9)
    assert baseline.get(torch.tensor(5.0)) == 5
    for loss in (4.0, 2.0, torch.nan):
        baseline.update(torch.tensor(loss))
    assert baseline.value.item() == pytest.approx(0.9 * 4 + 0.1 * 2)
    assert baseline.get(torch.tensor(5.0)).item() == pytest.approx(3.8)


def test_hard_attention_learns_where_to_look() -> None:
    """One token of each row decides its label; the first token has to attend to it."""
    torch.manual_seed(0)
    model = qkv.build(
        "bert", vocab_size=12, width=16, depth=1, heads=1, ffn_width=32, max_positions=8, dropout=0.0,
        attention_dropout=0.0, classifier_dropout=0.0, head="sequence-classification", num_labels=4,
        attention_select="hard",
    )  # fmt: skip
    base = build_objective("sequence-classification", VOCAB)
    objective = add_reinforce(base, MovingBaseline(0.9), 1.0, 0.01, is_causal=False)
    assert objective.baseline is not None
    optimizer = torch.optim.Adam(model.net.parameters(), lr=1e-2)
    model.net.train()

    def draw_batch(rows: int) -> tuple[Batch, Tensor]:
        ids = torch.randint(1, 8, (rows, 8))
        ids[:, 0] = 0
        places = torch.randint(1, 8, (rows,))
        labels = torch.randint(4, (rows,))
        ids[torch.arange(rows), places] = 8 + labels
        inputs = Inputs.create(ids)
        return Batch(encoder=inputs, labels={"labels": labels}, extra_outputs=NAMES), places

    for _ in range(500):
        batch, _ = draw_batch(64)
        losses = objective.compute_losses(model.net(batch))
        optimizer.zero_grad()
        torch.stack([*losses.values()]).sum().backward()
        optimizer.step()
        objective.baseline.update(losses["loss"])
    model.net.eval()
    batch, places = draw_batch(500)
    with qkv.look(model) as weights:
        logits = model.net(batch)["logits"]
    attended = weights["encoder.layers.0.attention"][:, 0, 0].argmax(-1)
    assert (logits.argmax(-1) == batch.labels["labels"]).float().mean() > 0.95
    # A row without the tokens of three labels has the fourth one, which need not be prepared.
    assert (attended == places).float().mean() > 0.7
