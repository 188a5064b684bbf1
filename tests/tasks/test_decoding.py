"""Which network writes: a prepared copy once it pays, as long as the network is what it was."""

from __future__ import annotations

import gc
import weakref
from threading import Thread
from typing import Any

import pytest
import torch

import qkv
from qkv.decode.optimize_for_inference import Turned
from qkv.nn.lora import add_lora
from qkv.nn.transformer import Transformer
from qkv.tasks.write import decoding
from tests.tasks.test_tasks import folder
from tests.tasks.test_write import TEXTS, ours, shaken


def made() -> qkv.Model:
    return shaken(ours.__wrapped__())


def lean(model: qkv.Model, rows: int = decoding.ROWS) -> bool:
    """Would a prepared copy write so many rows?"""
    assert isinstance(model.net, Transformer)
    model.net.eval()
    with decoding.writer(model.net, rows) as engine:
        return any(isinstance(module, Turned) for module in engine.net.modules())


def test_a_copy_is_made_once_it_pays_and_says_the_same() -> None:
    model = made()
    task = qkv.task("translate", model, beams=4, max_new=20)
    found = [task(TEXTS[0])]
    assert not lean(model)
    for _ in range(decoding.PAYS // 20):
        found.append(task(TEXTS[0]))
    assert lean(model)
    assert not lean(model, rows=decoding.ROWS - 1)
    found.append(task(TEXTS[0]))
    assert {one.tokens for one in found} == {found[0].tokens}
    assert [one.score for one in found] == pytest.approx([found[0].score] * len(found), rel=1e-5)


def test_a_network_that_changes_writes_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "PAYS", 0)
    model = made()
    task = qkv.task("translate", model, max_new=8)
    before = task.many(TEXTS)
    with torch.no_grad():
        for parameter in model.net.parameters():
            parameter.mul_(-0.5)
    after = task.many(TEXTS)
    assert [one.text for one in after] != [one.text for one in before]
    assert [one.text for one in after] == [task(text).text for text in TEXTS]
    add_lora(model.net, rank=2)
    for name, parameter in model.net.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=2.0)
    adapted = task.many(TEXTS)
    assert [one.text for one in adapted] == [task(text).text for text in TEXTS]
    assert adapted != after


def test_who_looks_sees_the_network_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "PAYS", 0)
    model = made()
    assert lean(model)
    with qkv.look(model) as seen:
        qkv.task("translate", model, max_new=3).many(TEXTS)
    assert seen
    assert lean(model)


def test_no_copy_of_what_is_large_coarse_or_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "PAYS", 0)
    model = made()
    assert lean(model)
    kept = weakref.ref(model.net)
    coarse = made()
    coarse.net.to(torch.bfloat16)
    assert not lean(coarse)
    monkeypatch.setattr(decoding, "LARGEST", 100)
    assert not lean(model)
    del model
    gc.collect()
    assert kept() is None


def test_threads_share_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "PAYS", 0)
    task = qkv.task("translate", folder("marian"), beams=4, max_new=12)
    wanted, found = [task(text) for text in TEXTS], dict[int, Any]()

    def go(number: int) -> None:
        found[number] = [task(text) for text in TEXTS]

    threads = [Thread(target=go, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(found[number] == wanted for number in range(4))
