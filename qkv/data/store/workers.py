"""Workers: one function over many batches, in other processes, the results in order. Knows no data."""

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


def in_order(function: Callable[[A], B], batches: Iterable[A], workers: int) -> Generator[B]:
    """What the function makes of each batch; in this process if there are no workers.

    At most two batches a worker are under way, so memory does not grow with the number of batches.
    """
    if not workers:
        yield from map(function, batches)
        return
    try:
        sent = pickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        expected = "a function of a module, an object that pickle can write, or workers=0"
        raise ValueError(f"not to be sent to other processes ({error}); expected {expected}") from None
    # A fork of a process that has threads, as torch makes them, may hang.
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=_begin, initargs=(sent,)) as pool:
        waiting: deque[Future[B]] = deque()
        try:
            for batch in batches:
                waiting.append(pool.submit(_work, batch))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            cause = "was memory short (take fewer workers), or has the script no `if __name__ == '__main__'`?"
            raise ValueError(f"a worker process ended by itself; {cause}") from None
        finally:
            for future in waiting:
                future.cancel()


_given: list[Callable[[Any], Any]] = []  # in a worker process: the function


def _begin(sent: bytes) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # they are for the parent to handle
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for name, alone in (("TOKENIZERS_PARALLELISM", "false"), ("OMP_NUM_THREADS", "1")):
        os.environ.setdefault(name, alone)  # the processes are the parallelism
    _given.append(pickle.loads(sent))


def _end_with_parent() -> None:
    """A parent that is killed cannot tell its workers; they would wait for ever."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _work(batch: Any) -> Any:
    return _given[0](batch)
