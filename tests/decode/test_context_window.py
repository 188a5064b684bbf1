"""Context windows: a step after a slide equals a forward pass on the kept window, for every method."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.batch import Batch, Inputs
from qkv.decode.config import GenerationConfig
from qkv.decode.engine import Engine
from qkv.decode.generation import generate
from qkv.decode.request import Request, Result
from qkv.decode.runner import (
    ModelRunner,
    PromptMoves,
    Prompts,
    RunnerOutput,
    Sources,
    move_and_truncate,
)
from qkv.decode.running_batch import RunningBatch
from qkv.nn.network import Network
from tests.support import tiny

MAX_POSITIONS = 11
START = 3
CONFIG = GenerationConfig(
    max_new_tokens=26, decoder_start_token_id=START, bos_token_id=START, pad_token_id=0,
    suppress_tokens=(5,),  # RoBERTa's pad id, which a forward pass does not count
)  # fmt: skip
METHODS: dict[str, GenerationConfig] = {
    "greedy": replace(CONFIG, repetition_penalty=1.3),
    "sampling": replace(CONFIG, do_sample=True, temperature=1.5, num_return_sequences=2),
    "beams": replace(CONFIG, num_beams=3, num_return_sequences=2, no_repeat_ngram_size=2),
    "beam groups": replace(CONFIG, num_beams=4, num_beam_groups=2, diversity_penalty=0.7),
    "contrastive": replace(CONFIG, penalty_alpha=0.6, top_k=3),
}
CASES = [  # network, method, whether reordered rows are copied as a whole, as on a GPU
    *((name, method, False) for name in ("gpt2", "bart") for method in METHODS),
    *(("gpt2", method, True) for method in ("beams", "contrastive")),
    *((name, "beams", False) for name in ("gpt3", "roberta-decoder")),
]


def build_net(name: str, **changes: Any) -> Network:
    family, arguments = tiny.CAUSAL[name]
    extra = 6 if family == "roberta" else 0  # its positions start after the pad id
    sizes = {"max_positions": MAX_POSITIONS + extra} | changes
    net = tiny.build(family, **(arguments | sizes)).net
    assert isinstance(net, Network)
    assert net.last_stack.spec.max_positions == sizes["max_positions"] - extra
    return net


def build_requests(name: str) -> list[dict[str, Any]]:
    """Return prompts, one of them with a start token, or sources, of several lengths."""
    rows = [tiny.random_ids(length, seed=i).tolist() for i, length in enumerate((5, 10, 1, 7))]
    rows[1][0] = START
    return [{"source": row} if name == "bart" else {"prompt": row} for row in rows]


def select_window(token_ids: list[int], has_start: bool) -> list[int]:
    """Return the window of a row: when its positions are used, the last half of it remains."""
    stride = math.ceil(MAX_POSITIONS / 2)
    num_dropped = math.ceil(max(len(token_ids) - MAX_POSITIONS, 0) / stride) * stride
    return token_ids[:has_start] + token_ids[has_start + num_dropped :]


class CheckedRunner(ModelRunner):
    """A runner that compares every step with a forward pass on the windows of its rows."""

    num_slid_rows = 0

    def __init__(self, net: Network, rows_per_prompt: int, static_shapes: bool) -> None:
        super().__init__(net, rows_per_prompt, static_shapes)
        self.rows: list[list[int]] = []  # all tokens of each row
        self.sources: list[Any] = []  # of each prompt

    def prefill(self, prompts: Prompts, sources: Sources) -> RunnerOutput:
        self.rows += [[*prompt] for prompt in prompts for _ in range(self.rows_per_prompt)]
        self.sources += sources
        return super().prefill(prompts, sources)

    def duplicate_prompts(self, prompt_indices: list[int]) -> None:
        size = self.rows_per_prompt
        for index in prompt_indices:
            self.rows += [[*row] for row in self.rows[index * size : (index + 1) * size]]
            self.sources.append(self.sources[index])
        super().duplicate_prompts(prompt_indices)

    def step(self, input_ids: Tensor) -> RunnerOutput:
        output = super().step(input_ids)
        for i, (row, token_id) in enumerate(zip(self.rows, input_ids[:, 0].tolist(), strict=True)):
            row.append(token_id)
            source = self.sources[i // self.rows_per_prompt]
            window = select_window(row, source is not None or row[0] == START)
            encoder = None if source is None else Inputs.create(torch.tensor([source]))
            batch = Batch(encoder=encoder, decoder=Inputs.create(torch.tensor([window])))
            expected = self.net(batch)["logits"][0, -1]
            torch.testing.assert_close(output.logits[i], expected, atol=1e-4, rtol=1e-4)
            CheckedRunner.num_slid_rows += len(window) < len(row)
        return output

    def reorder_rows(self, parents: Tensor, token_ids: Tensor, shared_length: int) -> None:
        self.rows = [[*self.rows[parent]] for parent in parents.tolist()]
        super().reorder_rows(parents, token_ids, shared_length)

    def remove_prompts(self, moves: PromptMoves, num_remaining: int) -> None:
        old, new = [*zip(*moves, strict=True)] or ([], [])
        order = move_and_truncate([*range(len(self.sources))], [*old], [*new], num_remaining)
        size = self.rows_per_prompt
        self.rows = [[*self.rows[index * size + k]] for index in order for k in range(size)]
        self.sources = [self.sources[index] for index in order]
        super().remove_prompts(moves, num_remaining)


def run(engine: Engine, requests: list[dict[str, Any]], config: GenerationConfig) -> list[Any]:
    """Return the results of requests that join one after another."""
    results: dict[int, list[Result]] = {}
    request_ids: list[int] = []
    while len(request_ids) < len(requests) or engine.has_unfinished_requests:
        for i in range(len(request_ids), len(requests))[:1]:
            request_ids.append(engine.add_request(**requests[i], generation_config=config, seed=i))
        for output in engine.step():
            if output.results is not None:
                results[output.request_id] = output.results
    return [results[request_id] for request_id in request_ids]


@pytest.mark.parametrize(("name", "method", "copy_all"), CASES)
def test_slid_steps_equal_a_forward_pass_on_the_window(
    name: str, method: str, copy_all: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = build_net(name)

    def create_running_batch(engine: Engine, request: Request) -> RunningBatch:
        runner = CheckedRunner(net, request.num_rows, engine.static_shapes)
        runner.minimize_copies = not copy_all
        return RunningBatch(runner)

    monkeypatch.setattr(Engine, "create_running_batch", create_running_batch)
    monkeypatch.setattr(CheckedRunner, "num_slid_rows", 0)
    config = METHODS[method]
    for results in run(Engine(net), build_requests(name), config):
        assert len(results) == config.num_return_sequences
        assert {len(result.token_ids) for result in results} == {26}
        assert {result.finish_reason for result in results} == {"length"}
    assert CheckedRunner.num_slid_rows > 40


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_slid_rows_do_not_depend_on_their_batch(name: str, method: str) -> None:
    net = build_net(name)
    config = METHODS[method]
    requests = build_requests(name)
    plain = run(Engine(net), requests, config)
    static = run(Engine(net, static_shapes=True), requests, config)
    for i, request in enumerate(requests):
        rows: dict[str, Any] = {f"{key}s": [value] for key, value in request.items()}
        (alone,) = generate(net, **rows, generation_config=config, seed=i)
        expected = [result.token_ids for result in alone]
        assert [result.token_ids for result in plain[i]] == expected
        assert [result.token_ids for result in static[i]] == expected


@pytest.mark.parametrize("draft_positions", [MAX_POSITIONS, 10, 40])
@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_speculative_decoding_slides_as_the_model_alone(name: str, draft_positions: int) -> None:
    net = build_net(name)
    draft = build_net(name, max_positions=draft_positions)
    config = replace(METHODS["greedy"], num_assistant_tokens=3)
    requests = build_requests(name)
    expected = run(Engine(net), requests, config)
    results = run(Engine(net, assistant_model=draft), requests, config)
    for (result,), (other,) in zip(results, expected, strict=True):
        assert result.token_ids == other.token_ids
        assert result.log_probs == pytest.approx(other.log_probs, abs=1e-4)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_a_row_may_stop_at_the_last_position(name: str, method: str) -> None:
    net = build_net(name)
    config = replace(METHODS[method], context_overflow="stop")
    for request, results in zip(
        build_requests(name), run(Engine(net), build_requests(name), config), strict=True
    ):
        num_prompt_tokens = len(request.get("prompt", [START]))
        for result in results:
            assert result.finish_reason == "context"
            assert num_prompt_tokens + len(result.token_ids) == MAX_POSITIONS
    short = replace(config, max_new_tokens=1)
    assert run(Engine(net), build_requests(name), short)[0][0].finish_reason == "length"


def test_a_prompt_leaves_a_position_for_a_new_token() -> None:
    net = build_net("gpt2")
    for context_overflow in ("slide", "stop"):
        config = replace(CONFIG, context_overflow=context_overflow)
        with pytest.raises(ValueError, match=r"11 tokens and leaves no room .* has 11 positions"):
            Engine(net).add_request([5] * 11, generation_config=config)


@pytest.mark.parametrize("max_positions", [2, 3])
def test_windows_of_few_positions(max_positions: int) -> None:
    net = build_net("gpt2", max_positions=max_positions)
    for prompt in ([START], [7]):
        (results,) = generate(net, [prompt], generation_config=CONFIG)
        assert len(results[0].token_ids) == 26
