"""Muon: the momentum of a matrix, made orthogonal, is its step (Jordan et al. 2024). Knows only matrices.

    gradient -> momentum -> Nesterov -> Newton-Schulz -> scale -> step

Matrices of one shape are made orthogonal together: a stack is few large products where one by one are many
small ones. Of a sharded matrix every process makes the whole and keeps its part."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

STACK = 16  # matrices at once; bounds the memory
SCALES: dict[str, Callable[[int, int], float]] = {  # a step's size, by the rows and columns of the matrix
    "rms": lambda rows, columns: 0.2 * math.sqrt(max(rows, columns)),  # AdamW's (Liu et al. 2025)
    "jordan": lambda rows, columns: math.sqrt(max(1, rows / columns)),
}


class Muon(Optimizer):
    """`scale` "rms" gives steps of AdamW's size, so its rates and decay hold; "jordan" is the first form."""

    def __init__(
        self, groups: Iterable[dict[str, Any]], *, lr: float, weight_decay: float = 0.0,
        momentum: float = 0.95, scale: str = "rms",
    ) -> None:  # fmt: skip
        super().__init__(groups, dict(lr=lr, weight_decay=weight_decay, momentum=momentum, scale=scale))

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            alike: dict[object, list[Tensor]] = {}
            for matrix in group["params"]:
                if matrix.grad is not None:
                    alike.setdefault((matrix.shape, matrix.device, matrix.dtype), []).append(matrix)
            for matrices in alike.values():
                for i in range(0, len(matrices), STACK):
                    self.move(matrices[i : i + STACK], group)
        return loss

    def move(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        """One step of matrices of one shape."""
        rate, rows, columns = group["lr"], *matrices[0].shape
        steps = orthogonal(torch.stack([whole(self.ahead(each, group["momentum"])) for each in matrices]))
        for matrix, step in zip(matrices, steps, strict=True):
            matrix.mul_(1 - rate * group["weight_decay"])
            matrix.add_(parted(step, matrix), alpha=-rate * SCALES[group["scale"]](rows, columns))

    def ahead(self, matrix: Tensor, momentum: float) -> Tensor:
        """The gradient and its running mean, mixed as Nesterov does."""
        assert matrix.grad is not None
        state = self.state[matrix]
        if not state:
            state["momentum"] = torch.zeros_like(matrix.grad)
        mean: Tensor = state["momentum"].lerp_(matrix.grad, 1 - momentum)
        return matrix.grad.lerp(mean, momentum)


def orthogonal(x: Tensor, steps: int = 5) -> Tensor:
    """The same matrices with all singular values near 1, within about 0.3: (..., rows, columns)."""
    x = x.bfloat16() if x.is_cuda else x.float()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.mT if tall else x


def whole(x: Tensor) -> Tensor:
    """A sharded tensor, gathered; another as it is."""
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def parted(x: Tensor, like: Tensor) -> Tensor:
    """This process's part of a tensor that all have, sharded as `like` is."""
    if not hasattr(like, "full_tensor"):
        return x
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    return distribute_tensor(x, like.device_mesh, like.placements, src_data_rank=None)


def local(x: Tensor) -> Tensor:
    """This process's part of a tensor, as a plain one that shares its memory."""
    return x.to_local() if hasattr(x, "to_local") else x
