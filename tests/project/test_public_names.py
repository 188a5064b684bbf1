"""The names of `import qkv`."""

from __future__ import annotations

from typing import get_type_hints

import torch

import qkv


def test_dir_shows_only_public_names() -> None:
    assert dir(qkv) == sorted(qkv.__all__)
    assert all(hasattr(qkv, name) for name in qkv.__all__)


def test_load_is_typed() -> None:
    hints = get_type_hints(qkv.load)
    assert (hints["device"], hints["dtype"]) == (str, torch.dtype | None)
