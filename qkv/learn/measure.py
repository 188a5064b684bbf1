"""Measures: the loss over all of a feed, and what can be read off the same outputs. Decodes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from torch import Tensor, nn

from qkv.data.feed import Feed
from qkv.data.rows import NONE
from qkv.learn.objective import Objective, Out

Measure = Callable[[nn.Module], dict[str, float]]
LANGUAGE = ("causal-lm", "masked-lm", "control-codes", "permutation-lm", "recurrence")


def over(feed: Feed, objective: Objective, most: int = 0) -> Measure:
    """The mean loss over the batches of a feed, `most` of them at most; noise is the same every time."""

    def measure(net: nn.Module) -> dict[str, float]:
        device = next(net.parameters()).device
        sums: dict[str, float] = {}
        counts: dict[str, int] = {}
        right = asked = 0
        memory: Tensor | None = None
        batches = feed.batches(0)
        for indices in batches[:most] if most else batches:
            batch = objective.collate(feed.draw(indices, 0, objective.noise))
            count = objective.counts(batch)
            batch = batch.to(device)
            if objective.recurrent:
                batch = replace(batch, memory=memory)
            out = net(batch)
            memory = out.get("memory")
            for name, loss in objective.parts(out).items():
                sums[name] = sums.get(name, 0.0) + float(loss) * count[name]
                counts[name] = counts.get(name, 0) + count[name]
            hits, all_ = agreed(out)
            right, asked = right + hits, asked + all_
        means = {name: total / max(counts[name], 1) for name, total in sums.items()}
        found = {"loss": sum(means.values())} | (means if len(means) > 1 else {})
        if asked:
            found["accuracy"] = right / asked
        if objective.name in LANGUAGE:
            found |= {"perplexity": math.exp(min(found["loss"], 700)), "bits": found["loss"] / math.log(2)}
        return found

    return measure


def agreed(out: Out) -> tuple[int, int]:
    """How many labels are the likeliest of their logits, and of how many."""
    if "logits" not in out or "labels" not in out or out["labels"].is_floating_point():
        return 0, 0
    labels = out["labels"]
    logits = out["logits"].flatten(0, -2) if out["logits"].dim() > 1 else out["logits"]
    if logits.shape[:-1] != labels.flatten().shape:
        return 0, 0
    asked = labels.flatten() != NONE
    return int((logits.argmax(-1) == labels.flatten())[asked].sum()), int(asked.sum())
