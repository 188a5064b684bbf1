"""Batching by length, evaluation mode and progress reports of tasks."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias, TypeVar

import torch

from qkv.kernels.attention import without_cudnn
from qkv.model.model import Model

PROGRESS_INTERVAL = 0.2  # seconds between two progress reports on the terminal

ItemT = TypeVar("ItemT")
OutcomeT = TypeVar("OutcomeT")
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
def evaluation_mode(model: Model) -> Iterator[Model]:
    """Yield the model in evaluation mode, within torch's inference mode.

    The mode of its network is not changed, so that other threads may call or train it."""
    with torch.inference_mode(), without_cudnn():
        yield model.view_in_evaluation_mode()


def catch_error(function: Callable[[], OutcomeT]) -> OutcomeT | Exception:
    """Return what a function returns, or its error."""
    try:
        return function()
    except Exception as error:
        return error


def is_any_error(error: Exception) -> bool:
    """Return True, for `map_in_parts`."""
    return True


def raise_first_error(outcomes: Sequence[OutcomeT | Exception]) -> list[OutcomeT]:
    """Return the outcomes, or raise the first error among them."""
    results: list[OutcomeT] = []
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
        results.append(outcome)
    return results


def map_in_parts(
    function: Callable[[Sequence[ItemT]], Sequence[OutcomeT | Exception]],
    items: Sequence[ItemT],
    can_split: Callable[[Exception], bool],
) -> list[OutcomeT | Exception]:
    """Return what a function returns for a list of items, in smaller parts after an error.

    An item that fails alone has its error instead. Errors that `can_split` excludes are raised."""
    failure: Exception
    try:
        return [*function(items)]
    except Exception as error:
        if not can_split(error):
            raise
        failure = error
    traceback.clear_frames(failure.__traceback__)  # frees their tensors
    if len(items) == 1:
        return [failure]
    half = len(items) // 2
    parts = (items[:half], items[half:])
    return [result for part in parts for result in map_in_parts(function, part, can_split)]


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
