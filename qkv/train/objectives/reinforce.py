"""REINFORCE for hard attention: terms of a loss whose gradient trains where the network attends.

The gradient of the expected loss with respect to the distribution of the sampled locations s is

    E[(loss - baseline) * grad log p(s)]

for every baseline that does not depend on the samples (Xu et al. 2015, equations 10 to 13). The loss is
that of the targets which a sample affects: those of its row, and of a causal decoder those from its
token on. The baseline is a moving average of the loss per target; the entropy of the distributions is a
bonus that keeps them from collapsing early."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from qkv.batch import Batch
from qkv.data.batches.collate import Example
from qkv.decode.runner import attends_to_future
from qkv.nn.network import DualEncoder, Network
from qkv.nn.selections import Hard
from qkv.nn.transformer import SAMPLE_OUTPUTS
from qkv.spec import DualSpec, Spec, StackSpec
from qkv.train.objectives.objective import TARGET_ROWS, ForwardOutputs, MovingBaseline, Objective
from qkv.validate import check_number

# Settings of every objective, and their defaults; a model with hard attention needs the first.
REINFORCE_DEFAULTS: dict[str, Any] = {
    "baseline_decay": None,
    "reinforce_weight": 1.0,
    "entropy_weight": 0.0,
}


def has_hard_attention(net: nn.Module) -> bool:
    """Return whether a network samples what it attends to."""
    return any(isinstance(module, Hard) for module in net.modules())


def prepare_hard_attention(
    objective: Objective, net: Network | DualEncoder, settings: Mapping[str, Any]
) -> Objective:
    """Return the objective with the terms of REINFORCE if the network has hard attention.

    `settings` are those of the recipe, of which REINFORCE_DEFAULTS are read."""
    changes = {name: settings[name] for name in REINFORCE_DEFAULTS if name in settings}
    if not has_hard_attention(net):
        for name, value in changes.items():
            raise ValueError(
                f"objective.{name} {value!r}: the model has no hard attention; remove it, or set "
                'model.attention_select = "hard"'
            )
        return objective
    if changes.get("baseline_decay") is None:
        raise ValueError(
            "hard attention without a baseline: set objective.baseline_decay, the decay of the moving "
            'average that is subtracted from the loss, such as 0.9; or use attention_select = "gumbel"'
        )
    if objective.compute_row_losses is None:
        raise ValueError(
            f"objective {objective.name!r} cannot train hard attention, because its loss is not a sum "
            'over the rows of a batch: use attention_select = "gumbel"'
        )
    values = REINFORCE_DEFAULTS | changes
    check_number("objective.baseline_decay", values["baseline_decay"], at_least=0, less_than=1)
    check_number("objective.reinforce_weight", values["reinforce_weight"], more_than=0)
    check_number("objective.entropy_weight", values["entropy_weight"], at_least=0)
    baseline = MovingBaseline(values["baseline_decay"])
    return add_reinforce(
        objective,
        baseline,
        values["reinforce_weight"],
        values["entropy_weight"],
        is_causal=has_causal_decoder(net.spec),
    )


def add_reinforce(
    objective: Objective,
    baseline: MovingBaseline,
    reinforce_weight: float,
    entropy_weight: float,
    *,
    is_causal: bool,
) -> Objective:
    """Return the objective with the gradient of REINFORCE in its loss, whose value does not change, and
    with the term `attention_entropy` if it has a weight.

    `is_causal`: a location that the decoder draws for a token affects this and later targets only."""
    compute_row_losses = objective.compute_row_losses
    assert compute_row_losses is not None

    def compute_losses(outputs: ForwardOutputs) -> dict[str, Tensor]:
        losses_of_targets, is_target = compute_row_losses(outputs)
        num_targets = is_target.sum().clamp(min=1)
        expected = baseline.get(losses_of_targets.sum() / num_targets) * is_target
        advantages = (losses_of_targets - expected).detach()  # (B, T)
        row_advantages = advantages.sum(1, keepdim=True)
        surrogates, entropies = [], []
        for prefix in ("", "encoder_"):
            if f"{prefix}attention_log_probs" not in outputs:
                continue
            log_probs = outputs[f"{prefix}attention_log_probs"]
            is_aligned = is_causal and not prefix and log_probs.shape == advantages.shape
            affected = advantages.flip(1).cumsum(1).flip(1) if is_aligned else row_advantages
            surrogates.append((affected * log_probs).sum())
            entropies.append(outputs[f"{prefix}attention_entropy"].sum())
        surrogate = torch.stack(surrogates).sum() * reinforce_weight / num_targets
        losses = objective.compute_losses(outputs)
        losses["loss"] = losses["loss"] + (surrogate - surrogate.detach())
        if entropy_weight:
            entropy = torch.stack(entropies).sum() / num_targets
            losses["attention_entropy"] = -entropy_weight * entropy
        return losses

    has_entropy = entropy_weight > 0
    return replace(
        prepare_batches(objective, has_entropy),
        compute_losses=compute_losses,
        is_language_model=False,
        baseline=baseline,
        rebuild=objective.rebuild and partial(rebuild_with_samples, objective.rebuild, has_entropy),
    )


def has_causal_decoder(spec: Spec | DualSpec) -> bool:
    """Return whether the last stack is a decoder, in which no token depends on a later one."""
    if isinstance(spec, DualSpec) or spec.decoder is None:
        return False
    if not isinstance(spec.decoder, StackSpec):
        return True
    return not any(attends_to_future(layer.attention.pattern) for layer in spec.decoder.layers)


def collate_with_samples(
    collate: Callable[[Sequence[Example]], Batch], examples: Sequence[Example]
) -> Batch:
    """Collate a batch that asks the network for the statistics of its samples."""
    batch = collate(examples)
    labels = batch.labels
    if batch.logit_positions is not None and batch.last_stack_inputs is not None:
        labels = labels | {TARGET_ROWS: batch.logit_positions // batch.last_stack_inputs.length}
    extra_outputs = (*batch.extra_outputs, *sorted(SAMPLE_OUTPUTS))
    return replace(batch, labels=labels, extra_outputs=extra_outputs)


def prepare_batches(objective: Objective, has_entropy: bool) -> Objective:
    """Return the objective with batches that ask for the statistics of samples, and counts of their
    targets: with those of the entropy term, if it has a weight."""

    def count_targets(batch: Batch) -> Mapping[str, float]:
        counts = dict(objective.count_targets(batch))
        return counts | ({"attention_entropy": counts["loss"]} if has_entropy else {})

    collate = partial(collate_with_samples, objective.collate)
    return replace(objective, collate=collate, count_targets=count_targets)


def rebuild_with_samples(rebuild: Callable[[], Objective], has_entropy: bool) -> Objective:
    """Build the objective in a process that makes batches."""
    return prepare_batches(rebuild(), has_entropy)
