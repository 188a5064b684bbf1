"""Requests that fail: they end with their error, and all others end as they do alone."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qkv.decode.config import GenerationConfig
from qkv.decode.engine import Engine
from qkv.decode.generation import generate, stream_generate
from qkv.decode.request import Result
from qkv.memory import is_memory_error
from qkv.nn.network import Network
from tests.decode.test_engine import (
    GREEDY,
    METHODS,
    RECURRENT,
    assert_same_results,
    build_net,
    build_requests,
    generate_alone,
    run_to_end,
    take_step,
)
from tests.support import tiny
from tools.attack import engine as attack_engine

NO_EOS = replace(GREEDY, eos_token_id=())
PAIRS = [
    (name, method)
    for name in ("gpt2", "t5", "transformer-xl", "xlnet-uni")
    for method in METHODS
    if not (method == "contrastive" and name in RECURRENT)
]


@pytest.mark.parametrize("seed", range(24))
def test_requests_with_random_faults_end_as_they_do_alone(seed: int) -> None:
    attack_engine.attack(seed)


def test_attack_has_a_time_limit_and_finds_a_spoiled_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert attack_engine.run_attack(0, seconds=0) == {}
    assert attack_engine.run_attack(0, seconds=60, max_rounds=1)["rounds"] == 1
    monkeypatch.setattr("qkv.decode.runner.ModelRunner.copy_rows", lambda *arguments: None)
    with pytest.raises(attack_engine.AttackError, match="alone"):
        attack_engine.run_attack(0, seconds=60, max_rounds=40)


@pytest.mark.parametrize("kind", ["prefix_allowed_tokens_fn", "stopping_criteria"])
@pytest.mark.parametrize(("name", "method"), PAIRS)
def test_function_that_raises_ends_only_its_request(name: str, method: str, kind: str) -> None:
    net = build_net(name)
    config = replace(METHODS[method], eos_token_id=())
    error = KeyError("a bug")

    def fail(new_token_ids: list[int]) -> Any:
        if len(new_token_ids) >= 3:
            raise error
        return [*range(tiny.VOCAB)] if kind == "prefix_allowed_tokens_fn" else False

    engine = Engine(net)
    requests = build_requests(name, 4)
    for i, request in enumerate(requests):
        functions: dict[str, Any] = {kind: fail} if i == 1 else {}
        engine.add_request(**request, generation_config=config, seed=i, **functions)
    results = run_to_end(engine)
    assert [(result.finish_reason, result.error) for result in results[1]] == [("error", error)]
    for i in (0, 2, 3):
        assert_same_results(results[i], generate_alone(net, config, requests[i], i))


def test_tokens_of_a_failed_request_are_its_result() -> None:
    net = build_net("gpt2")
    expected = generate_alone(net, NO_EOS, {"prompt": [5, 6]}, 0)[0].token_ids

    def stop(new_token_ids: list[int]) -> bool:
        new_token_ids.append(0)  # a copy
        return 1 / (5 - len(new_token_ids)) < 0

    ((result,),) = generate(
        net, [[5, 6]], generation_config=NO_EOS, stopping_criteria=stop, return_exceptions=True
    )
    assert isinstance(result.error, ZeroDivisionError)
    assert result.token_ids == expected[:4]
    assert len(result.log_probs) == 4


def test_generate_raises_the_error_and_leaves_the_engine_idle() -> None:
    net = build_net("gpt2")
    engine = Engine(net)

    def fail(new_token_ids: list[int]) -> bool:
        raise KeyError("a bug")

    criteria = [None, fail, None]
    prompts = [[5], [6, 7], [8, 9]]
    for batch_size in (None, 2):
        with pytest.raises(KeyError, match="a bug"):
            generate(engine, prompts, stopping_criteria=criteria, batch_size=batch_size)
        assert not engine.has_unfinished_requests
    results = generate(
        engine,
        prompts,
        generation_config=NO_EOS,
        stopping_criteria=criteria,
        return_exceptions=True,
    )
    assert isinstance(results[1][0].error, KeyError)
    for i in (0, 2):
        assert_same_results(results[i], generate_alone(net, NO_EOS, {"prompt": prompts[i]}, i))
    with pytest.raises(ValueError, match="prompt contains 99"):
        generate(engine, [[5], [99]])
    (first, (second,)) = generate(engine, [[5], [99]], return_exceptions=True)
    assert first[0].error is None
    assert "prompt contains 99" in str(second.error)
    assert not engine.has_unfinished_requests


def test_stream_raises_the_error_after_the_outputs() -> None:
    net = build_net("gpt2", max_positions=6)
    with torch.no_grad():
        net.last_stack.embedding.positions.weight[4] = torch.nan
    outputs = stream_generate(net, [5, 6], generation_config=NO_EOS)
    assert [len(next(outputs).new_token_ids) for _ in range(3)] == [1, 1, 1]
    with pytest.raises(ValueError, match="the logits of new token 4 contain NaN"):
        next(outputs)


@pytest.mark.parametrize(
    ("allowed", "message"),
    [
        ([60], "returned the token id 60, expected ids from 0 to 52"),
        ([-1], "returned the token id -1, expected ids from 0 to 52"),
        (torch.ones(3), "returned a mask of 3 values, expected one for each of the 53 token ids"),
        (None, "NoneType"),
    ],
)
def test_allowed_tokens_that_are_nonsense(allowed: Any, message: str) -> None:
    results = generate(
        build_net("gpt2"),
        [[5]],
        prefix_allowed_tokens_fn=lambda new_token_ids: allowed,
        return_exceptions=True,
    )
    assert message in str(results[0][0].error)


@pytest.mark.parametrize("static_shapes", [False, True])
@pytest.mark.parametrize("method", ["greedy", "beams", "contrastive"])
def test_cached_nan_does_not_reach_later_rows(method: str, static_shapes: bool) -> None:
    """A short row takes the memory of a longer one that was NaN, beside a long row."""
    net = build_net("gpt2")
    net.last_stack.embedding.register_forward_hook(attack_engine.add_nan)
    config = replace(
        METHODS[method],
        max_new_tokens=8,
        eos_token_id=(),
        suppress_tokens=(attack_engine.NAN_TOKEN_ID,),
    )
    engine = Engine(net, static_shapes=static_shapes)
    engine.add_request([6], generation_config=config)
    invalid = engine.add_request([attack_engine.NAN_TOKEN_ID] * 12, generation_config=config)
    results = take_step(engine)
    results |= take_step(engine)
    prompts = ([7, 8], [9, 8, 7, 6] * 3)
    request_ids = []
    for prompt in prompts:
        request_ids.append(engine.add_request(prompt, generation_config=config))
        results |= take_step(engine)
    results |= run_to_end(engine)
    assert results[invalid][0].finish_reason == "error"
    for request_id, prompt in zip(request_ids, prompts, strict=True):
        expected = generate_alone(net, config, {"prompt": prompt}, 0)
        assert_same_results(results[request_id], expected)


def test_rows_left_by_a_row_with_nan_are_cleared() -> None:
    """A row whose NaN are removed from its logits moves, and a short row takes its old place."""
    net = build_net("gpt2")
    net.last_stack.embedding.register_forward_hook(attack_engine.add_nan)
    config = replace(NO_EOS, suppress_tokens=(attack_engine.NAN_TOKEN_ID,))
    engine = Engine(net, static_shapes=True)
    engine.add_request([5], generation_config=replace(config, max_new_tokens=2))
    invalid = engine.add_request(
        [attack_engine.NAN_TOKEN_ID] * 9,
        generation_config=replace(config, remove_invalid_values=True),
    )
    results = take_step(engine)
    results |= take_step(engine)
    assert results.keys() == {0}
    short = engine.add_request([7], generation_config=config)
    results |= run_to_end(engine)
    assert results[invalid][0].finish_reason == "length"
    assert_same_results(results[short], generate_alone(net, config, {"prompt": [7]}, 0))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("method", ["greedy", "sampling", "beams", "contrastive"])
def test_logits_processor_that_gives_nan(
    method: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = build_net("gpt2")
    config = replace(METHODS[method], repetition_penalty=1.5, eos_token_id=())

    def add_nan(scores: Tensor, token_ids: Tensor, mask: Tensor, penalty: float) -> Tensor:
        is_invalid = (token_ids[:, 0] == 6) & (mask.sum(1) > 2)
        return scores.masked_fill(is_invalid[:, None], value)

    monkeypatch.setattr("qkv.decode.logits.processors.penalize_token_ids", add_nan)
    results = generate(net, [[5], [6], [7]], generation_config=config, return_exceptions=True)
    assert "the logits of new token 3 contain NaN or infinity" in str(results[1][0].error)
    for i in (0, 2):
        assert_same_results(results[i], generate_alone(net, config, {"prompt": [5 + i]}, i))


@contextmanager
def limit_rows(net: Network, max_rows: int) -> Iterator[list[int]]:
    """Let the network lack memory for more rows; yield the rows of its forward passes."""
    num_rows: list[int] = []

    def check(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        num_rows.append(len(inputs[0].decoder.input_ids))
        if num_rows[-1] > max_rows:
            raise torch.OutOfMemoryError(f"{num_rows[-1]} rows")

    handle = net.register_forward_pre_hook(check)
    try:
        yield num_rows
    finally:
        handle.remove()


@pytest.mark.parametrize("method", ["greedy", "sampling", "beams", "contrastive"])
def test_batch_that_lacks_memory_runs_in_parts(method: str) -> None:
    net = build_net("gpt2")
    requests = build_requests("gpt2", 6)
    config = METHODS[method]
    engine = Engine(net)
    with limit_rows(net, 4) as num_rows:
        for i, request in enumerate(requests):
            engine.add_request(**request, generation_config=config, seed=i)
        results = run_to_end(engine)
        assert max(num_rows) > 4
    for i, request in enumerate(requests):
        assert_same_results(results[i], generate_alone(net, config, request, i))
    assert engine.queue.row_limit is None


def test_request_that_lacks_memory_alone_fails() -> None:
    net = build_net("gpt2")
    engine = Engine(net)
    six_beams = replace(METHODS["beams"], num_beams=6)
    with limit_rows(net, 5):
        first = engine.add_request([5, 6], generation_config=six_beams)
        second = engine.add_request([7], generation_config=GREEDY)
        results = run_to_end(engine)
    assert isinstance(results[first][0].error, torch.OutOfMemoryError)
    assert_same_results(results[second], generate_alone(net, GREEDY, {"prompt": [7]}, 0))


def test_request_waits_for_the_memory_of_others() -> None:
    """A prompt that fits only after others have finished; they are not started again."""
    net = build_net("gpt2")
    engine = Engine(net)
    running = engine.add_request([5, 6], generation_config=NO_EOS)
    engine.step()
    (batch,) = engine.running_batches.values()

    def check(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if inputs[0].decoder.input_ids.shape[1] == 7 and batch.requests:
            raise RuntimeError("not enough memory: you tried to allocate 1 bytes")

    handle = net.register_forward_pre_hook(check)
    waiting = engine.add_request([5] * 7, generation_config=NO_EOS)
    for num_tokens in range(2, 10):
        outputs = engine.step()
        assert [output.request_id for output in outputs][:1] == [running]
        assert len(batch.requests[0].new_token_ids) == num_tokens or num_tokens == 9
    results = run_to_end(engine)
    handle.remove()
    assert_same_results(results[waiting], generate_alone(net, NO_EOS, {"prompt": [5] * 7}, 0))


def test_buffers_of_finished_requests_are_freed_when_memory_is_short() -> None:
    net = build_net("gpt2")
    engine = Engine(net)
    engine.add_request([5], generation_config=METHODS["beams"])
    run_to_end(engine)
    (batch,) = engine.running_batches.values()
    buffers = weakref.ref(batch)
    del batch
    handle = net.register_forward_pre_hook(
        lambda module, inputs: fail_if(torch.OutOfMemoryError("full"), buffers() is not None)
    )
    request_id = engine.add_request([7], generation_config=GREEDY)
    results = run_to_end(engine)
    handle.remove()
    assert_same_results(results[request_id], generate_alone(net, GREEDY, {"prompt": [7]}, 0))


def fail_if(error: Exception, condition: bool) -> None:
    if condition:
        raise error


def test_error_of_a_network_does_not_hold_its_tensors() -> None:
    net = build_net("gpt2")
    tensors: list[weakref.ref[torch.Tensor]] = []

    def fail(module: nn.Module, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        hidden = output + 1
        tensors.append(weakref.ref(hidden))
        raise torch.OutOfMemoryError("full")

    handle = net.last_stack.embedding.register_forward_hook(fail)
    ((result,),) = generate(net, [[5]], return_exceptions=True)
    handle.remove()
    assert isinstance(result.error, torch.OutOfMemoryError)
    assert result.error.__traceback__ is not None
    gc.collect()
    assert [reference() for reference in tensors] == [None]


def test_source_with_wrong_width_fails_alone() -> None:
    net = build_net("gpt2-cross")
    sources = [torch.randn(3, width, dtype=torch.float64) for width in (24, 7, 24)]
    engine = Engine(net)
    for states in sources:
        engine.add_request([5, 6], source=states, generation_config=GREEDY)
    plain = engine.add_request([5, 6], generation_config=GREEDY)  # without cross-attention
    results = run_to_end(engine)
    assert results[1][0].finish_reason == "error"
    valid: list[tuple[int, Tensor | None]] = [(0, sources[0]), (2, sources[2]), (plain, None)]
    for i, source in valid:
        alone = Engine(net)
        alone.add_request([5, 6], source=source, generation_config=GREEDY)
        assert_same_results(results[i], run_to_end(alone)[0])


def test_function_may_abort_and_add_requests_but_not_step() -> None:
    net = build_net("gpt2")
    engine = Engine(net)
    added: list[int] = []

    def stop(new_token_ids: list[int]) -> bool:
        if len(new_token_ids) == 2:
            engine.abort_request(other)
            added.append(engine.add_request([9], generation_config=NO_EOS))
        return False

    request_id = engine.add_request([5], generation_config=NO_EOS, stopping_criteria=stop)
    other = engine.add_request([6], generation_config=NO_EOS)
    nested = engine.add_request(
        [7], generation_config=NO_EOS, stopping_criteria=lambda ids: bool(engine.step())
    )
    results = run_to_end(engine)
    assert results.keys() == {request_id, nested, *added}
    assert str(results[nested][0].error).startswith("a function of a request called step")
    for i, prompt in ((request_id, [5]), (added[0], [9])):
        assert_same_results(results[i], generate_alone(net, NO_EOS, {"prompt": prompt}, 0))


def test_other_threads_add_and_abort_requests() -> None:
    net = build_net("gpt2")
    engine = Engine(net)
    config = replace(NO_EOS, max_new_tokens=30)
    prompts_by_id: dict[int, list[int]] = {}

    def add_requests(first_token_id: int) -> None:
        for token_id in range(first_token_id, first_token_id + 5):
            request_id = engine.add_request([token_id], generation_config=config)
            aborted = engine.add_request([token_id], generation_config=config)
            engine.abort_request(aborted)
            prompts_by_id[request_id] = [token_id]

    threads = [threading.Thread(target=add_requests, args=(5 * i + 5,)) for i in range(4)]
    for thread in threads:
        thread.start()
    results: dict[int, list[Result]] = {}
    while any(thread.is_alive() for thread in threads) or engine.has_unfinished_requests:
        results |= take_step(engine)
    for request_id, prompt in prompts_by_id.items():
        assert_same_results(results[request_id], generate_alone(net, config, {"prompt": prompt}, 0))
    assert len(prompts_by_id) == 20


def test_interrupted_step_loses_nothing() -> None:
    net = build_net("gpt2")
    config = replace(GenerationConfig(), max_new_tokens=8)
    expected = generate(net, [[5], [6, 7]], generation_config=config)
    for interrupted_pass in range(1, 9):
        num_passes = 0

        def interrupt(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            nonlocal num_passes
            num_passes += 1
            if num_passes == interrupted_pass:  # noqa: B023
                raise KeyboardInterrupt

        engine = Engine(net)
        engine.add_request([5], generation_config=config)
        engine.add_request([6, 7], generation_config=config)
        handle = net.register_forward_pre_hook(interrupt)
        streams: dict[int, list[int]] = {0: [], 1: []}
        while engine.has_unfinished_requests:
            try:
                for output in engine.step():
                    streams[output.request_id] += output.new_token_ids
            except KeyboardInterrupt:
                continue
        handle.remove()
        assert num_passes >= 8
        assert [streams[0], streams[1]] == [results[0].token_ids for results in expected]


def test_memory_errors() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 46, dtype=torch.uint8)
    assert is_memory_error(caught.value)
    assert is_memory_error(MemoryError())
    assert is_memory_error(torch.OutOfMemoryError("CUDA out of memory."))
    assert not is_memory_error(RuntimeError("shapes cannot be multiplied"))
    assert not is_memory_error(ValueError("not enough memory"))
