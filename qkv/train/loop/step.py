"""Backward: gradients of a batch that is run in parts, one after the other or by several processes.

    apart      a part ─ net ─ losses, by its share of the targets ─ gradients, which add up

    together   parts ─ net, without a graph ─ vectors ─┐
               the last part ─ net ─ vectors ──────────┴ those of all ─ losses ─ a gradient for each vector
               parts ─ net again ─ vectors, with these gradients ─ gradients, which add up

For a loss over all rows of a batch (`Objective.together`) the graph of one part is held at a time (GradCache,
Gao et al. 2021). Dropout is the same both times. Every process computes the loss of the whole batch and goes
back through its own rows: what the net learns for the loss alone, CLIP's temperature, is in the vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.batch import Batch
from qkv.train.loop.prefetch import Part
from qkv.train.loop.rng import chance, chance_again
from qkv.train.objectives.objective import Objective, Out, precise
from qkv.train.sharding import Spread


@dataclass(frozen=True, kw_only=True)
class Backward:
    """Adds the gradients of a batch to those of the weights; gives this process's share of the losses."""

    forward: Callable[[Batch], Out]
    objective: Objective
    spread: Spread
    scale: Callable[[Tensor], Tensor]  # of a loss, in fp16
    device: torch.device

    def __call__(self, parts: Sequence[Part], whole: dict[str, int]) -> dict[str, Tensor]:
        """`whole` are the targets of the batch, those of other processes among them."""
        return (self.together if self.objective.together else self.apart)(parts, whole)

    def apart(self, parts: Sequence[Part], whole: dict[str, int]) -> dict[str, Tensor]:
        total: dict[str, Tensor] = {}
        for batch, counts, _ in parts:
            if any(counts.values()) or self.spread.world > 1:  # the others wait for each part
                losses = self.objective.parts(self.forward(batch))
                shares = {name: loss * (counts[name] / max(whole[name], 1)) for name, loss in losses.items()}
                self.scale(added(shares)).backward()
                for name, share in shares.items():
                    total[name] = total.get(name, 0) + share.detach()
        return total

    def together(self, parts: Sequence[Part], whole: dict[str, int]) -> dict[str, Tensor]:
        *early, last = parts
        states, rows = [], []
        for part in early:
            states.append(chance(self.device))
            with torch.no_grad():
                rows.append(self.vectors(part))
        rows.append(self.vectors(last))  # with its graph: it is run once
        losses, gradients = self.matched(rows, [any(part.counts.values()) for part in parts])
        back(rows[-1], gradients[-1])
        for part, state, gradient in zip(early, states, gradients, strict=False):
            with chance_again(state, self.device):
                back(self.vectors(part), gradient)
        own = {name: sum(part.counts[name] for part in parts) for name in whole}
        return {name: loss.detach() * (own[name] / max(whole[name], 1)) for name, loss in losses.items()}

    def vectors(self, part: Part) -> Out:
        out = self.forward(part.batch)
        return {name: out[name] for name in self.objective.together if name in out}

    def matched(self, rows: list[Out], counts: list[bool]) -> tuple[dict[str, Tensor], list[Out]]:
        """The losses over the rows of all processes, and the gradients of this one's, part by part.

        The rows of a part that does not count are nobody's."""
        found: Out = {}
        places: dict[str, slice] = {}
        sizes: dict[str, list[int]] = {}
        for name in rows[0]:
            sizes[name] = [len(out[name]) * count for out, count in zip(rows, counts, strict=True)]
            own = torch.cat([out[name][:size] for out, size in zip(rows, sizes[name], strict=True)]).detach()
            own = precise(own) if own.is_floating_point() else own
            found[name], places[name] = self.spread.rows(own)
        learnt = {name: x.requires_grad_() for name, x in found.items() if x.is_floating_point()}
        losses = self.objective.parts(found)
        all_rows = torch.autograd.grad(self.scale(added(losses)), [*learnt.values()], materialize_grads=True)
        gradients: list[Out] = [{} for _ in rows]
        for name, gradient in zip(learnt, all_rows, strict=True):
            parts = gradient[places[name]].split(sizes[name])
            for into, out, part in zip(gradients, rows, parts, strict=True):
                into[name] = part.to(out[name].dtype) if len(part) else torch.zeros_like(out[name])
        return losses, gradients


def added(losses: dict[str, Tensor]) -> Tensor:
    return torch.stack([*losses.values()]).sum()


def back(vectors: Out, gradients: Out) -> None:
    """From the gradients of vectors to those of the weights."""
    learnt = [name for name, x in vectors.items() if x.requires_grad]
    torch.autograd.backward([vectors[name] for name in learnt], [gradients[name] for name in learnt])
