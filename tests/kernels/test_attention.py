"""Settings around the attention kernels. Their numbers are tested in tests/nn/test_packed.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import qkv
from qkv.data.batches.sampler import BatchSampler, build_fixed_size_plan
from qkv.decode.config import GenerationConfig
from qkv.decode.generation import generate
from qkv.kernels.attention import without_cudnn
from qkv.nn.network import Network
from qkv.tasks.batching import evaluation_mode
from qkv.train.config import TrainConfig
from qkv.train.loop.trainer import Trainer
from qkv.train.objectives import VocabularyInfo, build_objective


def is_cudnn_enabled() -> bool:
    return bool(torch._C._get_cudnn_sdp_enabled())


def test_without_cudnn_is_undone_at_its_end() -> None:
    assert is_cudnn_enabled()
    with without_cudnn():
        assert not is_cudnn_enabled()
        with without_cudnn():
            assert not is_cudnn_enabled()
        assert not is_cudnn_enabled()
    assert is_cudnn_enabled()
    with pytest.raises(RuntimeError, match="inside"), without_cudnn():
        raise RuntimeError("inside")
    assert is_cudnn_enabled()


def test_without_cudnn_ends_with_its_last_user() -> None:
    first = without_cudnn()
    second = without_cudnn()
    with first:
        second.__enter__()
    assert not is_cudnn_enabled()
    second.__exit__(None, None, None)
    assert is_cudnn_enabled()


def test_training_decoding_and_tasks_run_without_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    enabled: list[bool] = []
    attention = F.scaled_dot_product_attention

    def record(*args: Any, **settings: Any) -> torch.Tensor:
        enabled.append(is_cudnn_enabled())
        return attention(*args, **settings)

    monkeypatch.setattr(F, "scaled_dot_product_attention", record)
    model = qkv.build("gpt2", vocab_size=50, width=16, depth=1, heads=2, max_positions=32)
    rows = [{"tokens": np.arange(9), "labels": np.arange(9)} for _ in range(4)]
    objective = build_objective("causal-lm", VocabularyInfo(vocab_size=50))
    Trainer(
        net=model.net,
        sampler=BatchSampler(rows, build_fixed_size_plan(4, 2)),
        objective=objective,
        train_config=TrainConfig(steps=1),
    ).train()
    assert enabled
    assert not any(enabled)
    enabled.clear()
    assert isinstance(model.net, Network)
    generate(model.net.eval(), [[1, 2, 3]], generation_config=GenerationConfig(max_new_tokens=2))
    assert enabled
    assert not any(enabled)
    with evaluation_mode(model):
        assert not is_cudnn_enabled()
    assert is_cudnn_enabled()


@pytest.mark.parametrize("name", ["bert", "t5"])
def test_the_bias_has_the_dtype_of_autocast(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dtypes: set[tuple[torch.dtype, torch.dtype]] = set()
    attention = F.scaled_dot_product_attention

    def record(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: Any, *args: Any, **settings: Any
    ) -> Any:
        dtypes.update({(q.dtype, bias.dtype)} if bias is not None else ())
        return attention(q, k, v, bias, *args, **settings)

    monkeypatch.setattr(F, "scaled_dot_product_attention", record)
    model = qkv.build(name, vocab_size=50, width=16, depth=2, heads=2, ffn_width=32)
    ids = torch.randint(3, 50, (2, 9))
    inputs: dict[str, Any] = dict(attention_mask=torch.arange(9) < torch.tensor([[9], [5]]))
    if name == "t5":
        inputs["decoder_input_ids"] = ids[:, :4]
    fp32 = model(ids, **inputs)["last_hidden_state"]
    assert dtypes == {(torch.float32, torch.float32)}
    dtypes.clear()
    with torch.autocast("cpu", torch.bfloat16):
        bf16 = model(ids, **inputs)["last_hidden_state"]
    assert dtypes == {(torch.bfloat16, torch.bfloat16)}
    torch.testing.assert_close(bf16.float(), fp32, atol=0.1, rtol=0.1)
