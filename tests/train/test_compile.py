"""Compilation: few graphs for rows of all lengths, and compile workers that ignore SIGTERM."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters

import qkv
from qkv.data.batches.sampler import BatchSampler, build_example_sampler
from qkv.train.config import TrainConfig
from qkv.train.loop.trainer import Trainer
from qkv.train.objectives import VocabularyInfo, build_objective

SCRIPT = """
import os, signal, time
from qkv.train.loop.compile import start_compile_workers

received = []
signal.signal(signal.SIGTERM, lambda *_: received.append(1))
start_compile_workers()
from torch._inductor.async_compile import AsyncCompile

pool = AsyncCompile.process_pool()
os.kill(pool.process.pid, signal.SIGTERM)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(0.5)
assert pool.process.poll() is None, "the compile workers have ended"
assert pool.submit(os.getpid).result(timeout=60) != os.getpid()
assert received == [1]
print("good")
"""


def test_compile_workers_ignore_sigterm() -> None:
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "2"}, timeout=120,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert process.stdout == "good\n", process.stderr


SMALL: dict[str, Any] = dict(vocab_size=20, width=8, depth=3, heads=2, ffn_width=8, dropout=0.0)
DECODER = dict(decoder_depth=3, decoder_heads=2, decoder_ffn_width=8)
CASES: dict[
    str, tuple[str, dict[str, Any], int]
] = {  # family, arguments and number of graphs: one per kind of block, one of the loss
    "causal-lm": (
        "gpt2",
        SMALL | dict(max_positions=16, embedding_dropout=0.0, attention_dropout=0.0),
        5,
    ),
    "seq2seq": ("transformer", SMALL | DECODER, 3),
    "sequence-classification": (
        "electra",
        SMALL
        | dict(
            attention_dropout=0.0, embedding_width=4, head="sequence-classification", num_labels=2
        ),
        2,
    ),
}


def make_sampler(name: str, rng: np.random.Generator) -> BatchSampler:
    """Return texts of many lengths in batches of similar length, with and without padding on either side."""
    lengths = rng.integers(2, 12, (60, 2))
    lengths[0] = lengths[1]  # its source and target have one length
    pairs = [(rng.integers(5, 20, a), rng.integers(5, 20, b)) for a, b in lengths.tolist()]
    if name == "causal-lm":  # one length, but some batches have padding and the last one is smaller
        texts = [{"tokens": rng.integers(5, 20, 9 - (i % 7 == 0))} for i in range(31)]
        return build_example_sampler(texts, batch_size=3)
    if name == "seq2seq":
        return build_example_sampler(
            [{"source": a, "target": b} for a, b in pairs], lengths, batch_tokens=40
        )
    labeled = [{"tokens": a, "label": b[:1] % 2} for a, b in pairs]
    return build_example_sampler(labeled, lengths[:, 0], batch_tokens=40)


def run(name: str, *, compile: bool) -> list[dict[str, float]]:
    torch.manual_seed(0)
    family, arguments, _ = CASES[name]
    model = qkv.build(family, **arguments)
    reports: list[dict[str, float]] = []
    trainer = Trainer(
        net=model.net,
        sampler=make_sampler(name, np.random.default_rng(0)),
        objective=build_objective(name, VocabularyInfo(vocab_size=20)),
        train_config=TrainConfig(steps=20, log_every=1, compile=compile),
        callbacks=[lambda report: reports.append(report.metrics)],
    )
    trainer.train()
    assert not any("forward" in vars(module) for module in model.net.modules()), (
        "a block is still compiled"
    )
    return reports


@pytest.mark.parametrize("name", CASES)
def test_few_graphs_give_the_same_losses(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run(name, compile=False)
    torch.compiler.reset()
    counters.clear()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    compiled = run(name, compile=True)
    torch.compiler.reset()
    assert counters["stats"]["unique_graphs"] == CASES[name][2]
    assert len(compiled) == len(expected) == 20
    for metrics, expected_metrics in zip(compiled, expected, strict=True):
        assert metrics == pytest.approx(expected_metrics, rel=1e-5)
