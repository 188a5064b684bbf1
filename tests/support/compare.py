"""Comparison of tensors: within a tolerance, or bitwise with a reason."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

# Reasons for bitwise equality. The order of a sum depends on the kernel, on the shapes and the
# alignment of its operands and on the number of threads, which tests/conftest.py fixes.
SAME_KERNELS = "the same kernels run on the same shapes, with the same alignment and threads"
COPIED = "the numbers are copied, not computed"
UNWRITTEN = "nothing writes to these tensors"
RESUMED = "a resumed run has the same batches, random numbers, kernels and shapes"


def max_difference(actual: Tensor, expected: Tensor) -> float:
    """Return the largest absolute difference; infinity for different shapes and for NaN."""
    if actual.shape != expected.shape:
        return float("inf")
    if not actual.numel():
        return 0.0
    difference = (actual.detach() - expected.detach()).abs().max().item()
    return float("inf") if math.isnan(difference) else difference


def assert_close(
    actual: Mapping[str, Tensor], expected: Mapping[str, Tensor], within: float = 1e-9
) -> None:
    """Assert that `actual` has all tensors of `expected`, with differences of at most `within`."""
    differences = {name: max_difference(actual[name], tensor) for name, tensor in expected.items()}
    assert expected
    assert max(differences.values()) <= within, differences


def assert_bitwise_equal(
    actual: Tensor | Mapping[str, Tensor],
    expected: Tensor | Mapping[str, Tensor],
    *,
    because: str,
) -> None:
    """Assert that tensors, or tensors of the same names, have the same dtype, shape and bits.

    `because` says what this rests on: SAME_KERNELS, COPIED, or another reason."""
    if isinstance(actual, Tensor) or isinstance(expected, Tensor):
        assert isinstance(actual, Tensor)
        assert isinstance(expected, Tensor)
        actual, expected = {"tensor": actual}, {"tensor": expected}
    assert expected
    assert actual.keys() == expected.keys()
    different = [
        name for name, tensor in expected.items() if not has_same_bits(actual[name], tensor)
    ]
    assert not different, f"{different} should be bitwise equal: {because}"


def has_same_bits(x: Tensor, y: Tensor) -> bool:
    if (x.dtype, x.shape) != (y.dtype, y.shape):
        return False
    x, y = (tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in (x, y))
    return torch.equal(x, y)
