"""Optimized copies for decoding: built after enough steps, dropped if the network changes."""

from __future__ import annotations

import gc
import weakref
from threading import Thread
from typing import Any

import pytest
import torch

import qkv
from qkv.decode.optimize_for_inference import TransposedLinear
from qkv.nn.lora import add_lora
from qkv.nn.network import Network
from qkv.tasks.write import decoding
from tests.tasks.test_tasks import load_golden
from tests.tasks.test_write import TEXTS, build_seq2seq, randomize


def build_random_model() -> qkv.Model:
    return randomize(build_seq2seq.__wrapped__())


def uses_copy(model: qkv.Model, rows: int = decoding.MIN_ROWS_FOR_COPY) -> bool:
    """Return whether an optimized copy decodes a number of rows."""
    assert isinstance(model.net, Network)
    model.net.eval()
    with decoding.select_engine(model.net, rows) as engine:
        return any(isinstance(module, TransposedLinear) for module in engine.net.modules())


def test_copy_is_built_after_enough_steps_with_equal_results() -> None:
    model = build_random_model()
    task = qkv.task("translate", model, num_beams=4, max_new_tokens=20)
    results = [task(TEXTS[0])]
    assert not uses_copy(model)
    for _ in range(decoding.MIN_STEPS_FOR_COPY // 20):
        results.append(task(TEXTS[0]))
    assert uses_copy(model)
    assert not uses_copy(model, rows=decoding.MIN_ROWS_FOR_COPY - 1)
    results.append(task(TEXTS[0]))
    assert {result.tokens for result in results} == {results[0].tokens}
    assert [result.score for result in results] == pytest.approx(
        [results[0].score] * len(results), rel=1e-5
    )


def test_changed_network_drops_its_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "MIN_STEPS_FOR_COPY", 0)
    model = build_random_model()
    task = qkv.task("translate", model, max_new_tokens=8)
    before = task.map(TEXTS)
    with torch.no_grad():
        for parameter in model.net.parameters():
            parameter.mul_(-0.5)
    after = task.map(TEXTS)
    assert [output.text for output in after] != [output.text for output in before]
    assert [output.text for output in after] == [task(text).text for text in TEXTS]
    add_lora(model.net, r=2)
    for name, parameter in model.net.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=2.0)
    adapted = task.map(TEXTS)
    assert [output.text for output in adapted] == [task(text).text for text in TEXTS]
    assert adapted != after


def test_look_uses_the_network_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "MIN_STEPS_FOR_COPY", 0)
    model = build_random_model()
    assert uses_copy(model)
    with qkv.look(model) as seen:
        qkv.task("translate", model, max_new_tokens=3).map(TEXTS)
    assert seen
    assert uses_copy(model)


def test_no_copy_of_large_or_bfloat16_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "MIN_STEPS_FOR_COPY", 0)
    model = build_random_model()
    assert uses_copy(model)
    reference = weakref.ref(model.net)
    bfloat16_model = build_random_model()
    bfloat16_model.net.to(torch.bfloat16)
    assert not uses_copy(bfloat16_model)
    monkeypatch.setattr(decoding, "MAX_COPY_BYTES", 100)
    assert not uses_copy(model)
    del model
    gc.collect()
    assert reference() is None


def test_threads_share_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "MIN_STEPS_FOR_COPY", 0)
    task = qkv.task("translate", load_golden("marian"), num_beams=4, max_new_tokens=12)
    expected = [task(text) for text in TEXTS]
    results: dict[int, Any] = {}

    def translate_all(number: int) -> None:
        results[number] = [task(text) for text in TEXTS]

    threads = [Thread(target=translate_all, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # The scores are equal up to rounding: torch.set_num_threads does not apply to other threads.
    for number in range(4):
        for result, item in zip(results[number], expected, strict=True):
            assert result.candidates[0].tokens == item.candidates[0].tokens
            assert result.text == item.text
            assert result.score == pytest.approx(item.score, rel=1e-5)
