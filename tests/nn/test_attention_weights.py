"""`qkv.look` records the attention weights of matching paths."""

from typing import Any

import pytest

import qkv
from tests.support import tiny


def test_look_records_only_matching_paths() -> None:
    model = tiny.build("gpt2", depth=12)
    ids = tiny.random_ids(1, 4)
    cases: dict[str, tuple[Any, set[int]]] = {
        "path": ("decoder.layers.1.attention", {1}),
        "expression": (r"decoder\.layers\.1\d\.attention", {10, 11}),
        "test": (lambda path: "layers.3." in path, {3}),
        "all": (None, {*range(12)}),
    }
    for paths, layers in cases.values():
        with qkv.look(model, paths) as weights:
            model(ids)
        assert weights.keys() == {f"decoder.layers.{n}.attention" for n in layers}
    for paths in ("decoder.layers.1", r"layers\.1\.attention", lambda path: False):
        with pytest.raises(ValueError, match="matches none"), qkv.look(model, paths):
            pass
