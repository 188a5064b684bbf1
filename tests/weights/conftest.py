"""Fixtures of the tests of weight files."""

import resource
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor


@pytest.fixture
def tensors() -> dict[str, Tensor]:
    """Tensors of several dtypes and shapes."""
    return {
        "a.weight": torch.randn(3, 4),
        "a.bias": torch.randn(4).to(torch.bfloat16),
        "float16": torch.randn(2, 5).half(),
        "number": torch.tensor(7),
        "empty": torch.empty(0, 3),
        "mask": torch.tensor([True, False]),
        "float8": torch.randn(9).to(torch.float8_e4m3fn),
    }


@pytest.fixture
def small_disk() -> Iterator[None]:
    """Files cannot grow past 20 kB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
