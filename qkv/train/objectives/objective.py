"""Objective: a transform of data and a loss. Knows no loop and no files.

An example is a dict of arrays. `noise` makes of it what the net reads and what it shall say, out of a
generator of the example's own; `collate` lays examples side by side; `parts` are the losses, each a mean over
its targets, read off what `net(batch)` gives:

    loss = objective(model.net(batch))

Where the rows of a batch are told from each other, `together` names what the losses read, one or more rows of
it an example: they are then given the rows of the whole batch, and nothing else, however it was run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from qkv.batch import Batch
from qkv.data.batches.collate import NONE, Example
from qkv.data.batches.sampler import unchanged

Out = dict[str, Tensor]
Noise = Callable[[Example, np.random.Generator], Example]


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What a model is taught. `counts` tells for a batch how many targets each part's mean is taken over."""

    name: str
    parts: Callable[[Out], dict[str, Tensor]]
    collate: Callable[[Sequence[Example]], Batch]
    counts: Callable[[Batch], dict[str, int]]
    noise: Noise = unchanged
    recurrent: bool = False  # what one batch remembers, the next is given
    together: tuple[str, ...] = ()  # what the net gives that is read of all rows of a batch at once
    again: Callable[[], Objective] | None = None  # makes it once more, in another process

    def __call__(self, out: Out) -> Tensor:
        return torch.stack(list(self.parts(out).values())).sum()


def written(loss: Callable[[Out], Tensor], like: Objective) -> Objective:
    """A function of the user's, `out -> loss`, in the place of an objective's parts."""

    def counts(batch: Batch) -> dict[str, int]:
        return {"loss": next(iter(like.counts(batch).values()))}

    name = getattr(loss, "__name__", "written")
    return replace(like, name=name, parts=lambda out: {"loss": loss(out)}, counts=counts, again=None)


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """The mean over the labels that ask for something; in fp32 at least."""
    logits, labels = precise(logits.flatten(0, -2)), labels.flatten()
    total = torch.nn.functional.cross_entropy(
        logits, labels, ignore_index=NONE, reduction="sum", label_smoothing=smoothing
    )
    return total / (labels != NONE).sum().clamp(min=1)


def mean_over(x: Tensor, which: Tensor) -> Tensor:
    """The mean over some; picked by index, their number would be waited for."""
    return (x * which).sum() / which.sum().clamp(min=1)


def precise(x: Tensor) -> Tensor:
    """What a loss is computed in: fp32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def targets(batch: Batch, name: str = "labels") -> int:
    """How many of these labels ask for something."""
    return int((batch.labels[name] != NONE).sum())
