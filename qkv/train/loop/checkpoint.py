"""Checkpoints: everything a run needs to go on, in a folder that is whole or not there. Knows no network.

    checkpoints/000100/
      net.safetensors  trainer.safetensors ...    tensors
      state.json                                  the rest, and the checksum of every file; written last

A folder is written under another name, synced and renamed. No pickle: tensors and JSON."""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from qkv.data.store.shards import sync
from qkv.weights.safetensors import aligned, read_safetensors, write_safetensors

STATE = "state.json"
Tensors = dict[str, dict[str, Tensor]]  # by file, by name


def write(
    root: Path, step: int, tensors: Tensors, state: Mapping[str, Any], *, keep: int = 2, every: int = 0
) -> Path:
    """Saves one, then removes all but the newest `keep`.

    One that was written between two steps of `every`, where a run was stopped, goes with the next: the others
    are then those of a run that was not."""
    target = root / f"{step:08}"
    room = root / f".{target.name}.tmp"
    shutil.rmtree(room, ignore_errors=True)
    try:
        for folder in (root, room):  # and not what they are in: a run whose folder is gone says so
            folder.mkdir(exist_ok=True)
        sums = {}
        for name, group in tensors.items():
            path = room / f"{name}.safetensors"
            write_safetensors(path, group)
            sums[path.name] = checksum(path)
            sync(path)
        body = {**state, "step": step, "files": sums}
        body["sum"] = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        (room / STATE).write_text(json.dumps(body, indent=1), encoding="utf-8")
        sync(room / STATE)
        sync(room)
        old = aside(target)
        if target.exists():  # it stays until the new one has its name
            target.rename(old)
        room.rename(target)
        sync(root)
        shutil.rmtree(old, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(room, ignore_errors=True)
        why = getattr(error, "strerror", None) or error
        last = max((path.name for path in finished(root)), default=None)
        kept = f"the one of step {int(last)} is kept" if last else "there is none yet"
        raise ValueError(f"{target}: the checkpoint could not be written ({why}); {kept}") from None
    older = [path for path in finished(root) if path != target]
    regular = [path for path in older if is_regular(path, every)]
    for old in {*older} - {*regular[max(len(regular) - keep + 1, 0) :]}:
        shutil.rmtree(old, ignore_errors=True)
    return target


def is_regular(path: Path, every: int) -> bool:
    """Whether a checkpoint was due, one in so many steps; 0: at no step in particular."""
    return not every or int(path.name) % every == 0


def before(root: Path, step: int, *, count: int, every: int) -> Iterator[dict[str, Tensor]]:
    """The weights of the last regular checkpoints before a step, one by one; a broken one is passed over."""
    regular = [path for path in finished(root) if int(path.name) < step and is_regular(path, every)]
    for folder in regular[max(len(regular) - count, 0) :]:
        try:
            yield read(folder, "net")[0]["net"]
        except ValueError as error:
            warnings.warn(f"{error}; the mean is of the others", stacklevel=2)


def newest(root: Path) -> tuple[Tensors, dict[str, Any]] | None:
    """The newest whole checkpoint; one that is broken is passed over with a warning."""
    for old in root.glob(".*.old"):  # of a run that ended between two names
        target = root / old.stem[1:]
        shutil.rmtree(old) if target.exists() else old.rename(target)
    for folder in reversed(finished(root)):
        try:
            return read(folder)
        except ValueError as error:
            warnings.warn(f"{error}; the one before is used", stacklevel=2)
    return None


def read(folder: Path, *only: str) -> tuple[Tensors, dict[str, Any]]:
    """All of a checkpoint, or only these of its files."""
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        claimed = state.pop("sum")
        if hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest() != claimed:
            raise ValueError("its checksum differs")
        files = {folder / name: wanted for name, wanted in state.pop("files").items()}
        files = {path: wanted for path, wanted in files.items() if not only or path.stem in only}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder / STATE}: a broken checkpoint ({error})") from None
    for path, wanted in files.items():
        if not path.is_file() or checksum(path) != wanted:
            raise ValueError(f"{path}: a broken checkpoint (missing, or its checksum differs)")
    groups = {path.stem: read_safetensors(path) for path in files}
    # Moments that a matrix product reads (Muon) must lie as they did before: see weights/safetensors.py.
    return {stem: {name: aligned(x) for name, x in group.items()} for stem, group in groups.items()}, state


def finished(root: Path) -> list[Path]:
    """Checkpoints, the oldest first."""
    return sorted(path for path in root.glob("[0-9]*") if path.is_dir() and path.name.isdigit())


def aside(target: Path) -> Path:
    """Where a checkpoint lies while another takes its name."""
    return target.with_name(f".{target.name}.old")


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
