"""Evaluation loop: the loss over all batches of a sampler, and the metrics of an evaluator over the same
outputs. Generates no text."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor, nn

from qkv.data.batches.sampler import BatchSampler
from qkv.train.distributed import DistributedContext
from qkv.train.evaluate.class_report import EMPTY_CLASS_REPORT, ClassReport
from qkv.train.evaluate.evaluator import Evaluator
from qkv.train.evaluate.evaluators import TOKEN_EVALUATOR
from qkv.train.objectives.objective import Objective
from qkv.train.sharding import Sharding

ProgressReporter = Callable[[str, int, int | None], None]  # message, done, total
SINGLE_PROCESS = Sharding("ddp", DistributedContext(), 0, 1)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The metrics of a network on a dataset, and the scores of every class."""

    metrics: dict[str, float]
    class_report: ClassReport = EMPTY_CLASS_REPORT


EvaluationFunction = Callable[[nn.Module], Evaluation]


def ignore_progress(message: str, done: int, total: int | None) -> None:
    """Report no progress."""


def evaluate_batches(
    net: nn.Module,
    sampler: BatchSampler,
    objective: Objective,
    evaluator: Evaluator = TOKEN_EVALUATOR,
    *,
    max_batches: int = 0,
    sharding: Sharding = SINGLE_PROCESS,
    progress: ProgressReporter = ignore_progress,
) -> Evaluation:
    """Return the mean losses and the metrics of a network over the sampler's batches.

    The noise is the same every time; `max_batches` 0 means all batches. Processes share the batches,
    unless the objective is recurrent and each batch needs the previous one."""
    device = next(net.parameters()).device
    sums: dict[str, float] = {}
    counts: dict[str, float] = {}
    collected: list[object] = []
    mems: Tensor | None = None
    batches = sampler.get_batches(0)[: max_batches or None]
    is_shared = sharding.dp_size > 1 and not objective.is_recurrent
    assigned = [(batch, True) for batch in batches]
    if is_shared:
        assigned = sharding.assign_micro_batches(batches)
    for done, (indices, counts_here) in enumerate(assigned, 1):
        batch = objective.collate(sampler.fetch_examples(indices, 0, objective.noise))
        num_targets = objective.count_targets(batch)
        batch = batch.to(device)
        if objective.is_recurrent:
            batch = replace(batch, mems=mems)
        outputs = net(batch)
        mems = outputs.get("mems")
        if counts_here:
            for name, loss in objective.compute_losses(outputs).items():
                sums[name] = sums.get(name, 0.0) + float(loss) * num_targets[name]
                counts[name] = counts.get(name, 0) + num_targets[name]
            collected += evaluator.collect(outputs, indices)
        progress(f"evaluated {done:,} of {len(assigned):,} batches", done, len(assigned))
    results = [(sums, counts, collected)]
    if is_shared:
        results = sharding.distributed.all_gather_object((sums, counts, collected))
    losses = average_losses([sums for sums, _, _ in results], [counts for _, counts, _ in results])
    all_collected = [value for _, _, collected in results for value in collected]
    metrics = evaluator.compute_metrics(all_collected)
    return Evaluation(
        metrics=losses | metrics | compute_language_model_metrics(losses, objective),
        class_report=evaluator.build_class_report(all_collected),
    )


def average_losses(
    sums: list[dict[str, float]], counts: list[dict[str, float]]
) -> dict[str, float]:
    """Return the mean loss over all processes, and its terms if it has several."""
    names = dict.fromkeys(name for process_sums in sums for name in process_sums)
    terms = {}
    for name in names:
        total = sum(process_sums.get(name, 0.0) for process_sums in sums)
        count = sum(process_counts.get(name, 0) for process_counts in counts)
        terms[name] = total / (count or 1)
    return {"loss": sum(terms.values())} | (terms if len(terms) > 1 else {})


def compute_language_model_metrics(
    losses: dict[str, float], objective: Objective
) -> dict[str, float]:
    """Return the perplexity and bits per token of a language model, and bits per dimension of images."""
    if not objective.is_language_model:
        return {}
    bits = losses["loss"] / math.log(2)
    metrics = {"perplexity": math.exp(min(losses["loss"], 700)), "bits_per_token": bits}
    if objective.values_per_token:
        metrics["bits_per_dim"] = bits / objective.values_per_token
    return metrics


def list_metric_names(
    sampler: BatchSampler, objective: Objective, evaluator: Evaluator
) -> list[str]:
    """Return the names of the metrics of `evaluate_batches`, without running a network."""
    batch = objective.collate(sampler.fetch_examples(sampler.get_batches(0)[0], 0, objective.noise))
    losses = average_losses([dict.fromkeys(objective.count_targets(batch), 0.0)], [{}])
    return [*losses, *evaluator.metric_names, *compute_language_model_metrics(losses, objective)]
