"""`look` at an engine whose steps are CUDA graphs, in which hooks do not run."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from qkv.decode import Engine, GenerationConfig
from qkv.decode.cuda_graphs import CapturedGraph, ForwardFunction
from qkv.decode.runner import ModelRunner, RunnerOutput
from qkv.nn.network import Network
from tests.support import compare, tiny

NUM_NEW_TOKENS = 5
PROMPT = tiny.random_ids(4, seed=4).tolist()
START = 3  # token of a decoder with an encoder
SOURCE = tiny.random_ids(6, seed=6).tolist()
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(
            not torch.cuda.is_available(), reason="only CUDA devices have CUDA graphs"
        ),
    ),
]


class GraphOnCPU:
    """A captured call: it runs again, without hooks, when it is replayed."""

    def __init__(self, net: Network, forward: ForwardFunction, input_ids: Tensor) -> None:
        self.net, self.forward, self.input_ids = net, forward, input_ids
        self.outputs = self.run()

    def run(self) -> tuple[Tensor, Tensor]:
        with without_hooks(self.net):
            return self.forward(self.input_ids)

    def replay(self) -> None:
        for buffer, new in zip(self.outputs, self.run(), strict=True):
            buffer.copy_(new)


@contextmanager
def without_hooks(net: Network) -> Iterator[None]:
    hooks = {module: module._forward_hooks for module in net.modules()}
    for module in hooks:
        module._forward_hooks = OrderedDict()
    try:
        yield
    finally:
        for module, forward_hooks in hooks.items():
            module._forward_hooks = forward_hooks


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def build_engine(model: qkv.Model, device: str, monkeypatch: pytest.MonkeyPatch) -> Engine:
    model.to(device)
    net = model.net
    assert isinstance(net, Network)
    if device == "cpu":

        def capture(forward: ForwardFunction, input_ids: Tensor) -> CapturedGraph:
            graph: Any = GraphOnCPU(net, forward, input_ids.clone())
            return CapturedGraph(graph, graph.input_ids, graph.outputs)

        monkeypatch.setattr(ModelRunner, "replays_graphs", True)
        monkeypatch.setattr("qkv.decode.cuda_graphs.capture_cuda_graph", capture)
    return Engine(net, static_shapes=True)


def add_request(engine: Engine, family: str) -> None:
    config = GenerationConfig(max_new_tokens=NUM_NEW_TOKENS, decoder_start_token_id=START)
    inputs: dict[str, Any] = {"source": SOURCE} if family == "bart" else {"prompt": PROMPT}
    engine.add_request(**inputs, generation_config=config)


def run_engine(engine: Engine) -> list[int]:
    """Take steps until the request is finished; return its new tokens."""
    token_ids: list[int] = []
    while engine.has_unfinished_requests:
        for output in engine.step():
            if results := output.get_results():
                token_ids = results[0].token_ids
    return token_ids


@pytest.mark.parametrize("is_captured_before", [False, True], ids=["new", "captured before"])
@pytest.mark.parametrize("family", ["gpt2", "bart"])
def test_look_records_replayed_steps(
    family: str, is_captured_before: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny.build(family)
    engine = build_engine(model, device, monkeypatch)
    logits: list[Tensor] = []
    step = ModelRunner.step

    def step_and_keep(runner: ModelRunner, input_ids: Tensor) -> RunnerOutput:
        output = step(runner, input_ids)
        logits.append(output.logits.clone())
        return output

    monkeypatch.setattr(ModelRunner, "step", step_and_keep)
    add_request(engine, family)
    token_ids = run_engine(engine)
    plain = [*logits]
    assert len(plain) == NUM_NEW_TOKENS - 1  # the first token follows from the prefill
    logits.clear()
    if not is_captured_before:
        engine = build_engine(model, device, monkeypatch)
    add_request(engine, family)
    with qkv.look(model) as weights:
        assert run_engine(engine) == token_ids
    compare.assert_bitwise_equal(torch.cat(logits), torch.cat(plain), because=compare.SAME_KERNELS)

    start, *read = [START, *token_ids[:-1]] if family == "bart" else [*PROMPT, *token_ids[:-1]]
    ids = torch.tensor([[start, *read]], device=device)
    source = torch.tensor([SOURCE], device=device)
    with qkv.look(model, r"decoder\..*") as expected, torch.no_grad():
        model(source, decoder_input_ids=ids) if family == "bart" else model(ids)
    assert len(expected) == (4 if family == "bart" else 2)
    steps = {}
    for path, tensor in expected.items():
        num_keys = tensor.shape[-1]
        steps[path], unused = weights[path][:1].tensor_split([num_keys], dim=-1)
        assert unused.count_nonzero() == 0  # columns of the cache that have no token
    compare.assert_close(steps, {path: x[:, :, -1:] for path, x in expected.items()}, 1e-12)
