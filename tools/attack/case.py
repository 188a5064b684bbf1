"""A case of an attack, and its run in a forked process with limits of time and memory."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn, Protocol

POLL_SECONDS = 0.002


@dataclass(frozen=True, kw_only=True)
class Case:
    """One hostile input.

    `run` is called in a process of its own, in an empty folder, which is also its argument. It
    returns None if the library behaved, else the reason why not; an exception is a failure too.
    What it writes to the folder (the input file) and prints is kept with the failure."""

    name: str  # what is attacked, and how
    run: Callable[[Path], str | None]
    timeout: float = 60.0  # seconds of wall time
    memory: int = 8 << 30  # bytes of address space besides those of the process at its start


class Attack(Protocol):
    """A generator of cases that depend on `rng` alone; `folder` is for files that cases share.

    Cases are drawn one after the other, and case n of a seed is always the same. A generator may end:
    then all cases of this attack were run."""

    def __call__(self, folder: Path, rng: random.Random) -> Iterator[Case]: ...


@dataclass(frozen=True)
class Outcome:
    """The end of a forked call: the value it returned, or the error that ended it."""

    value: Any
    error: str | None
    seconds: float


def call_in_fork(
    function: Callable[[], Any],
    *,
    timeout: float | None = None,
    memory: int | None = None,
    output: Path | None = None,
    new_group: bool = True,
) -> Outcome:
    """Call a function in a forked process; return its value, which must be JSON.

    `output` receives standard output and standard error. In a new process group, processes that are
    left at the end are killed; without it, the process receives the interrupts of the terminal."""
    start = time.monotonic()
    sys.stdout.flush()
    with tempfile.TemporaryFile() as file:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # of a fork of a process with threads
            process = os.fork()
        if not process:
            if new_group:
                os.setpgid(0, 0)
            _run_child(function, file, memory, output)
        try:
            error = _wait(process, None if timeout is None else start + timeout)
        finally:
            if new_group:
                _kill_group(process)
            _, status = os.waitpid(process, 0)
        file.seek(0)
        data = file.read()
    seconds = time.monotonic() - start
    if error is not None:
        return Outcome(None, error, seconds)
    if not data:
        return Outcome(None, _describe_status(status), seconds)
    value, error = json.loads(data)
    return Outcome(value, error, seconds)


def run_case(case: Case, folder: Path, output: Path) -> tuple[str | None, float]:
    """Run a case in `folder`; return the reason of its failure, and its time in seconds."""

    def run() -> str | None:
        os.chdir(folder)
        return case.run(folder)

    outcome = call_in_fork(run, timeout=case.timeout, memory=case.memory, output=output)
    return outcome.error or outcome.value, outcome.seconds


def _run_child(
    function: Callable[[], Any], file: IO[bytes], memory: int | None, output: Path | None
) -> NoReturn:
    """Call the function and write its value, or the traceback of its error, to the file."""
    if output is not None:
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(descriptor, stream)
        os.close(descriptor)
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False, errors="backslashreplace")
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False, errors="backslashreplace")
    if memory is not None:
        limit_memory(memory)
    message: tuple[Any, str | None]
    try:
        message = (function(), None)
    except BaseException:
        message = (None, traceback.format_exc())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    file.write(json.dumps(message).encode())
    file.flush()
    os._exit(0)


def limit_memory(size: int) -> None:
    """Allow this process `size` bytes of address space besides what it has (on Linux)."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        pages = int(statm.read_text().split()[0])
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        limit = pages * resource.getpagesize() + size
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _wait(process: int, deadline: float | None) -> str | None:
    """Wait until the process ends or the deadline passes; return the error of a deadline."""
    while os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if deadline is not None and time.monotonic() > deadline:
            return "did not end in time"
        time.sleep(POLL_SECONDS)
    return None


def _kill_group(process: int) -> None:
    """Kill the process and all that it started and left behind."""
    for kill in (os.killpg, os.kill):
        try:
            kill(process, signal.SIGKILL)
        except ProcessLookupError:
            continue  # it ended, or it did not reach setpgid yet
        return


def _describe_status(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return f"killed by signal {signal.Signals(-code).name}"
    return f"ended with exit code {code} and no result"
