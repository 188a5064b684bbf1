"""Worker processes: map a function over batches, with the results in order."""

import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection, get_context, parent_process
from typing import Any, TypeVar

A = TypeVar("A")
B = TypeVar("B")


def map_in_order(
    function: Callable[[A], B], batches: Iterable[A], num_workers: int
) -> Generator[B]:
    """Map a function over batches in worker processes, or in this process if `num_workers` is 0.

    At most two batches per worker are pending, so that memory does not grow with the number of
    batches.
    """
    if not num_workers:
        yield from map(function, batches)
        return
    try:
        pickled_function = pickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"cannot be sent to other processes ({error}); "
            "expected a module-level function, a picklable object, or num_workers=0"
        ) from None
    # Spawn: a fork of a process with threads, which torch starts, may deadlock.
    with ProcessPoolExecutor(
        num_workers,
        get_context("spawn"),
        initializer=_initialize_worker,
        initargs=(pickled_function,),
    ) as pool:
        pending: deque[Future[B]] = deque()
        try:
            for batch in batches:
                pending.append(pool.submit(_process_batch, batch))
                if len(pending) > 2 * num_workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool:
            raise ValueError(
                "a worker process ended unexpectedly; did it run out of memory (use fewer workers), "
                "or has the script no `if __name__ == '__main__'`?"
            ) from None
        finally:
            for future in pending:
                future.cancel()


_worker_function: list[Callable[[Any], Any]] = []  # set in a worker process


def _initialize_worker(pickled_function: bytes) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent handles them
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    # One thread per process, because there are several processes.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    _worker_function.append(pickle.loads(pickled_function))


def _exit_with_parent() -> None:
    """Exit when the parent is killed; otherwise, the worker would wait forever."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _process_batch(batch: Any) -> Any:
    return _worker_function[0](batch)
