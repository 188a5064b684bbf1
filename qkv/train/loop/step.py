"""Backward pass of a batch in micro-batches, run one after another or by several processes.

    per micro-batch   micro-batch ─ net ─ losses, weighted by its share of the targets ─ gradients

    with GradCache    micro-batches ─ net, without a graph ─ embeddings ─┐
                      last micro-batch ─ net ─ embeddings ───────────────┴ of all ─ losses ─ gradients
                      micro-batches ─ net again ─ embeddings, with their gradients ─ gradients

Gradients are accumulated. For a loss over all rows of a batch (`Objective.full_batch_outputs`), the
graph of only one micro-batch is in memory at a time (GradCache, Gao et al. 2021); dropout is the same
in both passes. Every process computes the loss of the full batch and backpropagates through its rows.
A parameter that only the loss uses, such as CLIP's temperature, is one of the embeddings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.batch import Batch
from qkv.train.loop.prefetch import MicroBatch
from qkv.train.loop.rng import get_rng_states, replay_rng_states
from qkv.train.objectives.objective import ForwardOutputs, Objective, upcast_to_fp32
from qkv.train.sharding import Sharding


@dataclass(frozen=True, kw_only=True)
class BackwardPass:
    """Accumulates the gradients of a batch and returns the losses of this process."""

    forward: Callable[[Batch], ForwardOutputs]
    objective: Objective
    sharding: Sharding
    scale_loss: Callable[[Tensor], Tensor]  # fp16 loss scaling
    device: torch.device

    def __call__(
        self, micro_batches: Sequence[MicroBatch], target_counts: Mapping[str, float]
    ) -> dict[str, Tensor]:
        """Run the backward pass; `target_counts` are those of the full batch, over all processes."""
        if self.objective.full_batch_outputs:
            return self.backward_with_grad_cache(micro_batches, target_counts)
        return self.backward_per_micro_batch(micro_batches, target_counts)

    def backward_per_micro_batch(
        self, micro_batches: Sequence[MicroBatch], target_counts: Mapping[str, float]
    ) -> dict[str, Tensor]:
        total: dict[str, Tensor] = {}
        for batch, counts, _ in micro_batches:
            if (
                any(counts.values()) or self.sharding.dp_size > 1
            ):  # other processes wait for each one
                losses = self.objective.compute_losses(self.forward(batch))
                shares = {
                    name: loss * (counts[name] / (target_counts[name] or 1))
                    for name, loss in losses.items()
                }
                self.scale_loss(sum_losses(shares)).backward()
                for name, share in shares.items():
                    total[name] = total.get(name, 0) + share.detach()
        return total

    def backward_with_grad_cache(
        self, micro_batches: Sequence[MicroBatch], target_counts: Mapping[str, float]
    ) -> dict[str, Tensor]:
        *early, last = micro_batches
        rng_states = []
        embeddings = []
        for micro_batch in early:
            rng_states.append(get_rng_states(self.device))
            with torch.no_grad():
                embeddings.append(self.compute_embeddings(micro_batch))
        embeddings.append(self.compute_embeddings(last))  # keeps its graph, so that it runs once
        is_counted = [any(micro_batch.target_counts.values()) for micro_batch in micro_batches]
        losses, gradients = self.compute_global_loss(embeddings, is_counted)
        backward_embeddings(embeddings[-1], gradients[-1])
        for micro_batch, rng_state, gradient in zip(early, rng_states, gradients, strict=False):
            with replay_rng_states(rng_state, self.device):
                backward_embeddings(self.compute_embeddings(micro_batch), gradient)
        local_counts = {
            name: sum(micro_batch.target_counts[name] for micro_batch in micro_batches)
            for name in target_counts
        }
        return {
            name: loss.detach() * (local_counts[name] / (target_counts[name] or 1))
            for name, loss in losses.items()
        }

    def compute_embeddings(self, micro_batch: MicroBatch) -> ForwardOutputs:
        outputs = self.forward(micro_batch.batch)
        return {
            name: outputs[name] for name in self.objective.full_batch_outputs if name in outputs
        }

    def compute_global_loss(
        self, outputs: list[ForwardOutputs], is_counted: list[bool]
    ) -> tuple[dict[str, Tensor], list[ForwardOutputs]]:
        """Return the losses over the rows of all processes, and the gradients per micro-batch.

        Micro-batches that are not counted contribute no rows."""
        all_outputs: ForwardOutputs = {}
        local_rows: dict[str, slice] = {}
        sizes: dict[str, list[int]] = {}
        for name in outputs[0]:
            sizes[name] = [
                len(out[name]) * count for out, count in zip(outputs, is_counted, strict=True)
            ]
            counted_rows = [
                out[name][:size] for out, size in zip(outputs, sizes[name], strict=True)
            ]
            x = torch.cat(counted_rows).detach()
            x = upcast_to_fp32(x) if x.is_floating_point() else x
            all_outputs[name], local_rows[name] = self.sharding.gather_rows(x)
        leaves = {
            name: x.requires_grad_() for name, x in all_outputs.items() if x.is_floating_point()
        }
        losses = self.objective.compute_losses(all_outputs)
        all_gradients = torch.autograd.grad(
            self.scale_loss(sum_losses(losses)), [*leaves.values()], materialize_grads=True
        )
        gradients: list[ForwardOutputs] = [{} for _ in outputs]
        for name, all_gradient in zip(leaves, all_gradients, strict=True):
            parts = all_gradient[local_rows[name]].split(sizes[name])
            for gradient, out, part in zip(gradients, outputs, parts, strict=True):
                if len(part):
                    gradient[name] = part.to(out[name].dtype)
                else:
                    gradient[name] = torch.zeros_like(out[name])
        return losses, gradients


def sum_losses(losses: dict[str, Tensor]) -> Tensor:
    return torch.stack([*losses.values()]).sum()


def backward_embeddings(embeddings: ForwardOutputs, gradients: ForwardOutputs) -> None:
    """Backpropagate the gradients of embeddings to the weights."""
    names = [name for name, x in embeddings.items() if x.requires_grad]
    torch.autograd.backward(
        [embeddings[name] for name in names], [gradients[name] for name in names]
    )
