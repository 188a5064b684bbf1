"""Measures: the loss over all of a feed, and what a judge reads off the same outputs. Decodes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from torch import Tensor, nn

from qkv.data.batches.sampler import Feed
from qkv.train.distributed import Team
from qkv.train.evaluate.evaluators import TOKENS, Judge
from qkv.train.objectives.objective import Objective
from qkv.train.sharding import Spread

Measure = Callable[[nn.Module], dict[str, float]]
Tell = Callable[[str, int, int | None], None]  # how far it is: in words, so much, of so much
LANGUAGE = ("causal-lm", "masked-lm", "control-codes", "permutation-lm", "recurrence")
ALONE = Spread("copy", Team(), 0, 1)


def silent(words: str, done: int, of: int | None) -> None:
    """Nobody is told."""


def over(
    feed: Feed, objective: Objective, judge: Judge = TOKENS, *, most: int = 0, spread: Spread = ALONE,
    tell: Tell = silent,
) -> Measure:  # fmt: skip
    """The mean loss over the batches of a feed, `most` of them at most; noise is the same every time.

    Processes share the batches out, unless each goes on where the last one ended."""

    def measure(net: nn.Module) -> dict[str, float]:
        device = next(net.parameters()).device
        sums: dict[str, float] = {}
        counts: dict[str, int] = {}
        kept: list[object] = []
        memory: Tensor | None = None
        batches = feed.batches(0)[: most or None]
        shared = spread.world > 1 and not objective.recurrent
        dealt = spread.deal(batches) if shared else [(batch, True) for batch in batches]
        for done, (indices, own) in enumerate(dealt, 1):
            batch = objective.collate(feed.draw(indices, 0, objective.noise))
            count = objective.counts(batch)
            batch = batch.to(device)
            if objective.recurrent:
                batch = replace(batch, memory=memory)
            out = net(batch)
            memory = out.get("memory")
            if own:
                for name, loss in objective.parts(out).items():
                    sums[name] = sums.get(name, 0.0) + float(loss) * count[name]
                    counts[name] = counts.get(name, 0) + count[name]
                kept += judge.keep(out, indices)
            tell(f"measured {done:,} of {len(dealt):,} batches", done, len(dealt))
        every = spread.team.each((sums, counts, kept)) if shared else [(sums, counts, kept)]
        found = means([sums for sums, _, _ in every], [counts for _, counts, _ in every])
        return (
            found | judge.scores([each for _, _, kept in every for each in kept]) | of_loss(found, objective)
        )

    return measure


def means(sums: list[dict[str, float]], counts: list[dict[str, int]]) -> dict[str, float]:
    """The loss, and its parts where it has several, over all that the processes have seen."""
    names = dict.fromkeys(name for each in sums for name in each)
    parts = {
        name: sum(each.get(name, 0.0) for each in sums) / max(sum(each.get(name, 0) for each in counts), 1)
        for name in names
    }
    return {"loss": sum(parts.values())} | (parts if len(parts) > 1 else {})


def of_loss(found: dict[str, float], objective: Objective) -> dict[str, float]:
    """What else a loss says of a language model."""
    if objective.name not in LANGUAGE:
        return {}
    return {"perplexity": math.exp(min(found["loss"], 700)), "bits": found["loss"] / math.log(2)}


def names(feed: Feed, objective: Objective, judge: Judge) -> list[str]:
    """What `over` will give; nothing is run."""
    batch = objective.collate(feed.draw(feed.batches(0)[0], 0, objective.noise))
    found = means([dict.fromkeys(objective.counts(batch), 0.0)], [{}])
    return [*found, *judge.names, *of_loss(found, objective)]
