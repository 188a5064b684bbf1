"""Tasks called from several threads, also beside training: they do not change the mode of a network."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import qkv
from tests.support import tiny
from tests.tasks.test_tasks import TEXTS, build_input, build_task, flatten_result

NUM_THREADS = 8
SHORT_TEXTS = [TEXTS[0], TEXTS[2], TEXTS[4]]


def run_threads(work: Callable[[int], None]) -> None:
    """Run a function in threads with their numbers, and raise the first of their errors."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(NUM_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def assert_same_result(result: Any, expected: tuple[list[Any], Any]) -> None:
    """Compare with a result of the main thread; torch.set_num_threads does not apply to other threads,
    so that numbers are equal up to rounding. Dropout would change them by far more."""
    values, numbers = flatten_result(result)
    assert values == expected[0]
    assert numbers == pytest.approx(expected[1], rel=1e-5, abs=1e-6)


def add_dropout(model: qkv.Model) -> None:
    for module in model.net.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5


@pytest.mark.parametrize("name", ["classify", "tag", "fill", "embed", "translate", "complete"])
def test_threads_on_a_network_in_training_mode(name: str) -> None:
    settings = {"max_new_tokens": 6} if name in ("translate", "complete") else {}
    task = build_task(name, **settings)
    inputs = [build_input(name, text) for text in SHORT_TEXTS]
    expected = [flatten_result(task(text)) for text in inputs]
    net = task.model.net
    dropouts = [module for module in net.modules() if isinstance(module, torch.nn.Dropout)]
    probabilities = [module.p for module in dropouts]
    add_dropout(task.model)
    net.train()
    frozen = next(module for module in net.modules() if isinstance(module, torch.nn.Linear))
    frozen.eval()
    modes = [module.training for module in net.modules()]

    def work(number: int) -> None:
        for i in range(4):
            index = (number + i) % len(inputs)
            assert_same_result(task(inputs[index]), expected[index])

    try:
        run_threads(work)
        assert [module.training for module in net.modules()] == modes
    finally:
        net.eval()
        for module, probability in zip(dropouts, probabilities, strict=True):
            module.p = probability


def test_task_beside_a_training_loop() -> None:
    """The forward passes of training have dropout while tasks run in other threads."""
    task = build_task("classify")
    model: qkv.Model = task.model
    expected = [flatten_result(task(text)) for text in TEXTS[:2]]
    batch = tiny.random_ids(2, 6)
    is_training: list[bool] = []
    handle = model.net.register_forward_pre_hook(
        lambda module, inputs: is_training.append(module.training)
    )

    def work(number: int) -> None:
        for index in range(2):
            if number == 0:
                model(input_ids=batch)
            else:
                assert_same_result(task(TEXTS[index]), expected[index])

    model.train()
    try:
        run_threads(work)
    finally:
        handle.remove()
        model.eval()
    assert is_training.count(True) == 2
    assert is_training.count(False) == 2 * (NUM_THREADS - 1)


def test_generate_and_stream_keep_the_mode() -> None:
    task = build_task("complete", max_new_tokens=6)
    model: qkv.Model = task.model
    prompt = torch.tensor([task.tokenizer.encode("Clara")])
    expected = model.generate(prompt, max_new_tokens=6)
    text = task("Clara").new_text
    assistant = build_task("complete").model
    model.train()
    try:
        add_dropout(model)
        assert torch.equal(model.generate(prompt, max_new_tokens=6), expected)
        parts = []
        for part in task.stream("Clara"):
            parts.append(part)
            assert model.net.training
        assert "".join(parts) == text
        assert task("Clara", assistant_model=assistant).new_text == text
        assert all(module.training for module in model.net.modules())
    finally:
        model.eval()
        for module in model.net.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.1


def check_error(result: Any, message: str) -> None:
    assert isinstance(result, ValueError)
    assert message in str(result)


@pytest.mark.parametrize("name", ["classify", "tag", "translate", "complete", "summarize"])
def test_inputs_that_fail_alone(name: str) -> None:
    """With return_exceptions, an error is the result of its input only."""
    settings: dict[str, Any] = {} if name in ("classify", "tag") else {"max_new_tokens": 4}
    task = build_task(name, overflow="error", **settings)
    inputs: list[Any] = [TEXTS[0], "", TEXTS[2], 7, TEXTS[0] * 900, TEXTS[4]]
    expected = [flatten_result(task(inputs[i])) for i in (0, 2, 5)]
    results = task.map(inputs, return_exceptions=True)
    for i, values in zip((0, 2, 5), expected, strict=True):
        assert flatten_result(results[i])[0] == values[0]
        assert flatten_result(results[i])[1] == pytest.approx(values[1], rel=2e-5, abs=2e-6)
    check_error(results[1], "text 2")
    check_error(results[3], "text 4")
    check_error(results[4], "text 5")
    with pytest.raises(ValueError, match="text 2"):
        task.map(inputs)


def test_batch_that_lacks_memory_is_halved() -> None:
    task = build_task("classify")
    expected = [flatten_result(result) for result in task.map(TEXTS)]
    sizes: list[int] = []

    def check(module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        sizes.append(len(inputs[0].encoder.input_ids))
        if sizes[-1] > 2 or inputs[0].encoder.input_ids.shape[1] > max_length:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    max_length = 1000
    handle = task.model.net.register_forward_pre_hook(check)
    try:
        results = task.map(TEXTS)
        max_length = 6
        outcomes = task.map(TEXTS, return_exceptions=True)
        with pytest.raises(RuntimeError, match="can't allocate memory"):
            task.map(TEXTS)
    finally:
        handle.remove()
    assert max(sizes) > 2
    for result, values in zip(results, expected, strict=True):
        assert flatten_result(result)[0] == values[0]
    is_error = [isinstance(outcome, RuntimeError) for outcome in outcomes]
    assert any(is_error)
    assert not all(is_error)
