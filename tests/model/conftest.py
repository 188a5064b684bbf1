"""Fixtures of the model tests."""

import warnings
from typing import Any

import pytest


@pytest.fixture(scope="session")
def peft() -> Any:
    """The package `peft`, the reference for adapters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(
            "peft", reason="needs peft: pip install --no-deps peft accelerate psutil"
        )
