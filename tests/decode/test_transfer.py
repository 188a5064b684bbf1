"""Between host and device: numbers arrive, and a step makes the host wait but once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from qkv.decode import Engine, How
from qkv.decode.runner import Reader
from qkv.decode.transfer import Told, sent
from qkv.nn.transformer import Transformer
from tests.support import tiny

WAITS = {
    "item",
    "_local_scalar_dense",
    "is_nonzero",
    "nonzero",
    "equal",
    "lift_fresh",
}  # the last: torch.tensor


def test_numbers_arrive() -> None:
    there = sent([[1, 2], [3, 4]], torch.device("cpu"))
    assert there.dtype == torch.long
    assert Told(there).list() == [[1, 2], [3, 4]]
    assert sent([], torch.device("cpu")).shape == (0,)


class Watch(TorchDispatchMode):
    """Notes what makes the host wait for a GPU, or a GPU for the host."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.waits: list[str] = []

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = call.overloadpacket.__name__
        flags = name.startswith("index") and any(
            isinstance(each, Tensor) and each.dtype == torch.bool
            for each in torch.utils._pytree.tree_leaves(args[1:])
        )
        if name in WAITS or (flags and name != "index_fill_"):
            self.waits.append(name)
        return call(*args, **(kwargs or {}))


@contextmanager
def lists_counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Tensors that become lists."""
    found, before = list[str](), Tensor.tolist

    def noted(x: Tensor) -> Any:
        found.append(str(tuple(x.shape)))
        return before(x)

    with monkeypatch.context() as patch:
        patch.setattr(Tensor, "tolist", noted)
        yield found


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("how", [
    How(max_new=9, start=3),
    How(max_new=9, start=3, ends=(5,), min_new=9, suppress=(7, 8), sample=True, top_k=20, min_p=0.01),
    How(max_new=9, start=3, contrast=0.5, top_k=3),
    How(max_new=9, start=3, beams=3),
    How(max_new=9, start=3, beams=3, ends=(5,), min_new=9, early=True),
    How(max_new=9, start=3, beams=4, groups=2, diversity=0.5, suppress=(7, 8)),
], ids=["greedy", "drawn", "contrast", "beams", "beams that end", "groups"])  # fmt: skip
def test_a_step_waits_once(how: How, static: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tiny.model("bart").net
    assert isinstance(made, Transformer)
    engine = Engine(made, static=static)
    for n in (4, 6, 3):
        engine.admit(source=tiny.ids(n, seed=n).tolist(), how=how)
    engine.step()
    (pool,) = engine.pools.values()
    assert isinstance(pool.reader, Reader)
    pool.reader.sparing = False  # as on a GPU
    monkeypatch.setattr("qkv.decode.search.beam.known_empty", lambda flags: False)
    engine.step()
    with Watch() as watch, lists_counted(monkeypatch) as lists:
        for _ in range(4):
            assert all(event.results is None for event in engine.step())
    assert watch.waits == []
    assert len(lists) == 4
