"""Compiling: few graphs for rows of all lengths, and processes that hear no signal meant for the trainer."""

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
from qkv.data.batches.sampler import Feed, rows_feed
from qkv.train.config import Learn
from qkv.train.loop.trainer import Trainer
from qkv.train.objectives import Words, objective

SCRIPT = """
import os, signal, time
from qkv.train.loop.compile import start_compilers

heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
start_compilers()
from torch._inductor.async_compile import AsyncCompile

pool = AsyncCompile.process_pool()
os.kill(pool.process.pid, signal.SIGTERM)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(0.5)
assert pool.process.poll() is None, "the compilers have ended"
assert pool.submit(os.getpid).result(timeout=60) != os.getpid()
assert heard == [1]
print("good")
"""


def test_compilers_go_on_when_all_processes_are_told_to_end() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "2"}, timeout=120,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "good\n", done.stderr


SMALL: dict[str, Any] = dict(vocab=20, width=8, depth=3, heads=2, feed=8, drop=0.0)
DECODER = dict(decoder_depth=3, decoder_heads=2, decoder_feed=8)
CASES: dict[str, tuple[str, dict[str, Any], int]] = {  # and graphs: of each kind of block, of the loss
    "causal-lm": ("gpt2", SMALL | dict(length=16, embed_drop=0.0, attend_drop=0.0), 5),
    "seq2seq": ("transformer", SMALL | DECODER, 3),
    "label": ("electra", SMALL | dict(attend_drop=0.0, embed_width=4, head="label", labels=2), 2),
}


def feed(name: str, rng: np.random.Generator) -> Feed:
    """Texts of many lengths, in batches of like length: some with pads, some without, on either side."""
    lengths = rng.integers(2, 12, (60, 2))
    lengths[0] = lengths[1]  # whose source and target are of one length
    pairs = [(rng.integers(5, 20, a), rng.integers(5, 20, b)) for a, b in lengths.tolist()]
    if name == "causal-lm":  # of one length, but that some batches have pads, and the last is smaller
        texts = [{"tokens": rng.integers(5, 20, 9 - (i % 7 == 0))} for i in range(31)]
        return rows_feed(texts, rows=3)
    if name == "seq2seq":
        return rows_feed([{"source": a, "target": b} for a, b in pairs], lengths, tokens=40)
    labelled = [{"tokens": a, "label": b[:1] % 2} for a, b in pairs]
    return rows_feed(labelled, lengths[:, 0], tokens=40)


def run(name: str, *, compile: bool) -> list[dict[str, float]]:
    torch.manual_seed(0)
    family, arguments, _ = CASES[name]
    model = qkv.build(family, **arguments)
    told: list[dict[str, float]] = []
    trainer = Trainer(
        net=model.net, feed=feed(name, np.random.default_rng(0)), objective=objective(name, Words(size=20)),
        learn=Learn(steps=20, log=1, compile=compile), callbacks=[lambda report: told.append(report.values)],
    )  # fmt: skip
    trainer.run()
    assert not any("forward" in vars(module) for module in model.net.modules()), "a block stays compiled"
    return told


@pytest.mark.parametrize("name", CASES)
def test_few_graphs_say_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = run(name, compile=False)
    torch.compiler.reset()
    counters.clear()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    found = run(name, compile=True)
    torch.compiler.reset()
    assert counters["stats"]["unique_graphs"] == CASES[name][2]
    assert len(found) == len(plain) == 20
    for mine, other in zip(found, plain, strict=True):
        assert mine == pytest.approx(other, rel=1e-5)
