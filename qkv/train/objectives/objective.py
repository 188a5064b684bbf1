"""Objective: a data transform and a loss. Does not depend on the training loop or on files.

An example is a dict of arrays. `noise` converts it to inputs and labels with the random generator of
the example; `collate` builds a batch; `compute_losses` returns the loss terms, each a mean over its
targets, given the outputs of `net(batch)`:

    loss = objective(model.net(batch))

A contrastive loss compares the rows of a batch with each other. Its objective lists the outputs that
it needs in `full_batch_outputs` (one or more rows per example): the loss then receives only these
outputs, for the full batch, even if the batch is run in micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from qkv.batch import IGNORE_INDEX, Batch
from qkv.data.batches.collate import Example
from qkv.data.batches.sampler import apply_no_noise

ForwardOutputs = dict[str, Tensor]
# The loss of each target of each row, and the number of targets that it is the loss of: (B, T).
RowLosses = tuple[Tensor, Tensor]
TARGET_ROWS = "target_rows"  # a label: the row of each target, if logits are those of some tokens
ExampleNoise = Callable[[Example, np.random.Generator], Example]


def compute_label_loss(outputs: ForwardOutputs) -> dict[str, Tensor]:
    """Return the cross-entropy of the logits."""
    return {"loss": cross_entropy(outputs["logits"], outputs["labels"])}


def compute_label_row_losses(outputs: ForwardOutputs, *, label_smoothing: float = 0.0) -> RowLosses:
    """Return the cross-entropy of each label."""
    labels = outputs["labels"]
    losses = torch.nn.functional.cross_entropy(
        upcast_to_fp32(outputs["logits"].flatten(0, -2)),
        labels.flatten(),
        ignore_index=IGNORE_INDEX,
        reduction="none",
        label_smoothing=label_smoothing,
    )
    is_target = (labels.flatten() != IGNORE_INDEX).to(losses.dtype)
    if TARGET_ROWS in outputs:  # labels (N,): the sum of each row
        zeros = losses.new_zeros(len(outputs["last_hidden_state"]))
        rows = outputs[TARGET_ROWS]
        losses, is_target = (zeros.index_add(0, rows, x) for x in (losses, is_target))
        return losses[:, None], is_target[:, None]
    return losses.view(len(labels), -1), is_target.view(len(labels), -1)


def count_label_targets(batch: Batch) -> dict[str, int]:
    """Return the number of valid labels, the targets of `compute_label_loss`."""
    return {"loss": count_valid_labels(batch)}


class MovingBaseline:
    """A moving average of the loss per target; until the first step, the loss of the batch itself."""

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.value = torch.full((), torch.nan)

    def to(self, device: torch.device) -> None:
        self.value = self.value.to(device)

    def get(self, batch_loss: Tensor) -> Tensor:
        """Return the baseline, given the loss of a batch."""
        return torch.where(self.value.isnan(), batch_loss, self.value)

    def update(self, loss: Tensor) -> None:
        """Add the loss of a step; one that is not finite is skipped."""
        loss = torch.where(loss.isfinite(), loss.detach().float(), self.value)
        self.value.copy_(torch.lerp(loss, self.get(loss), self.decay))


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A training objective; `count_targets` returns the number of targets of each loss term, or the sum
    of their weights for a weighted mean. By default, the loss is the cross-entropy of the labels."""

    name: str
    collate: Callable[[Sequence[Example]], Batch]
    compute_losses: Callable[[ForwardOutputs], dict[str, Tensor]] = compute_label_loss
    count_targets: Callable[[Batch], Mapping[str, float]] = count_label_targets
    noise: ExampleNoise = apply_no_noise
    train_noise: ExampleNoise | None = None  # replaces `noise` in training; None: the same
    is_recurrent: bool = False  # a batch reads the mems of the previous batch
    is_language_model: bool = False  # the loss is a negative log-likelihood, which has a perplexity
    values_per_token: int = 0  # values of an image that a token stands for; 0: it is text
    full_batch_outputs: tuple[str, ...] = ()  # outputs that the loss reads for all rows at once
    # Losses by target for REINFORCE; None: the rows of a batch do not have separate losses.
    compute_row_losses: Callable[[ForwardOutputs], RowLosses] | None = None
    baseline: MovingBaseline | None = None  # of REINFORCE, updated after each step
    rebuild: Callable[[], Objective] | None = None  # builds the same objective in another process

    def __post_init__(self) -> None:
        if self.compute_losses is compute_label_loss and self.compute_row_losses is None:
            object.__setattr__(self, "compute_row_losses", compute_label_row_losses)

    def __call__(self, outputs: ForwardOutputs) -> Tensor:
        return torch.stack(list(self.compute_losses(outputs).values())).sum()


def wrap_loss_function(loss_fn: Callable[[ForwardOutputs], Tensor], base: Objective) -> Objective:
    """Return `base` with a custom loss function `outputs -> loss` as its only loss.

    The function returns a scalar, a mean over the targets of the batch."""
    name = getattr(loss_fn, "__name__", "custom")

    def compute_losses(outputs: ForwardOutputs) -> dict[str, Tensor]:
        loss = loss_fn(outputs)
        if not isinstance(loss, Tensor) or loss.dim():
            value = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else loss
            raise ValueError(
                f"the loss function {name} returned {value}, expected a scalar tensor: return the "
                "mean over the targets, such as loss.mean()"
            )
        return {"loss": loss}

    def count_targets(batch: Batch) -> dict[str, float]:
        return {"loss": next(iter(base.count_targets(batch).values()))}

    return replace(
        base,
        name=name,
        compute_losses=compute_losses,
        count_targets=count_targets,
        is_language_model=False,
        compute_row_losses=None,
        rebuild=None,
    )


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    label_smoothing: float = 0.0,
    class_weights: Tensor | None = None,
) -> Tensor:
    """Return the mean cross-entropy over labels other than IGNORE_INDEX, in fp32 or higher precision.

    With `class_weights` (C,), it is the weighted mean, as in `F.cross_entropy(weight=...)`."""
    logits = upcast_to_fp32(logits.flatten(0, -2))
    labels = labels.flatten()
    mask = labels != IGNORE_INDEX
    weight = None if class_weights is None else class_weights.to(logits)
    total = torch.nn.functional.cross_entropy(
        logits,
        labels,
        weight=weight,
        ignore_index=IGNORE_INDEX,
        reduction="sum",
        label_smoothing=label_smoothing,
    )
    if weight is None:
        return total / mask.sum().clamp(min=1)
    label_weights = weight[labels.clamp(min=0)] * mask
    return total / label_weights.sum().clamp(min=torch.finfo(weight.dtype).tiny)


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the masked values; indexing with the mask would synchronize with the
    device."""
    return (x * mask).sum() / mask.sum().clamp(min=1)


def upcast_to_fp32(x: Tensor) -> Tensor:
    """Convert half precision to fp32; fp32 and fp64 are unchanged."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def count_valid_labels(batch: Batch, label_name: str = "labels") -> int:
    """Return the number of labels that are not IGNORE_INDEX."""
    return int((batch.labels[label_name] != IGNORE_INDEX).sum())
