"""Shards: the index selects tensors, and no shard outside of the folder is read."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from qkv.weights.tensors import read_tensors, write_tensors
from tests.support.errors import assert_error
from tests.support.limits import get_error_message
from tests.support.weight_files import list_names, write_index


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of two shards, `a` in the first and `b` in the second."""
    path = tmp_path / "model"
    write_tensors(path, {"a": torch.ones(2), "b": torch.ones(3)}, max_shard_size=0)
    return path


FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "../secret.safetensors",
        "..",
        ".",
        "",
        "sub/x.safetensors",
        "..\\x.bin",
        "a\0b",
        "x" * 300,
    ],
)
def test_shard_names_outside_of_the_folder_are_errors(folder: Path, name: str) -> None:
    save_file({"a": torch.ones(2)}, folder.parent / "secret.safetensors")
    write_index(folder, {"a": name})
    assert_error(
        lambda: read_tensors(folder), "shards are missing or wrong", "not opened" if name else ""
    )


def test_a_link_out_of_the_folder_is_an_error(folder: Path) -> None:
    save_file({"a": torch.ones(2)}, folder.parent / "secret.safetensors")
    (folder / FIRST).unlink()
    (folder / FIRST).symlink_to("../secret.safetensors")
    assert_error(lambda: read_tensors(folder), FIRST, "leads out of the folder", "not opened")


def test_a_link_inside_the_folder_is_read(folder: Path) -> None:
    (folder / FIRST).rename(folder / "blob")
    (folder / FIRST).symlink_to("blob")
    assert read_tensors(folder).keys() == {"a", "b"}


def test_links_of_the_hub_cache_are_read(folder: Path, tmp_path: Path) -> None:
    home = tmp_path / "hub" / "models--some--model"
    snapshot = home / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    (home / "blobs").mkdir()
    for number, name in enumerate(list_names(folder)):
        (folder / name).rename(home / "blobs" / str(number))
        (snapshot / name).symlink_to(f"../../blobs/{number}")
    assert read_tensors(snapshot).keys() == {"a", "b"}
    (home / "blobs" / "0").rename(home.parent / "other")
    (snapshot / FIRST).unlink()
    (snapshot / FIRST).symlink_to("../../../other")
    assert_error(lambda: read_tensors(snapshot), FIRST, "leads out of the folder")


def test_all_shard_problems_are_reported_at_once(folder: Path) -> None:
    os.mkfifo(folder / "pipe.safetensors")
    (folder / "folder.bin").mkdir()
    (folder / "loop.bin").symlink_to("loop.bin")
    weight_map = {
        "a": FIRST,
        "b": FIRST,
        "c": SECOND,
        "d": "gone.safetensors",
        "e": "pipe.safetensors",
        "f": "folder.bin",
        "g": "../g.bin",
        "h": "loop.bin",
        "i": "model.safetensors.index.json",
    }
    index = write_index(folder, weight_map)
    assert_error(
        lambda: read_tensors(folder),
        f"{index}: shards are missing or wrong",
        f"b is not in {FIRST}",
        f"c is not in {SECOND}",
        "gone.safetensors: No such file",
        "pipe.safetensors: a folder, pipe or device",
        "folder.bin: a folder, pipe or device",
        "'../g.bin': not a plain file name",
        "loop.bin: ",
        "index.json: neither a folder nor a file of weights",
    )


def test_the_index_selects_tensors(folder: Path) -> None:
    save_file({"a": torch.ones(2), "extra": torch.ones(1)}, folder / SECOND)
    write_index(folder, {"unseen": SECOND, "a": FIRST})
    assert_error(lambda: read_tensors(folder), f"unseen is not in {SECOND}")
    write_index(folder, {"extra": SECOND, "a": FIRST})
    read = read_tensors(folder)
    assert read.keys() == {"a", "extra"}
    assert read["a"].tolist() == [1, 1]
    save_file({"b": torch.zeros(2), "extra": torch.ones(1)}, folder / SECOND)
    assert read_tensors(folder).keys() == {"a", "b", "extra"}


def test_a_tensor_with_other_values_in_another_shard_is_an_error(folder: Path) -> None:
    save_file({"a": torch.zeros(2), "b": torch.tensor([float("nan")])}, folder / SECOND)
    for weight_map in ({"b": SECOND, "a": FIRST}, {"a": FIRST, "b": SECOND}):
        write_index(folder, weight_map)
        assert_error(lambda: read_tensors(folder), "a is in two shards, with different values")
    save_file({"a": torch.ones(2), "b": torch.tensor([float("nan")])}, folder / FIRST)
    save_file({"b": torch.tensor([float("nan")])}, folder / SECOND)
    assert read_tensors(folder).keys() == {"a", "b"}


def test_many_missing_tensors_are_not_all_listed(folder: Path) -> None:
    write_index(folder, {f"tensor{i}": FIRST for i in range(200_000)})
    message = get_error_message(lambda: read_tensors(folder))
    assert "tensor0 is not in" in message
    assert "and 199,990 more" in message
    assert len(message) < 2000


@pytest.mark.parametrize("weight_map", [None, ["a"], {"a": 3}, "model.bin"])
def test_an_index_without_weight_map_is_an_error(folder: Path, weight_map: object) -> None:
    write_index(folder, weight_map)
    assert_error(lambda: read_tensors(folder), "no weight_map")
