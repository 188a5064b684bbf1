"""Muon: momentum orthogonalized by Newton-Schulz iterations (Jordan et al. 2024), for matrices only.

    gradient -> momentum -> Nesterov -> Newton-Schulz -> scale -> update

Matrices of equal shape are orthogonalized in one batched product. Every process computes the full
update of a sharded matrix and applies its shard."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

MAX_STACK_SIZE = 16  # matrices per batched product; limits the memory


class Muon(Optimizer):
    """Muon with updates of AdamW's RMS (Liu et al. 2025), for AdamW's learning rate and weight decay."""

    def __init__(
        self, params: Iterable[dict[str, Any]], *, lr: float, weight_decay: float = 0.0,
        momentum: float = 0.95,
    ) -> None:  # fmt: skip
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay, momentum=momentum))

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            by_shape: dict[object, list[Tensor]] = {}
            for matrix in group["params"]:
                if matrix.grad is not None:
                    key = (matrix.shape, matrix.device, matrix.dtype)
                    by_shape.setdefault(key, []).append(matrix)
            for matrices in by_shape.values():
                for i in range(0, len(matrices), MAX_STACK_SIZE):
                    self.update_matrices(matrices[i : i + MAX_STACK_SIZE], group)
        return loss

    def update_matrices(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        """Update matrices of equal shape."""
        lr = group["lr"]
        momenta = [
            gather_full_tensor(self.compute_nesterov_momentum(matrix, group["momentum"]))
            for matrix in matrices
        ]
        updates = orthogonalize(torch.stack(momenta))
        scale = 0.2 * math.sqrt(max(matrices[0].shape))  # gives updates of AdamW's usual RMS
        for matrix, update in zip(matrices, updates, strict=True):
            matrix.mul_(1 - lr * group["weight_decay"])
            matrix.add_(shard_like(update, matrix), alpha=-lr * scale)

    def compute_nesterov_momentum(self, matrix: Tensor, momentum: float) -> Tensor:
        """Update the running mean of the gradient; return its Nesterov mix with the gradient."""
        assert matrix.grad is not None
        state = self.state[matrix]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(matrix.grad)
        mean: Tensor = state["momentum_buffer"].lerp_(matrix.grad, 1 - momentum)
        return matrix.grad.lerp(mean, momentum)


def orthogonalize(x: Tensor, ns_steps: int = 5) -> Tensor:
    """Return the matrices with all singular values within about 0.3 of 1: (..., rows, columns)."""
    x = x.bfloat16() if x.is_cuda else x.float()
    is_tall = x.shape[-2] > x.shape[-1]
    x = x.mT if is_tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(ns_steps):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.mT if is_tall else x


def gather_full_tensor(x: Tensor) -> Tensor:
    """Return the full tensor of a sharded tensor; return other tensors unchanged."""
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def shard_like(x: Tensor, reference: Tensor) -> Tensor:
    """Return the shard of this process of a tensor that all processes have, sharded like `reference`."""
    if not hasattr(reference, "full_tensor"):
        return x
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(reference, DTensor)
    return distribute_tensor(x, reference.device_mesh, reference.placements, src_data_rank=None)


def get_local_tensor(x: Tensor) -> Tensor:
    """Return the shard of this process as a plain tensor that shares its memory."""
    return x.to_local() if hasattr(x, "to_local") else x
