"""Writes that fail or are killed leave the old weights or the new ones, and nothing else."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from qkv import files
from qkv.weights.tensors import read_tensors, write_tensors
from tests.support import compare
from tests.support.weight_files import LAYOUTS, UNSHARDED, FileFormat, list_names


class KilledError(BaseException):
    """Stands for a kill: nothing runs after it."""


def has_same_bits(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return actual.keys() == expected.keys() and all(
        compare.has_same_bits(actual[name], x) for name, x in expected.items()
    )


@pytest.mark.usefixtures("small_disk")
@pytest.mark.parametrize("file_format", ["safetensors", "bin"])
@pytest.mark.parametrize("shard_bytes", [UNSHARDED, 4_000])
def test_a_full_disk_keeps_the_old_weights(
    tmp_path: Path, file_format: FileFormat, shard_bytes: int
) -> None:
    old = {"a": torch.ones(1000)}
    for before, _ in LAYOUTS[::2]:
        write_tensors(tmp_path, old, file_format=before)
        before_names = list_names(tmp_path)
        with pytest.raises(OSError, match="not written, its files are unchanged") as caught:
            write_tensors(
                tmp_path,
                old | {"b": torch.zeros(100_000)},
                file_format=file_format,
                max_shard_size=shard_bytes,
            )
        assert "\n" not in str(caught.value)
        assert list_names(tmp_path) == before_names
        assert has_same_bits(read_tensors(tmp_path), old)


@pytest.mark.parametrize("after", LAYOUTS)
@pytest.mark.parametrize("before", LAYOUTS)
def test_a_killed_write_leaves_old_or_new_weights(
    tmp_path: Path, before: tuple[FileFormat, int], after: tuple[FileFormat, int]
) -> None:
    old = {"a": torch.zeros(10), "b": torch.zeros(10)}
    new = {name: tensor + 1 for name, tensor in old.items()}
    outcomes = []
    for step in range(100):
        folder = tmp_path / str(step)
        write_tensors(folder, old, file_format=before[0], max_shard_size=before[1])
        with pytest.MonkeyPatch.context() as patch:
            kill_at(step, patch)
            try:
                write_tensors(folder, new, file_format=after[0], max_shard_size=after[1])
                outcomes.append("done")
            except KilledError:
                loaded = read_tensors(folder)
                assert has_same_bits(loaded, old) or has_same_bits(loaded, new)
                outcomes.append("new" if has_same_bits(loaded, new) else "old")
        names = write_tensors(folder, new, file_format=after[0], max_shard_size=after[1])
        assert list_names(folder) == sorted(names)
        assert has_same_bits(read_tensors(folder), new)
        if outcomes[-1] == "done":
            break
    assert outcomes == sorted(outcomes, key=["old", "new", "done"].index)
    assert outcomes[0] == "old"
    assert outcomes[-1] == "done"


def kill_at(step: int, patch: pytest.MonkeyPatch) -> None:
    """From this step on, raise instead of syncing, renaming or removing."""
    remaining = step

    def stop_after(real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **options: object) -> object:
            nonlocal remaining
            remaining -= 1
            if remaining < 0:
                raise KilledError
            return real(*args, **options)

        return call

    patch.setattr(files, "sync_file", stop_after(files.sync_file))
    patch.setattr(Path, "replace", stop_after(Path.replace))
    patch.setattr(Path, "unlink", stop_after(Path.unlink))


def test_other_files_stay(tmp_path: Path) -> None:
    others = [
        "adapter_model.safetensors",
        "config.json",
        "model.notes.tmp",
        "model.fp16.safetensors",
        "optimizer.bin",
    ]
    for name in others:
        (tmp_path / name).write_text("{}")
    leftovers = [
        "model.safetensors.tmp",
        "pytorch_model-00001-of-00009.bin",
        "model-2-00001-of-00002.safetensors",
    ]
    for name in leftovers:
        (tmp_path / name).write_text("")
    write_tensors(tmp_path, {"a": torch.ones(2)}, file_format="bin")
    assert list_names(tmp_path) == sorted([*others, "pytorch_model.bin"])
