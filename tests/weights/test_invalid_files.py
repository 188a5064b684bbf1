"""Invalid weight files give an error of one line, and no code in them is run."""

import argparse
import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from qkv.weights.tensors import (
    WEIGHT_FILES,
    read_tensors,
    write_tensors,
)
from qkv.weights.torch_file import read_torch_file
from tests.support.errors import assert_error
from tests.support.weight_files import FileFormat


class Code:
    """Prints when it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("echo this must not run",)


def encode_file(entries: dict[str, tuple[str, list[int], list[int]]], size: int) -> bytes:
    """Return a safetensors file of zeros with any header."""
    rows = {name: dict(dtype=d, shape=s, data_offsets=o) for name, (d, s, o) in entries.items()}
    text = json.dumps(rows).encode()
    return struct.pack("<Q", len(text)) + text + bytes(size)


def test_a_folder_without_weights_is_an_error(tmp_path: Path) -> None:
    assert_error(lambda: read_tensors(tmp_path), "no weights", *WEIGHT_FILES, "contains nothing")
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model.bin").write_text("")
    assert_error(lambda: read_tensors(tmp_path), "the folder contains model.bin, tokenizer.json")


def test_a_path_without_weights_is_an_error(tmp_path: Path) -> None:
    assert_error(
        lambda: read_tensors(tmp_path / "nowhere"),
        "neither a folder nor a file",
        ".safetensors, .bin",
    )
    assert_error(lambda: read_tensors(tmp_path / "nowhere.bin"), "No such file")
    os.mkfifo(tmp_path / "model.safetensors")
    assert_error(lambda: read_tensors(tmp_path), "model.safetensors", "expected a regular file")
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors").symlink_to("gone")
    assert_error(lambda: read_tensors(tmp_path), "model.safetensors: No such file")


HUGE = 1 << 40


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["empty"]),
        (b"abc", ["of unknown type", "truncated or damaged"]),
        (struct.pack("<Q", 1 << 50) + b'{"a":', ["header", "truncated or damaged"]),
        (struct.pack("<Q", 80) + b'{"a":', ["header", "truncated or damaged"]),
        (
            encode_file({"a": ("F32", [HUGE], [0, 4 * HUGE])}, 16),
            ["not fully covered", "truncated or damaged"],
        ),
        (encode_file({"a": ("F32", [1], [0, 4])}, 8), ["not fully covered"]),
        (
            encode_file({"a": ("F32", [1], [0, 4]), "b": ("F32", [1], [8, 12])}, 12),
            ["invalid offset"],
        ),
        (
            encode_file({"a": ("F32", [2], [0, 8]), "b": ("F32", [1], [4, 8])}, 8),
            ["invalid offset"],
        ),
        (encode_file({"a": ("F32", [3], [0, 4])}, 4), ["invalid shape"]),
        (encode_file({"a": ("F99", [1], [0, 4])}, 4), ["invalid JSON"]),
        (b"version https://git-lfs.github.com/spec/v1\n", ["a Git LFS pointer", "git lfs pull"]),
        (pickle.dumps({"a": 1}), ["a pickle, expected a safetensors file", "suffix of its type"]),
    ],
)
def test_invalid_safetensors_files_are_errors(
    tmp_path: Path, content: bytes, words: list[str]
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    assert_error(lambda: read_tensors(tmp_path), str(path), *words)


@pytest.mark.parametrize("file_format", ["safetensors", "bin"])
def test_truncated_files_are_errors(
    tmp_path: Path, tensors: dict[str, Tensor], file_format: FileFormat
) -> None:
    (name,) = write_tensors(tmp_path, tensors, file_format=file_format)
    data = (tmp_path / name).read_bytes()
    for length in range(0, len(data), max(1, len(data) // 40)):
        (tmp_path / name).write_bytes(data[:length])
        assert_error(lambda: read_tensors(tmp_path), name)


def test_wrong_suffixes_are_errors(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    torch.save(tensors, tmp_path / "a.safetensors")
    assert_error(
        lambda: read_tensors(tmp_path / "a.safetensors"), "a zip file, expected a safetensors file"
    )
    save_file(tensors, tmp_path / "a.bin")
    assert_error(
        lambda: read_tensors(tmp_path / "a.bin"),
        "a safetensors file, expected a file written by torch.save",
    )
    assert_error(lambda: read_torch_file(tmp_path / "a.bin"), "suffix of its type")
    np.save(tmp_path / "a", np.zeros(3))
    (tmp_path / "a.npy").rename(tmp_path / "a.npz")
    assert_error(lambda: read_tensors(tmp_path / "a.npz"), "expected an .npz file")
    (tmp_path / "a.pt").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    assert_error(lambda: read_tensors(tmp_path / "a.pt"), "a Git LFS pointer", "git lfs pull")


def test_invalid_npz_files_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, a=np.array([Code()], dtype=object))
    assert_error(lambda: read_tensors(path), "allow_pickle=False", "expected arrays of numbers")
    np.savez(path, a=np.array(["text"]))
    assert_error(lambda: read_tensors(path), "expected arrays of numbers")
    np.savez(path, a=np.zeros(100))
    path.write_bytes(path.read_bytes()[:200])
    assert_error(lambda: read_tensors(path), "truncated or damaged")


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("zipped", [True, False])
def test_code_is_not_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], protocol: int, zipped: bool
) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save({"a": Code()}, path, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    assert_error(
        lambda: read_tensors(tmp_path), str(path), "objects other than tensors", "not loaded"
    )
    path.write_bytes(pickle.dumps({"a": Code()}, protocol))
    assert_error(
        lambda: read_tensors(tmp_path), str(path), "objects other than tensors", "not loaded"
    )
    assert capfd.readouterr().out == ""


def test_a_training_checkpoint_is_an_error_unless_its_types_are_allowed(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    torch.save({"model": {"a": torch.ones(2)}, "args": argparse.Namespace(heads=8)}, path)
    assert_error(
        lambda: read_torch_file(path),
        "objects other than tensors (GLOBAL argparse.Namespace)",
        "not loaded",
    )
    assert_error(lambda: read_tensors(path), "argparse.Namespace")
    loaded = read_torch_file(path, allowed_types=(argparse.Namespace,))
    assert isinstance(loaded, dict)
    assert loaded["args"].heads == 8
    assert loaded["model"]["a"].tolist() == [1, 1]
    # Allowed for one call only.
    assert_error(lambda: read_torch_file(path), "argparse.Namespace")
    torch.save({"model": {"a": torch.ones(2)}, "step": 3, "b": torch.ones(2)}, path)
    assert_error(lambda: read_tensors(path), "not tensors (model, step)", "is it a checkpoint?")
    torch.save([torch.ones(2)], path)
    assert_error(lambda: read_tensors(path), "contains a list", "state dict")
