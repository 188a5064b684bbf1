"""Limits of time and memory for calls that must fail early."""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

CPU_SECONDS, BYTES, SECONDS = 1.0, 200 << 20, 10


class TimedOutError(BaseException):
    """The call did not return in time."""


@contextmanager
def limit_time_and_memory() -> Iterator[None]:
    """Allow one second of CPU time, 200 MB of memory and ten seconds in all."""

    def raise_timeout(*_: object) -> None:
        raise TimedOutError

    statm = Path("/proc/self/statm")
    used = int(statm.read_text().split()[0]) * resource.getpagesize() if statm.exists() else 0
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, raise_timeout)
    signal.alarm(SECONDS)
    if used:
        resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, hard))
    start = time.process_time()
    try:
        yield
    finally:
        took = time.process_time() - start
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert took < CPU_SECONDS, f"{took:.1f} s"


def get_error_message(
    run: Callable[[], object],
    expected: type[Exception] | tuple[type[Exception], ...] = ValueError,
) -> str:
    """Return the message of the error that the call must raise, on one line, within time and memory
    limits."""
    with limit_time_and_memory(), pytest.raises(expected) as caught:
        run()
    message = str(caught.value)
    assert message
    assert message.isprintable(), "expected one line"
    return message
