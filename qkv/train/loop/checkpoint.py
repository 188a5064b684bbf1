"""Checkpoints: the full training state in a folder, written atomically. Does not depend on networks.

    checkpoints/00000100/
      net.safetensors  optimizer.safetensors ...  tensors
      state.json                                  other state and the checksums of all files; written last

A folder is written under a temporary name, synced and renamed; it is renamed again before it is removed, so
that a folder with the name of a step is complete. It contains no pickle files."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from qkv.files import sync_file
from qkv.weights.safetensors import align_tensor, read_safetensors, write_safetensors

CHECKPOINTS_FOLDER = "checkpoints"  # in the folder of a run
STATE_FILE = "state.json"
LEFTOVER_PATTERN = re.compile(r"\.(\d+)\.(tmp|old)")
CheckpointTensors = dict[str, dict[str, Tensor]]  # by file, by name


def write_checkpoint(
    root: Path,
    step: int,
    tensors: CheckpointTensors,
    state: Mapping[str, Any],
    *,
    keep_checkpoints: int = 2,
    save_every: int = 0,
) -> Path:
    """Write a checkpoint, then remove all but the newest `keep_checkpoints`.

    A checkpoint between two multiples of `save_every`, where a run was stopped, is removed with the
    next one, so that the remaining ones are those of an uninterrupted run."""
    target = root / f"{step:08}"
    temporary = get_temporary_path(target)
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        for folder in (root, temporary):  # without parents: a deleted run folder must be an error
            folder.mkdir(exist_ok=True)
        checksums = {}
        for name, group in tensors.items():
            path = temporary / f"{name}.safetensors"
            write_safetensors(path, group)
            checksums[path.name] = compute_checksum(path)
            sync_file(path)
        content = {**state, "step": step, "files": checksums}
        content["checksum"] = hash_json(content)
        (temporary / STATE_FILE).write_text(json.dumps(content, indent=1), encoding="utf-8")
        sync_file(temporary / STATE_FILE)
        sync_file(temporary)
        backup = get_backup_path(target)
        if target.exists():  # kept until the new checkpoint is renamed
            target.rename(backup)
        temporary.rename(target)
        sync_file(root)
        shutil.rmtree(backup, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        reason = getattr(error, "strerror", None) or error
        latest = max((path.name for path in list_checkpoints(root)), default=None)
        remaining = (
            f"the checkpoint of step {int(latest)} is kept" if latest else "there is no other"
        )
        raise ValueError(
            f"{target}: the checkpoint could not be written ({reason}); {remaining}"
        ) from None
    older = [path for path in list_checkpoints(root) if path != target]
    scheduled = [path for path in older if is_scheduled_checkpoint(path, save_every)]
    for path in {*older} - {*scheduled[max(len(scheduled) - keep_checkpoints + 1, 0) :]}:
        with suppress(OSError):
            path.rename(get_temporary_path(path))
        shutil.rmtree(get_temporary_path(path), ignore_errors=True)
    return target


def remove_partial_checkpoints(root: Path) -> None:
    """Finish what an ended process was doing: restore a replaced checkpoint, remove temporary folders."""
    for path in sorted(root.glob(".*")):
        if match := LEFTOVER_PATTERN.fullmatch(path.name):
            target = root / match[1]
            if match[2] == "old" and not target.exists():  # it ended between two renames
                path.rename(target)
            else:
                shutil.rmtree(path)


def is_scheduled_checkpoint(path: Path, save_every: int) -> bool:
    """Return whether the step of a checkpoint is a multiple of `save_every`; 0: every step is."""
    return not save_every or int(path.name) % save_every == 0


def read_previous_weights(
    root: Path, step: int, *, count: int, save_every: int
) -> Iterator[dict[str, Tensor]]:
    """Yield the weights of the last scheduled checkpoints before a step; skip damaged ones."""
    scheduled = [
        path
        for path in list_checkpoints(root)
        if int(path.name) < step and is_scheduled_checkpoint(path, save_every)
    ]
    for folder in scheduled[max(len(scheduled) - count, 0) :]:
        try:
            yield read_checkpoint(folder, "net")[0]["net"]
        except ValueError as error:
            warnings.warn(f"{error}; the mean is of the others", stacklevel=2)


def read_latest_checkpoint(root: Path) -> tuple[CheckpointTensors, dict[str, Any]] | None:
    """Return the newest intact checkpoint; a damaged one is skipped with a warning."""
    remove_partial_checkpoints(root)
    for folder in reversed(list_checkpoints(root)):
        try:
            return read_checkpoint(folder)
        except ValueError as error:
            warnings.warn(f"{error}; using the previous one", stacklevel=2)
    return None


def read_checkpoint(folder: Path, *file_stems: str) -> tuple[CheckpointTensors, dict[str, Any]]:
    """Read a checkpoint: the tensors of all its files, or only of these, and its state."""
    state, files = read_state(folder)
    if file_stems:
        files = {path: checksum for path, checksum in files.items() if path.stem in file_stems}
    for path, checksum in files.items():
        if not path.is_file() or compute_checksum(path) != checksum:
            raise ValueError(f"{path}: damaged checkpoint (missing file, or wrong checksum)")
    groups = {path.stem: read_safetensors(path) for path in files}
    # Muon's momentum is an operand of a matrix product and must be aligned: weights/safetensors.py.
    tensors = {
        stem: {name: align_tensor(x) for name, x in group.items()} for stem, group in groups.items()
    }
    return tensors, state


def read_state(folder: Path) -> tuple[dict[str, Any], dict[Path, str]]:
    """Read the state of a checkpoint, and the checksums of its files."""
    try:
        state = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
        if hash_json(state) != state.pop("checksum"):
            raise ValueError("wrong checksum")
        files = {folder / name: checksum for name, checksum in state.pop("files").items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder / STATE_FILE}: damaged checkpoint ({error})") from None
    return state, files


def is_checkpoint(folder: Path) -> bool:
    """Return whether the folder contains the state of a checkpoint; its tensors are not read."""
    try:
        read_state(folder)
    except ValueError:
        return False
    return True


def list_checkpoints(root: Path) -> list[Path]:
    """Return the checkpoint folders, the oldest first."""
    return sorted(path for path in root.glob("[0-9]*") if path.is_dir() and path.name.isdigit())


def get_temporary_path(target: Path) -> Path:
    """Return the name of a checkpoint while it is written or removed."""
    return target.with_name(f".{target.name}.tmp")


def get_backup_path(target: Path) -> Path:
    """Return the name of a checkpoint while a new one of the same step replaces it."""
    return target.with_name(f".{target.name}.old")


def hash_json(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the content without its own checksum."""
    content = {key: value for key, value in content.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def compute_checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
