"""Transfers between host and device: values are equal, and a step waits for the device only once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from qkv.decode import Engine, GenerationConfig
from qkv.decode.runner import ModelRunner
from qkv.decode.transfer import HostCopy, copy_to_device
from qkv.nn.network import Network
from tests.support import tiny

SYNCHRONIZING = {
    "item",
    "_local_scalar_dense",
    "is_nonzero",
    "nonzero",
    "equal",
    "lift_fresh",  # torch.tensor
}


def test_copies_have_the_same_values() -> None:
    tensor = copy_to_device([[1, 2], [3, 4]], torch.device("cpu"))
    assert tensor.dtype == torch.long
    assert HostCopy(tensor).tolist() == [[1, 2], [3, 4]]
    assert copy_to_device([], torch.device("cpu")).shape == (0,)


class SynchronizationRecorder(TorchDispatchMode):
    """Records the operations that would synchronize host and GPU."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[str] = []

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = call.overloadpacket.__name__
        has_bool_index = name.startswith("index") and any(
            isinstance(leaf, Tensor) and leaf.dtype == torch.bool
            for leaf in torch.utils._pytree.tree_leaves(args[1:])
        )
        if name in SYNCHRONIZING or (has_bool_index and name != "index_fill_"):
            self.operations.append(name)
        return call(*args, **(kwargs or {}))


@contextmanager
def record_tolist_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Record the shapes of tensors that are converted to lists."""
    shapes: list[str] = []
    tolist = Tensor.tolist

    def record(x: Tensor) -> Any:
        shapes.append(str(tuple(x.shape)))
        return tolist(x)

    with monkeypatch.context() as patch:
        patch.setattr(Tensor, "tolist", record)
        yield shapes


CONFIGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampling": dict(
        eos_token_id=(5,),
        min_new_tokens=9,
        suppress_tokens=(7, 8),
        do_sample=True,
        top_k=20,
        min_p=0.01,
    ),
    "contrastive": dict(penalty_alpha=0.5, top_k=3),
    "beams": dict(num_beams=3),
    "beams with EOS": dict(num_beams=3, eos_token_id=(5,), min_new_tokens=9, early_stopping=True),
    "beam groups": dict(
        num_beams=4, num_beam_groups=2, diversity_penalty=0.5, suppress_tokens=(7, 8)
    ),
}


@pytest.mark.parametrize("static_shapes", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_step_synchronizes_once(
    name: str, static_shapes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = GenerationConfig(max_new_tokens=9, decoder_start_token_id=3, **CONFIGS[name])
    net = tiny.build("bart").net
    assert isinstance(net, Network)
    engine = Engine(net, static_shapes=static_shapes)
    for n in (4, 6, 3):
        engine.add_request(source=tiny.random_ids(n, seed=n).tolist(), generation_config=config)
    engine.step()
    (batch,) = engine.running_batches.values()
    assert isinstance(batch.runner, ModelRunner)
    batch.runner.minimize_copies = False  # as on a GPU
    monkeypatch.setattr("qkv.decode.search.beam.is_known_all_false", lambda flags: False)
    engine.step()
    with SynchronizationRecorder() as recorder, record_tolist_calls(monkeypatch) as tolist_calls:
        for _ in range(4):
            assert all(output.results is None for output in engine.step())
    assert recorder.operations == []
    assert len(tolist_calls) == 4
