"""Writes that fail or are killed leave the old weights or the new ones, and nothing else."""

import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from qkv.weights.tensors import read_tensors, write_tensors
from tests.support import compare
from tests.support.weight_files import LAYOUTS, UNSHARDED, FileFormat, list_names
from tools.attack.file_events import run_at_every_event


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


@pytest.mark.parametrize(("before", "after"), [*zip(LAYOUTS, LAYOUTS[::-1], strict=True)])
def test_a_killed_write_leaves_old_or_new_weights(
    memory_path: Path, before: tuple[FileFormat, int], after: tuple[FileFormat, int]
) -> None:
    old = {"a": torch.zeros(10), "b": torch.zeros(10)}
    new = {name: tensor + 1 for name, tensor in old.items()}
    folder = memory_path / "model"

    def reset() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        write_tensors(folder, old, file_format=before[0], max_shard_size=before[1])

    def write() -> list[str]:
        return write_tensors(folder, new, file_format=after[0], max_shard_size=after[1])

    outcomes = []
    for _ in run_at_every_event(write, folder, reset=reset):
        loaded = read_tensors(folder)
        assert has_same_bits(loaded, old) or has_same_bits(loaded, new)
        outcomes.append("new" if has_same_bits(loaded, new) else "old")
        names = write()
        assert list_names(folder) == sorted(names)
        assert has_same_bits(read_tensors(folder), new)
    assert outcomes == sorted(outcomes, key=["old", "new"].index)
    assert {*outcomes} == {"old", "new"}


def test_other_files_stay(tmp_path: Path) -> None:
    others = [
        "adapter_model.safetensors",
        "config.json",
        "model.safetensors.tmp",
        "model.fp16.safetensors",
        "optimizer.bin",
    ]
    for name in others:
        (tmp_path / name).write_text("{}")
    leftovers = [
        "pytorch_model-00001-of-00009.bin",
        "model-2-00001-of-00002.safetensors",
    ]
    for name in leftovers:
        (tmp_path / name).write_text("")
    write_tensors(tmp_path, {"a": torch.ones(2)}, file_format="bin")
    assert list_names(tmp_path) == sorted([*others, "pytorch_model.bin"])
