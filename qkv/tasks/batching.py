"""Batching by length, evaluation mode and progress reports of tasks."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import torch

from qkv.kernels.attention import without_cudnn
from qkv.model.model import Model

PROGRESS_INTERVAL = 0.2  # seconds between two progress reports on the terminal

TaskProgressCallback: TypeAlias = Callable[[str, int, int | None], None]  # message, done, total
TaskProgress: TypeAlias = bool | TaskProgressCallback


def group_rows_by_length(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Yield batches of row indices, longest rows first, of at most `max_tokens` with padding."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if batch and (len(batch) + 1) * lengths[batch[0]] > max_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


@contextmanager
def evaluation_mode(model: Model) -> Iterator[None]:
    """Set evaluation and inference mode within the context, then restore the training mode."""
    was_training = model.net.training
    model.net.eval()
    try:
        with torch.inference_mode(), without_cudnn():
            yield
    finally:
        model.net.train(was_training)


def build_progress_reporter(
    name: str, num_done: int, chunk_size: int, total: int, progress: TaskProgress
) -> Callable[[float], None]:
    """Return a function that reports progress, given the finished fraction of the chunk.

    `num_done` inputs were finished before the chunk."""
    last_time = 0.0

    def print_to_terminal(message: str, done: int, total: int | None) -> None:
        nonlocal last_time
        is_due = time.monotonic() - last_time > PROGRESS_INTERVAL or done == total
        if sys.stderr.isatty() and is_due:
            last_time = time.monotonic()
            end = "\n" if done == total else ""
            print(f"\r{message}", end=end, file=sys.stderr, flush=True)

    def report_progress(fraction: float) -> None:
        done = num_done + int(chunk_size * fraction)
        if progress:
            callback = print_to_terminal if progress is True else progress
            callback(f"{name}: {done:,} of {total:,}", done, total)

    return report_progress
