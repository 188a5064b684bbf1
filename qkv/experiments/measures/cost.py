"""Time and memory of training steps and of decoding, against the length of the sequence."""

from __future__ import annotations

import ctypes
import gc
import re
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.batch import Batch, Inputs
from qkv.experiments.measures import CellContext, CellUnavailableError
from qkv.experiments.table import Measurement
from qkv.experiments.training import build_cell_model, count_parameters
from qkv.model.model import Model

MEBIBYTE = 2**20


def measure_cost(
    context: CellContext,
    *,
    model: Mapping[str, Any],
    mode: str,
    device: str,
    length: int,
    segment: int = 0,
    repeats: int = 3,
) -> Measurement:
    """Measure one row of `length` tokens on a device: a forward and backward pass (`mode` "training"),
    or greedy generation of the tokens ("decoding").

    `milliseconds` is the median time per token; `memory` the peak of memory beyond that of the weights
    and gradients, in MiB. With a `segment`, a network with segment recurrence reads the row in
    segments, as in its training."""
    if device == "cuda" and not torch.cuda.is_available():
        raise CellUnavailableError("no CUDA device")
    if mode not in ("training", "decoding"):
        raise ValueError(f"mode {mode!r}, expected training or decoding")
    built = build_cell_model(replace(context, device=device), model)
    ids = torch.randint(1, int(model["vocab_size"]), (1, length + 1), device=device)
    if mode == "training":
        built.net.train()

        def run() -> None:
            train_row(built, ids, segment or length)
    else:

        def run() -> None:
            built.generate(ids[:, :1], max_new_tokens=length, min_new_tokens=length)

    run()  # warms up allocators and kernels
    seconds, memory = [], []
    for _ in range(repeats):
        elapsed, peak = time_and_memory(run, device)
        seconds.append(elapsed)
        memory.append(peak)
    metrics = {
        "milliseconds": statistics.median(seconds) / length * 1000,
        "memory": statistics.median(memory),
        "num_parameters": count_parameters(built.net),
    }
    return Measurement(metrics=metrics)


def train_row(model: Model, ids: Tensor, segment: int) -> None:
    """Run a forward and backward pass of every segment of a row."""
    mems = None
    for start in range(0, ids.shape[1] - 1, segment):
        part = ids[:, start : start + segment + 1]
        out = model.net(Batch(decoder=Inputs.create(part[:, :-1]), mems=mems))
        F.cross_entropy(out["logits"].flatten(0, 1).float(), part[:, 1:].flatten()).backward()
        mems = out.get("mems")


def time_and_memory(run: Callable[[], None], device: str) -> tuple[float, float]:
    """Return the seconds of a call, and the peak of its memory in MiB."""
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    else:
        release_free_memory()
        before = read_resident_memory("VmRSS")
        reset_peak_memory()
    start_time = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start_time
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else read_resident_memory("VmHWM")
    return seconds, max(peak - before, 0) / MEBIBYTE


def release_free_memory() -> None:
    """Let the C library return freed memory to the system, so that a peak is that of the call."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


def reset_peak_memory() -> None:
    """Let Linux forget the peak of the resident memory of this process."""
    Path("/proc/self/clear_refs").write_text("5")


def read_resident_memory(name: str) -> int:
    """Return the current (VmRSS) or the peak (VmHWM) resident memory of this process in bytes."""
    status = Path("/proc/self/status").read_text()
    match = re.search(rf"{name}:\s+(\d+) kB", status)
    assert match is not None
    return int(match[1]) * 1024
