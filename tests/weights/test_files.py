"""Weight files: bitwise round trips, and errors of one line for invalid files."""

import argparse
import json
import os
import pickle
import resource
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save, save_file
from torch import Tensor

from qkv import files
from qkv.files import MAX_TEXT_BYTES, read_json_object, read_text_file, write_json
from qkv.weights.tensors import (
    WEIGHT_FILES,
    find_nonfinite,
    read_tensors,
    read_torch_file,
    write_tensors,
)

FileFormat = Literal["safetensors", "bin"]
UNSHARDED = 10**9
LAYOUTS: list[tuple[FileFormat, int]] = [
    ("safetensors", UNSHARDED),
    ("safetensors", 40),
    ("bin", UNSHARDED),
    ("bin", 40),
]


class KilledError(BaseException):
    """Stands for a kill: nothing runs after it."""


class Code:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("echo this must not run",)


@pytest.fixture
def tensors() -> dict[str, Tensor]:
    return {
        "a.weight": torch.randn(3, 4),
        "a.bias": torch.randn(4).to(torch.bfloat16),
        "half": torch.randn(2, 5).half(),
        "count": torch.tensor(7),
        "none": torch.empty(0, 3),
        "mask": torch.tensor([True, False]),
        "eight": torch.randn(9).to(torch.float8_e4m3fn),
    }


def are_equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    """Whether two sets of tensors have the same names, dtypes, shapes and bits."""
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype
        and left[name].shape == right[name].shape
        and to_bits(left[name]).equal(to_bits(right[name]))
        for name in left
    )


def to_bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)


def assert_value_error(call: Callable[[], object], *words: str) -> str:
    """Return the message of the ValueError of a call, which must be one line with these words."""
    with pytest.raises(ValueError, match=r"\A.+\Z") as caught:
        call()
    message = str(caught.value)
    for word in words:
        assert word in message
    return message


def list_names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def header(entries: dict[str, tuple[str, list[int], list[int]]], size: int) -> bytes:
    """Return a safetensors file of zeros with any header."""
    rows = {name: dict(dtype=d, shape=s, data_offsets=o) for name, (d, s, o) in entries.items()}
    text = json.dumps(rows).encode()
    return struct.pack("<Q", len(text)) + text + bytes(size)


def write_index(folder: Path, weight_map: object) -> Path:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return path


# JSON


def test_json_round_trip_keeps_order(tmp_path: Path) -> None:
    data = {"zwei": [1, 2.5, None], "eins": {"ü": True}}
    write_json(tmp_path / "new" / "config.json", data)
    assert list(read_json_object(tmp_path / "new" / "config.json").items()) == list(data.items())
    text = (tmp_path / "new" / "config.json").read_bytes().decode("utf-8")
    assert text == json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    assert list_names(tmp_path / "new") == ["config.json"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["empty", "copy it again"]),
        (b'{"a": [1, 2', ["not JSON", "line 1 column", "truncated or damaged"]),
        (b'{"a": "\xff"}', ["not UTF-8", "byte 7"]),
        (b"[1, 2]", ["a JSON list", "expected an object"]),
        (b"9" * 5000, ["not JSON"]),
        (b'{"a":' * 100_000, ["nested too deep"]),
    ],
)
def test_invalid_json(tmp_path: Path, content: bytes, words: list[str]) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    assert_value_error(lambda: read_json_object(path), str(path), *words)


def test_json_is_no_regular_file(tmp_path: Path) -> None:
    assert_value_error(
        lambda: read_json_object(tmp_path / "config.json"),
        "config.json: No such file",
        "is the path right",
    )
    assert_value_error(lambda: read_json_object(tmp_path), "expected a regular file")
    os.mkfifo(tmp_path / "pipe")
    assert_value_error(
        lambda: read_json_object(tmp_path / "pipe"), "pipe", "expected a regular file"
    )


def test_json_too_large(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(MAX_TEXT_BYTES + 1)
    assert_value_error(
        lambda: read_json_object(path), "67108865 bytes", "expected at most 67108864"
    )


@pytest.mark.parametrize("mask", [0o022, 0o007, 0o077])
def test_files_follow_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        write_tensors(tmp_path, {"x": torch.zeros(2)})
        write_tensors(tmp_path, {"x": torch.zeros(2)})  # replaces the first
        write_json(tmp_path / "config.json", {})
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o666 & ~mask}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_file_without_permission(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{}")
    path.chmod(0)
    assert_value_error(lambda: read_json_object(path), "not readable", "permissions")


def test_text_keeps_line_ends(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"a\r\nb\n\r\n")
    assert read_text_file(tmp_path / "text") == "a\r\nb\n\r\n"


# Round trips


@pytest.mark.parametrize(("file_format", "shard_bytes"), LAYOUTS)
def test_tensors_round_trip(
    tmp_path: Path, tensors: dict[str, Tensor], file_format: FileFormat, shard_bytes: int
) -> None:
    written = write_tensors(
        tmp_path / "model", tensors, file_format=file_format, max_shard_size=shard_bytes
    )
    assert sorted(written) == list_names(tmp_path / "model")
    assert are_equal(read_tensors(tmp_path / "model"), tensors)
    for name in written:
        if not name.endswith(".json"):
            part = read_tensors(tmp_path / "model" / name)
            assert are_equal(part, {each: tensors[each] for each in part})


def test_layout_matches_hugging_face(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    assert write_tensors(tmp_path, tensors) == ["model.safetensors"]
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    written = write_tensors(tmp_path, tensors, max_shard_size=60)
    assert written == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]
    index = read_json_object(tmp_path / written[-1])
    assert index["metadata"] == {"total_size": sum(tensor.nbytes for tensor in tensors.values())}
    assert index["weight_map"] == {name: written[place > 1] for place, name in enumerate(tensors)}
    assert write_tensors(tmp_path, tensors, file_format="bin") == ["pytorch_model.bin"]
    assert write_tensors(tmp_path, tensors, file_format="bin", max_shard_size=0)[::7] == [
        "pytorch_model-00001-of-00007.bin",
        "pytorch_model.bin.index.json",
    ]


@pytest.mark.parametrize("file_format", ["safetensors", "bin"])
def test_shared_and_strided_memory(tmp_path: Path, file_format: FileFormat) -> None:
    base = torch.randn(1000, 8)
    tensors = {
        "base": base,
        "tied": base,
        "rows": base[2:5],
        "turned": base.T,
        "column": base[:, 1],
        "spread": base[0].expand(3, 8),
        "parameter": torch.nn.Parameter(base + 1),
    }
    write_tensors(tmp_path, tensors, file_format=file_format)
    read = read_tensors(tmp_path)
    assert are_equal(tensors, read)
    assert not any(tensor.requires_grad for tensor in read.values())
    write_tensors(tmp_path, {"rows": base[2:5]}, file_format=file_format)
    assert sum(entry.stat().st_size for entry in tmp_path.iterdir()) < base.nbytes / 4


def test_tensors_survive_the_file_they_were_read_from(tmp_path: Path) -> None:
    old = {"a": torch.randn(64, 64)}
    write_tensors(tmp_path, old)
    read = read_tensors(tmp_path)
    write_tensors(tmp_path, {name: tensor * 2 for name, tensor in read.items()})
    assert are_equal(read, old)
    assert read_tensors(tmp_path)["a"].equal(old["a"] * 2)


def test_order_of_preference(tmp_path: Path) -> None:
    for value, (file_format, shard_bytes) in reversed(list(enumerate(LAYOUTS))):
        folder = tmp_path / str(value)
        write_tensors(
            folder,
            {"a": torch.tensor([value]), "b": torch.zeros(99)},
            file_format=file_format,
            max_shard_size=shard_bytes,
        )
        for entry in list(folder.iterdir()):
            entry.rename(tmp_path / entry.name)
        assert read_tensors(tmp_path)["a"].item() == value


def test_legacy_pytorch_format(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    del tensors["eight"]  # unknown to that format
    torch.save(tensors, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert are_equal(read_tensors(tmp_path), tensors)


def test_npz(tmp_path: Path) -> None:
    arrays = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array(5)}
    np.savez(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type]
    np.savez_compressed(tmp_path / "b.npz", **arrays)  # type: ignore[arg-type]
    for name in ("a.npz", "b.npz"):
        read = read_tensors(tmp_path / name)
        assert are_equal(read, {name: torch.from_numpy(array) for name, array in arrays.items()})


def test_header_length_may_look_like_a_pickle(tmp_path: Path) -> None:
    for size in range(1, 100):
        data = save({"n" * size: torch.zeros(2)})
        (tmp_path / "model.safetensors").write_bytes(data)
        assert read_tensors(tmp_path)["n" * size].shape == (2,)
        if data[0] == 0x80:
            return
    pytest.fail("no header was 128 bytes long")


def test_both_ways_with_transformers(tmp_path: Path) -> None:
    from transformers import BertConfig, BertModel

    sizes = dict(
        vocab_size=50,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
    )
    model = BertModel(BertConfig(**sizes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    for size in ("5GB", "3KB"):
        model.save_pretrained(tmp_path / size, max_shard_size=size)
        assert are_equal(read_tensors(tmp_path / size), weights)
    assert len(list_names(tmp_path / "3KB")) > 4
    for file_format, shard_bytes in LAYOUTS:
        theirs = tmp_path / f"{file_format}{shard_bytes}"
        write_tensors(
            theirs, weights, file_format=file_format, max_shard_size=max(shard_bytes, 3000)
        )
        model.config.save_pretrained(theirs)
        opened = BertModel.from_pretrained(theirs, use_safetensors=file_format == "safetensors")
        assert are_equal(
            weights, {name: parameter.detach() for name, parameter in opened.named_parameters()}
        )


# Invalid files


def test_folder_without_weights(tmp_path: Path) -> None:
    assert_value_error(lambda: read_tensors(tmp_path), "no weights", *WEIGHT_FILES, "contains nothing")
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model.bin").write_text("")
    assert_value_error(lambda: read_tensors(tmp_path), "the folder contains model.bin, tokenizer.json")


def test_path_without_weights(tmp_path: Path) -> None:
    assert_value_error(
        lambda: read_tensors(tmp_path / "nowhere"),
        "neither a folder nor a file",
        ".safetensors, .bin",
    )
    assert_value_error(lambda: read_tensors(tmp_path / "nowhere.bin"), "No such file")
    os.mkfifo(tmp_path / "model.safetensors")
    assert_value_error(
        lambda: read_tensors(tmp_path), "model.safetensors", "expected a regular file"
    )
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors").symlink_to("gone")
    assert_value_error(lambda: read_tensors(tmp_path), "model.safetensors: No such file")


HUGE = 1 << 40


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["empty"]),
        (b"abc", ["of unknown type", "truncated or damaged"]),
        (struct.pack("<Q", 1 << 50) + b'{"a":', ["header", "truncated or damaged"]),
        (struct.pack("<Q", 80) + b'{"a":', ["header", "truncated or damaged"]),
        (
            header({"a": ("F32", [HUGE], [0, 4 * HUGE])}, 16),
            ["not fully covered", "truncated or damaged"],
        ),
        (header({"a": ("F32", [1], [0, 4])}, 8), ["not fully covered"]),
        (header({"a": ("F32", [1], [0, 4]), "b": ("F32", [1], [8, 12])}, 12), ["invalid offset"]),
        (header({"a": ("F32", [2], [0, 8]), "b": ("F32", [1], [4, 8])}, 8), ["invalid offset"]),
        (header({"a": ("F32", [3], [0, 4])}, 4), ["invalid shape"]),
        (header({"a": ("F99", [1], [0, 4])}, 4), ["invalid JSON"]),
        (b"version https://git-lfs.github.com/spec/v1\n", ["a Git LFS pointer", "git lfs pull"]),
        (pickle.dumps({"a": 1}), ["a pickle, expected a safetensors file", "suffix of its type"]),
    ],
)
def test_invalid_safetensors(tmp_path: Path, content: bytes, words: list[str]) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    assert_value_error(lambda: read_tensors(tmp_path), str(path), *words)


@pytest.mark.parametrize("file_format", ["safetensors", "bin"])
def test_truncated_files(
    tmp_path: Path, tensors: dict[str, Tensor], file_format: FileFormat
) -> None:
    (name,) = write_tensors(tmp_path, tensors, file_format=file_format)
    data = (tmp_path / name).read_bytes()
    for length in range(0, len(data), max(1, len(data) // 40)):
        (tmp_path / name).write_bytes(data[:length])
        assert_value_error(lambda: read_tensors(tmp_path), name)


def test_wrong_suffixes(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    torch.save(tensors, tmp_path / "a.safetensors")
    assert_value_error(
        lambda: read_tensors(tmp_path / "a.safetensors"), "a zip file, expected a safetensors file"
    )
    save_file(tensors, tmp_path / "a.bin")
    assert_value_error(
        lambda: read_tensors(tmp_path / "a.bin"),
        "a safetensors file, expected a file written by torch.save",
    )
    assert_value_error(lambda: read_torch_file(tmp_path / "a.bin"), "suffix of its type")
    np.save(tmp_path / "a", np.zeros(3))
    (tmp_path / "a.npy").rename(tmp_path / "a.npz")
    assert_value_error(lambda: read_tensors(tmp_path / "a.npz"), "expected an .npz file")
    (tmp_path / "a.pt").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    assert_value_error(lambda: read_tensors(tmp_path / "a.pt"), "a Git LFS pointer", "git lfs pull")


def test_invalid_npz(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, a=np.array([Code()], dtype=object))
    assert_value_error(
        lambda: read_tensors(path), "allow_pickle=False", "expected arrays of numbers"
    )
    np.savez(path, a=np.array(["text"]))
    assert_value_error(lambda: read_tensors(path), "expected arrays of numbers")
    np.savez(path, a=np.zeros(100))
    path.write_bytes(path.read_bytes()[:200])
    assert_value_error(lambda: read_tensors(path), "truncated or damaged")


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("zipped", [True, False])
def test_code_is_not_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], protocol: int, zipped: bool
) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save({"a": Code()}, path, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    assert_value_error(
        lambda: read_tensors(tmp_path), str(path), "objects other than tensors", "not loaded"
    )
    path.write_bytes(pickle.dumps({"a": Code()}, protocol))
    assert_value_error(
        lambda: read_tensors(tmp_path), str(path), "objects other than tensors", "not loaded"
    )
    assert capfd.readouterr().out == ""


def test_training_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    torch.save({"model": {"a": torch.ones(2)}, "args": argparse.Namespace(heads=8)}, path)
    assert_value_error(
        lambda: read_torch_file(path),
        "objects other than tensors (GLOBAL argparse.Namespace)",
        "not loaded",
    )
    assert_value_error(lambda: read_tensors(path), "argparse.Namespace")
    loaded = read_torch_file(path, allowed_types=(argparse.Namespace,))
    assert isinstance(loaded, dict)
    assert loaded["args"].heads == 8
    assert loaded["model"]["a"].equal(torch.ones(2))
    assert_value_error(
        lambda: read_torch_file(path), "argparse.Namespace"
    )  # allowed for one call only
    torch.save({"model": {"a": torch.ones(2)}, "step": 3, "b": torch.ones(2)}, path)
    assert_value_error(
        lambda: read_tensors(path), "not tensors (model, step)", "is it a checkpoint?"
    )
    torch.save([torch.ones(2)], path)
    assert_value_error(lambda: read_tensors(path), "contains a list", "state dict")


# Shards


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """A folder of two shards, `a` in the first and `b` in the second."""
    folder = tmp_path / "model"
    write_tensors(folder, {"a": torch.ones(2), "b": torch.ones(3)}, max_shard_size=0)
    return folder


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
def test_shard_names_outside_of_the_folder(sharded: Path, name: str) -> None:
    save_file({"a": torch.ones(2)}, sharded.parent / "secret.safetensors")
    write_index(sharded, {"a": name})
    assert_value_error(
        lambda: read_tensors(sharded), "shards are missing or wrong", "not opened" if name else ""
    )


def test_shard_link_out_of_the_folder(sharded: Path) -> None:
    save_file({"a": torch.ones(2)}, sharded.parent / "secret.safetensors")
    (sharded / FIRST).unlink()
    (sharded / FIRST).symlink_to("../secret.safetensors")
    assert_value_error(
        lambda: read_tensors(sharded), FIRST, "leads out of the folder", "not opened"
    )


def test_shard_link_inside_the_folder(sharded: Path) -> None:
    (sharded / FIRST).rename(sharded / "kept")
    (sharded / FIRST).symlink_to("kept")
    assert read_tensors(sharded).keys() == {"a", "b"}


def test_cache_of_the_hub(sharded: Path, tmp_path: Path) -> None:
    home = tmp_path / "hub" / "models--some--model"
    snapshot = home / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    (home / "blobs").mkdir()
    for number, name in enumerate(list_names(sharded)):
        (sharded / name).rename(home / "blobs" / str(number))
        (snapshot / name).symlink_to(f"../../blobs/{number}")
    assert read_tensors(snapshot).keys() == {"a", "b"}
    (home / "blobs" / "0").rename(home.parent / "other")
    (snapshot / FIRST).unlink()
    (snapshot / FIRST).symlink_to("../../../other")
    assert_value_error(lambda: read_tensors(snapshot), FIRST, "leads out of the folder")


def test_all_shard_problems_are_reported_at_once(sharded: Path) -> None:
    os.mkfifo(sharded / "pipe.safetensors")
    (sharded / "folder.bin").mkdir()
    (sharded / "loop.bin").symlink_to("loop.bin")
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
    index = write_index(sharded, weight_map)
    assert_value_error(
        lambda: read_tensors(sharded),
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


def test_index_selects_tensors(sharded: Path) -> None:
    save_file({"a": torch.zeros(2), "extra": torch.ones(1)}, sharded / SECOND)
    write_index(sharded, {"unseen": SECOND, "a": FIRST})
    assert_value_error(lambda: read_tensors(sharded), f"unseen is not in {SECOND}")
    write_index(sharded, {"extra": SECOND, "a": FIRST})
    read = read_tensors(sharded)
    assert read.keys() == {"a", "extra"}
    assert read["a"].equal(torch.ones(2))
    save_file({"b": torch.zeros(2), "extra": torch.ones(1)}, sharded / SECOND)
    assert read_tensors(sharded).keys() == {"a", "b", "extra"}


@pytest.mark.parametrize("weight_map", [None, ["a"], {"a": 3}, "model.bin"])
def test_index_without_weight_map(sharded: Path, weight_map: object) -> None:
    write_index(sharded, weight_map)
    assert_value_error(lambda: read_tensors(sharded), "no weight_map")


# Failed writes


@pytest.fixture
def small_disk() -> Iterator[None]:
    """Files cannot grow past 20 kB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("small_disk")
@pytest.mark.parametrize("file_format", ["safetensors", "bin"])
@pytest.mark.parametrize("shard_bytes", [UNSHARDED, 4_000])
def test_full_disk_keeps_old_weights(
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
        assert are_equal(read_tensors(tmp_path), old)


@pytest.mark.usefixtures("small_disk")
def test_full_disk_keeps_old_json(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"a": 1})
    with pytest.raises(OSError, match="not written"):
        write_json(tmp_path / "config.json", {"a": "long" * 10_000})
    with pytest.raises(TypeError):
        write_json(tmp_path / "config.json", {"a": object()})
    assert read_json_object(tmp_path / "config.json") == {"a": 1}
    assert list_names(tmp_path) == ["config.json"]


@pytest.mark.parametrize("after", LAYOUTS)
@pytest.mark.parametrize("before", LAYOUTS)
def test_killed_write_leaves_old_or_new_weights(
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
                assert are_equal(loaded, old) or are_equal(loaded, new)
                outcomes.append("new" if are_equal(loaded, new) else "old")
        written = write_tensors(folder, new, file_format=after[0], max_shard_size=after[1])
        assert list_names(folder) == sorted(written)
        assert are_equal(read_tensors(folder), new)
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
    left_behind = [
        "model.safetensors.tmp",
        "pytorch_model-00001-of-00009.bin",
        "model-2-00001-of-00002.safetensors",
    ]
    for name in left_behind:
        (tmp_path / name).write_text("")
    write_tensors(tmp_path, {"a": torch.ones(2)}, file_format="bin")
    assert list_names(tmp_path) == sorted([*others, "pytorch_model.bin"])


# Numbers


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
    ],
)
def test_nonfinite(dtype: torch.dtype) -> None:
    values = torch.linspace(-1, 1, 50)
    tensors = {
        "good": values.to(dtype),
        "nan": values.clone().index_fill_(0, torch.tensor(3), torch.nan).to(dtype),
    }
    if dtype != torch.float8_e4m3fn:  # has no infinity
        tensors["inf"] = values.clone().index_fill_(0, torch.tensor(49), torch.inf).to(dtype)
        tensors["-inf"] = values.clone().index_fill_(0, torch.tensor(0), -torch.inf).to(dtype)
    tensors |= {
        "extremes": torch.tensor([torch.finfo(dtype).min, torch.finfo(dtype).max], dtype=dtype)
    }
    tensors |= {
        "empty": torch.empty(0, dtype=dtype),
        "whole": torch.tensor([1, 2]),
        "bool": torch.tensor(True),
    }
    assert find_nonfinite(tensors) == [name for name in tensors if name in ("nan", "inf", "-inf")]


def test_nonfinite_in_rare_dtypes() -> None:
    exponents = torch.tensor([1, 255], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    fours = torch.tensor([1, 255], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    assert find_nonfinite({"a": exponents, "b": exponents[:1], "c": fours}) == ["a"]
