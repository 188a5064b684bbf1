"""Checks of the shapes of tensors that pictures draw."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def check_tensor_shape(
    name: str, tensor: Tensor, shape: Sequence[int | None], axes: Sequence[str]
) -> None:
    """Raise ValueError unless the tensor has the shape; None: any size but zero."""
    is_right = tensor.ndim == len(shape) and all(
        size == expected if expected is not None else size > 0
        for size, expected in zip(tensor.shape, shape, strict=True)
    )
    if not is_right:
        sizes = " × ".join(
            f"{axis} {'(any)' if expected is None else expected}"
            for axis, expected in zip(axes, shape, strict=True)
        )
        raise ValueError(f"{name} of shape {tuple(tensor.shape)}, expected {sizes}")


def to_float_cpu(tensor: Tensor) -> Tensor:
    """Return the numbers in single precision on the CPU, without gradients."""
    return tensor.detach().float().cpu()
