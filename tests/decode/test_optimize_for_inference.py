"""An optimized copy of a network gives the same outputs and does not change the network."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from qkv.batch import Batch, Inputs
from qkv.decode import GenerationConfig, generate, optimize_model
from qkv.decode.optimize_for_inference import FP16Linear, FusedQKVProjection, TransposedLinear
from qkv.nn.network import Network
from tests.support import compare, tiny


def build_net(name: str, dtype: torch.dtype = torch.float64, **changes: Any) -> Network:
    family, arguments = tiny.CAUSAL[name]
    net = tiny.build(family, dtype=dtype, **arguments, **changes).net
    assert isinstance(net, Network)
    return net


def build_batch(net: Network) -> Batch:
    inputs = Inputs.create(tiny.random_ids(2, 6))
    if net.encoder is not None and net.decoder is not None:
        return Batch(encoder=inputs, decoder=inputs)
    return Batch(encoder=inputs)


@pytest.mark.parametrize("name", [name for name in tiny.CAUSAL if not name.endswith("-cross")])
@torch.no_grad()
def test_same_logits(name: str) -> None:
    net = build_net(name)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    optimized = optimize_model(net)
    batch = build_batch(net)
    compare.assert_close(
        {"logits": optimized(batch)["logits"]}, {"logits": net(batch)["logits"]}, within=1e-10
    )
    compare.assert_bitwise_equal(net.state_dict(), before, because=compare.UNWRITTEN)
    # The only linear layer of these is that of the vocabulary.
    if name not in ("lstm-seq2seq", "sequence-autoencoder"):
        assert any(isinstance(module, TransposedLinear) for module in optimized.modules())
    is_recurrent = net.last_stack.spec.recurrence is not None or name in tiny.RECURRENT
    assert is_recurrent != any(
        isinstance(module, FusedQKVProjection) for module in optimized.modules()
    )


@pytest.mark.parametrize("num_rows", [1, 3, 9])
@torch.no_grad()
def test_vocabulary_projection_of_few_and_many_rows(num_rows: int) -> None:
    net = build_net("bart", dtype=torch.float32)
    head = net.heads["lm"]
    optimized_head = optimize_model(net).heads["lm"]
    hidden = {"last_hidden_state": torch.randn(num_rows, 1, tiny.WIDTH)}
    logits = optimized_head(hidden, Batch())["logits"]
    torch.testing.assert_close(logits, head(hidden, Batch())["logits"], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("positions", ["rotary", "alibi"])
@torch.no_grad()
def test_same_logits_with_other_positions(positions: str) -> None:
    net = build_net("gpt2", positions=positions)
    optimized = optimize_model(net)
    batch = build_batch(net)
    compare.assert_close(
        {"logits": optimized(batch)["logits"]}, {"logits": net(batch)["logits"]}, within=1e-10
    )


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "marian"])
@torch.no_grad()
def test_half_precision_is_close(name: str) -> None:
    net = build_net(name, dtype=torch.float32)
    optimized = optimize_model(net, precision="half")
    batch = build_batch(net)
    expected = net(batch)["logits"]
    relative_error = (optimized(batch)["logits"] - expected).norm() / expected.norm()
    assert 0 < relative_error < 1e-2
    assert any(isinstance(module, FP16Linear) for module in optimized.modules())


@pytest.mark.parametrize("name", ["gpt2", "llama", "bart", "t5"])
def test_same_generated_tokens(name: str) -> None:
    net = build_net(name)
    rows = [tiny.random_ids(n, seed=n).tolist() for n in (3, 6)]
    inputs: dict[str, Any] = {"sources": rows} if net.encoder is not None else {"prompts": rows}
    for config in (
        GenerationConfig(max_new_tokens=9, decoder_start_token_id=3),
        GenerationConfig(max_new_tokens=9, num_beams=3, decoder_start_token_id=3),
        GenerationConfig(max_new_tokens=9, penalty_alpha=0.5, top_k=3, decoder_start_token_id=3),
    ):
        expected = generate(net, **inputs, generation_config=config)
        results = generate(optimize_model(net), **inputs, generation_config=config)
        assert [row[0].token_ids for row in results] == [row[0].token_ids for row in expected]


def test_invalid_precision() -> None:
    with pytest.raises(ValueError, match="precision is 'quarter', expected 'half', or None"):
        optimize_model(build_net("gpt2"), precision="quarter")
