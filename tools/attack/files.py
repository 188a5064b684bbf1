"""Attack on the readers of files: changed valid files of every kind.

A reader accepts a file, or raises a ValueError or OSError of one line. Anything else is a failure:
another error, a native crash, more than 20 seconds or a gigabyte, a connection, a started process, a
file outside of the folder."""

from __future__ import annotations

import os
import random
import resource
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tools.attack.case import Case
from tools.attack.mutations import mutate_file
from tools.attack.targets import Target, write_targets

MAX_SECONDS = 20.0
MAX_BYTES = 2**30
MAX_MESSAGE = 5000  # characters
FORBIDDEN_EVENTS = (
    "socket.connect", "socket.bind", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork",
    "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.symlink", "os.truncate", "shutil.rmtree",
    "pickle.find_class", "ctypes.dlopen",
)  # fmt: skip
DATA_SUFFIXES = (".py", ".pyc", ".so")  # files of Python itself, which imports open


class ForbiddenError(BaseException):
    """A reader did what no reader may do."""


def attack_files(folder: Path, rng: random.Random) -> Iterator[Case]:
    """Changed files of every kind that is read: models, weights, tokenizers, data, images."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        targets = write_targets(folder)
        for target in targets:  # this also imports what reading needs
            status, reason = judge(target, target.folder)
            if status != ("refused" if target.is_refused else "accepted"):
                raise ValueError(f"{target.kind}: the valid file is {status}: {reason}")
    while True:
        target = rng.choice(targets)
        yield make_case(target, rng.choice(target.list_files()), rng.getrandbits(64), folder)


def make_case(target: Target, name: str, seed: int, valid: Path) -> Case:
    """Return the case of a changed file; `valid` is a folder that may be read besides."""
    return Case(
        name=f"{target.kind}, {name}",
        run=partial(run_case, target, name, seed, valid),
        timeout=MAX_SECONDS,
    )


def run_case(target: Target, name: str, seed: int, valid: Path, folder: Path) -> str | None:
    """Change a file, read its folder, and return what is wrong."""
    copy, scratch = folder / "case", folder / "scratch"  # of readers that need temporary files
    scratch.mkdir()
    shutil.copytree(target.folder, copy)
    data = (copy / name).read_bytes()
    (copy / name).write_bytes(mutate_file(name, data, random.Random(seed)))
    warnings.simplefilter("ignore")
    tempfile.tempdir = str(scratch)
    is_watching = True

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if is_watching:
            check_event(event, args, (copy, valid), scratch)

    sys.addaudithook(watch)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    status, reason = judge(target, copy)
    is_watching = False
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) * 1024
    print(status, reason)
    if growth > MAX_BYTES:
        return f"{growth:,} bytes of memory"
    return reason if status == "failed" else None


def judge(target: Target, folder: Path) -> tuple[str, str]:
    """Read a folder; return "accepted", "refused" or "failed", and the message."""
    try:
        target.read(folder)
    except (ValueError, OSError) as error:
        message = str(error)
        if not message or len(message) > MAX_MESSAGE or not message.isprintable():
            return "failed", f"not one line of at most {MAX_MESSAGE} characters: {message[:300]!r}"
        return "refused", message
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else ""
        return "failed", f"{type(error).__name__} {str(error)[:300]!r} at {place}"
    return "accepted", ""


def check_event(event: str, args: tuple[Any, ...], folders: Sequence[Path], scratch: Path) -> None:
    """Raise ForbiddenError for an event that no reader may cause; temporary files are allowed."""
    is_path = bool(args) and isinstance(args[0], str | bytes | os.PathLike)
    path = resolve_path(*args) if is_path else Path()
    if path.is_relative_to(scratch):
        return
    if event in FORBIDDEN_EVENTS:
        raise ForbiddenError(f"{event} {args}"[:300])
    if event != "open" or not is_path:
        return
    mode, flags = args[1], args[2]
    if (isinstance(mode, str) and set(mode) & set("wax+")) or flags & (os.O_WRONLY | os.O_RDWR):
        raise ForbiddenError(f"opened for writing: {path}")
    is_own = path.suffix in DATA_SUFFIXES or path.is_relative_to(sys.prefix)
    is_system = path.is_relative_to("/proc") or path.is_relative_to(sys.base_prefix)
    package = Path(__file__).resolve().parents[2]
    is_inside = any(path.is_relative_to(folder) for folder in (*folders, package))
    if not (is_own or is_system or is_inside):
        raise ForbiddenError(f"opened outside of the folder: {path}")


def resolve_path(name: str | bytes | os.PathLike[str], *args: Any) -> Path:
    """Return the absolute path of an audit event; its last argument may be the descriptor of a folder."""
    path = os.fsdecode(name)
    if not os.path.isabs(path) and args and isinstance(args[-1], int) and args[-1] > 0:
        descriptor = Path(f"/proc/self/fd/{args[-1]}")
        path = os.path.join(os.readlink(descriptor) if descriptor.exists() else "", path)
    return Path(os.path.abspath(path))
