"""Faults at named file events: a kill, or an I/O error, before the Nth change of a folder.

A file event is an audit event of Python that changes files (an open for writing, a rename, a removal, a
new folder, ...) or an `os.fsync`, of a path below `root`. It is reported before it happens. Writes by
native code (torch.save, Rust) and by other processes are not events.

    endings = [*run_at_every_event(lambda: model.save(folder), root, reset=restore)]
    python -m tools.attack.file_events ROOT 17 kill -m qkv export source target
"""

from __future__ import annotations

import errno
import os
import runpy
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

KILL = "kill"
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Audit event: the number of paths among its first arguments, and the places of their dir_fd.
PATH_EVENTS = {
    "os.rename": (2, (2, 3)), "os.link": (2, (2, 3)), "os.symlink": (2, (2,)), "os.remove": (1, (1,)),
    "os.mkdir": (1, (2,)), "os.rmdir": (1, (1,)), "os.truncate": (1, ()), "os.chmod": (1, (2,)),
}  # fmt: skip


class Ending(NamedTuple):
    """How a process with a fault ended."""

    event: int  # the number of the event of the fault, from 0
    names: list[str]  # of all events: "os.rename config.json", ...
    signal: int  # 9 after a kill
    error: str  # "OSError: ..." if the action raised

    @property
    def reached(self) -> bool:
        """Whether the process came to the event of the fault."""
        return len(self.names) > self.event


class FileEvents:
    """Counts the file events below `root` in this process, from `install` on."""

    def __init__(
        self, root: Path, event: int, fault: str, *, persistent: bool = False, log: int | None = None
    ) -> None:  # fmt: skip
        """`fault` is "kill" or the name of an error, such as ENOSPC; with `persistent`, each later
        event fails too. Names of events are written to the descriptor `log`."""
        self.root = os.path.realpath(root)
        self.event, self.fault, self.persistent, self.log = event, fault, persistent, log
        self.count = 0

    def install(self) -> None:
        """Start counting; an audit hook cannot be removed."""
        sys.addaudithook(self._audit)
        original = os.fsync

        def fsync(fd: Any) -> None:
            number = fd if isinstance(fd, int) else fd.fileno()
            self._report("os.fsync", [os.readlink(f"/proc/self/fd/{number}")])
            original(fd)

        os.fsync = fsync

    def _audit(self, name: str, args: tuple[Any, ...]) -> None:
        if name == "open":
            if isinstance(args[0], (str, bytes, os.PathLike)) and args[2] & WRITE_FLAGS:
                self._report(name, [_resolve(args[0], -1)])
        elif name in PATH_EVENTS:
            num_paths, fds = PATH_EVENTS[name]
            if isinstance(args[0], (str, bytes, os.PathLike)):
                folders = [args[place] for place in fds] + [-1] * num_paths
                self._report(name, [_resolve(args[i], folders[i]) for i in range(num_paths)])

    def _report(self, name: str, paths: list[str]) -> None:
        if not any(os.path.commonpath([self.root, path]) == self.root for path in paths):
            return
        number, self.count = self.count, self.count + 1
        if self.log is not None:
            relative = [os.path.relpath(path, self.root) for path in paths]
            os.write(self.log, f"{name} {' '.join(relative)}\n".encode())
        if number == self.event and self.fault == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        if number == self.event or (self.persistent and number > self.event >= 0):
            code = getattr(errno, self.fault)
            raise OSError(code, os.strerror(code), paths[0])


def _resolve(path: Any, folder: int) -> str:
    name = os.fsdecode(path)
    if folder != -1:
        name = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), name)
    head, tail = os.path.split(os.path.abspath(name))
    return os.path.join(os.path.realpath(head), tail)


def run_with_fault(
    action: Callable[[], object], root: Path, event: int, fault: str = KILL, *, persistent: bool = False
) -> Ending:  # fmt: skip
    """Run an action in a fork of this process, with a fault at an event of it; -1: no fault.

    The fork shares what is already imported and built, so that a run costs milliseconds."""
    read_end, write_end = os.pipe()
    error_read, error_write = os.pipe()

    def run() -> None:
        FileEvents(root, event, fault, persistent=persistent, log=write_end).install()
        try:
            action()
        except BaseException as error:
            os.write(error_write, f"{type(error).__name__}: {error}".encode()[:4000])
            if not isinstance(error, (OSError, ValueError)):
                raise

    child = fork(run)
    os.close(write_end)
    os.close(error_write)
    with os.fdopen(read_end) as events, os.fdopen(error_read) as errors:
        names, error = events.read().splitlines(), errors.read()
    _, status = os.waitpid(child, 0)
    return Ending(event, names, os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, error)


def fork(action: Callable[[], object]) -> int:
    """Run an action in a fork of this process, and return its process id; it exits with 0 or 1."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork of a process with threads
        child = os.fork()
    if not child:
        code = 1
        try:
            action()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def run_at_every_event(
    action: Callable[[], object], root: Path, fault: str = KILL, *,
    reset: Callable[[], object], persistent: bool = False,
) -> Iterator[Ending]:  # fmt: skip
    """Yield the ending of the action with the fault at its first event, its second, ..., each after
    `reset`; the last ending is one without a fault."""
    event = 0
    while True:
        reset()
        ending = run_with_fault(action, root, event, fault, persistent=persistent)
        yield ending
        if not ending.reached:
            return
        event += 1


def main(arguments: list[str]) -> None:
    """Run a Python module in this process with a fault: ROOT EVENT FAULT -m MODULE [ARGUMENT ...]."""
    root, event, fault, _, module, *module_arguments = arguments
    sys.argv = [module, *module_arguments]
    FileEvents(Path(root), int(event), fault).install()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
