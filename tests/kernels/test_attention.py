"""Attention by the kernel that the mask asks for: what is chosen around it. The numbers: test_packed.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import qkv
from qkv.data.batches.sampler import Feed, by_rows
from qkv.decode.config import How
from qkv.decode.engine import generate
from qkv.kernels.attention import without_cudnn
from qkv.nn.transformer import Transformer
from qkv.tasks.batching import at_rest
from qkv.train.config import Learn
from qkv.train.loop.trainer import Trainer
from qkv.train.objectives import Words, objective


def cudnn() -> bool:
    return bool(torch._C._get_cudnn_sdp_enabled())


def test_a_kernel_that_plans_for_every_shape_is_left_out_and_comes_back() -> None:
    assert cudnn()
    with without_cudnn():
        assert not cudnn()
        with without_cudnn():
            assert not cudnn()
        assert not cudnn()
    assert cudnn()
    with pytest.raises(RuntimeError, match="on the way"), without_cudnn():
        raise RuntimeError("on the way")
    assert cudnn()


def test_of_several_threads_the_last_brings_it_back() -> None:
    first, second = without_cudnn(), without_cudnn()
    with first:
        second.__enter__()
    assert not cudnn()
    second.__exit__(None, None, None)
    assert cudnn()


def test_learning_writing_and_tasks_leave_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    attention = F.scaled_dot_product_attention

    def watched(*args: Any, **settings: Any) -> torch.Tensor:
        seen.append(cudnn())
        return attention(*args, **settings)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    model = qkv.build("gpt2", vocab=50, width=16, depth=1, heads=2, length=32)
    rows = [{"tokens": np.arange(9), "labels": np.arange(9)} for _ in range(4)]
    goal = objective("causal-lm", Words(size=50))
    Trainer(net=model.net, feed=Feed(rows, by_rows(4, 2)), objective=goal, learn=Learn(steps=1)).run()
    assert seen
    assert not any(seen)
    seen.clear()
    assert isinstance(model.net, Transformer)
    generate(model.net.eval(), [[1, 2, 3]], how=How(max_new=2))
    assert seen
    assert not any(seen)
    with at_rest(model):
        assert not cudnn()
    assert cudnn()


@pytest.mark.parametrize("name", ["bert", "t5"])
def test_a_bias_comes_in_the_type_that_autocast_asks_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: set[tuple[torch.dtype, torch.dtype]] = set()
    attention = F.scaled_dot_product_attention

    def watched(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: Any, *rest: Any, **more: Any) -> Any:
        kinds.update({(q.dtype, bias.dtype)} if bias is not None else ())
        return attention(q, k, v, bias, *rest, **more)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    model = qkv.build(name, vocab=50, width=16, depth=2, heads=2, feed=32)
    ids = torch.randint(3, 50, (2, 9))
    given: dict[str, Any] = dict(mask=torch.arange(9) < torch.tensor([[9], [5]]))
    given |= {} if name == "bert" else {"target": ids[:, :4]}
    whole = model.run(ids, **given)["hidden"]
    assert kinds == {(torch.float32, torch.float32)}
    kinds.clear()
    with torch.autocast("cpu", torch.bfloat16):
        half = model.run(ids, **given)["hidden"]
    assert kinds == {(torch.bfloat16, torch.bfloat16)}
    torch.testing.assert_close(half.float(), whole, atol=0.1, rtol=0.1)
