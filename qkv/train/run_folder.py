"""The folder of a run: its mark, its lock, and what an ended process left in it.

A run folder carries the file `.qkv-run`, which is written before all others. Another folder is used only
if it is empty, and only files that a run writes are removed."""

from __future__ import annotations

import fcntl
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from qkv.staging import sweep, write_file
from qkv.train.initial_model import TOKENIZER_FOLDER, TOKENIZER_SOURCE_FILE
from qkv.train.loop.checkpoint import (
    CHECKPOINTS_FOLDER,
    is_checkpoint,
    list_checkpoints,
    remove_partial_checkpoints,
)
from qkv.train.report.history import METRICS_FILE
from qkv.train.stdin import STDIN_FILE

MARK_FILE = ".qkv-run"
MARK_TEXT = "This is a run folder: qkv train replaces and removes its own files in it.\n"
LOCK_FILE = "lock"  # contains the id of the process that uses the folder
RECIPE_FILE = "recipe.toml"
DISCARDED_TOKENIZER = ".tokenizer.tmp"  # the name of a tokenizer that is removed
MODEL_FOLDERS = ("best", "last")
PREPARED_FILES = (  # what a run has written before its first step; the mark is removed last
    RECIPE_FILE, TOKENIZER_FOLDER, DISCARDED_TOKENIZER, TOKENIZER_SOURCE_FILE, STDIN_FILE, "data",
    LOCK_FILE, MARK_FILE,
)  # fmt: skip


def contains_run(folder: Path) -> bool:
    """Return whether the folder contains a run that reached its first report or checkpoint."""
    return (folder / METRICS_FILE).exists() or bool(list_checkpoints(folder / CHECKPOINTS_FOLDER))


def check_run_folder(folder: Path, *, resume: bool) -> None:
    """Raise ValueError unless the folder is empty, or a run folder whose run is resumed or not started.

    Runs of earlier versions have no mark; their checkpoints, which have checksums, identify them."""
    is_marked = (folder / MARK_FILE).exists()
    checkpoints = list_checkpoints(folder / CHECKPOINTS_FOLDER)
    is_run = is_marked or any(map(is_checkpoint, checkpoints))
    if not is_run and any(folder.iterdir()):
        raise ValueError(
            f"{folder}: not empty, and not the folder of a run; expected a new or an empty folder, "
            "or that of a run: choose another --run"
        )
    if is_run and contains_run(folder) and not resume:
        raise ValueError(
            f"{folder}: already contains a run; --resume auto resumes it, --run sets another folder"
        )
    if is_run and not is_marked:
        warnings.warn(
            f"{folder}: a run of an earlier version; {MARK_FILE} now marks it as a run folder",
            stacklevel=2,
        )


@contextmanager
def lock_run_folder(folder: Path, *, resume: bool = False) -> Iterator[None]:
    """Create, check, mark and lock the run folder, which only one process may use at a time."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_run_folder(folder, resume=resume)
        mark = folder / MARK_FILE
        if not mark.exists() or mark.stat().st_size != len(MARK_TEXT):
            mark.write_text(MARK_TEXT, encoding="utf-8")
        handle = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ValueError(f"{folder}: {error.strerror}; expected a writable folder") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner_pid = os.read(handle, 20).decode(errors="replace").strip() or "unknown"
        os.close(handle)
        raise ValueError(
            f"{folder}: in use by another process ({owner_pid}); wait for it, or choose another --run"
        ) from None
    os.ftruncate(handle, 0)
    os.write(handle, f"{os.getpid()}\n".encode())
    try:
        check_run_folder(folder, resume=resume)  # another process may have used it in between
        remove_leftovers(folder)
        yield
    finally:
        os.close(handle)


def remove_leftovers(folder: Path) -> None:
    """Finish or remove what a process that was killed left: saves, temporary files, a torn line."""
    for path in (folder, *(folder / name for name in MODEL_FOLDERS)):
        sweep(path)
    remove_entry(folder / DISCARDED_TOKENIZER)
    remove_partial_checkpoints(folder / CHECKPOINTS_FOLDER)
    metrics = folder / METRICS_FILE
    if metrics.exists():
        content = metrics.read_bytes()
        end = content.rfind(b"\n") + 1
        if end < len(content):
            os.truncate(metrics, end)


@contextmanager
def remove_failed_start(folder: Path) -> Iterator[None]:
    """After an error in the block, remove the run folder if this process created or filled it."""
    was_empty = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    new_folders = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        yield
    except Exception:  # Ctrl-C keeps the data that is encoded
        lock_file = folder / LOCK_FILE
        if was_empty and lock_file.is_file() and lock_file.read_text().strip() == str(os.getpid()):
            for name in PREPARED_FILES:
                remove_entry(folder / name)
            for path in new_folders:
                with suppress(OSError):  # others have written into it
                    path.rmdir()
        raise


def write_recipe(folder: Path, text: str) -> None:
    """Write recipe.toml atomically, unless it has this text."""
    if read_recipe_text(folder) != text:
        with write_file(folder / RECIPE_FILE) as temporary:
            temporary.write_text(text, encoding="utf-8")


def read_recipe_text(folder: Path) -> str | None:
    """Return the text of recipe.toml; None if there is none."""
    path = folder / RECIPE_FILE
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else None


def discard_tokenizer(folder: Path) -> None:
    """Remove the tokenizer of a run that has not started: no part of it is left under its name."""
    (folder / TOKENIZER_SOURCE_FILE).unlink(missing_ok=True)
    tokenizer = folder / TOKENIZER_FOLDER
    if tokenizer.exists():
        tokenizer.rename(folder / DISCARDED_TOKENIZER)
        remove_entry(folder / DISCARDED_TOKENIZER)


def remove_entry(path: Path) -> None:
    """Remove a file or folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
