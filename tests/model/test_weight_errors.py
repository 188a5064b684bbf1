"""Weights that are damaged, of another model or outside of the folder give an error of one line.

No code in a file is run, nothing blocks, and no file can cause a large allocation."""

import json
import os
import pickle
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save, save_file
from torch import Tensor

import qkv
from tests.support import tiny
from tests.support.model_folders import DEEP_JSON, FILE, FolderOf, assert_load_fails


def change_tensors(folder: Path, **tensors: Tensor | None) -> Path:
    """Change tensors of the file; None removes one."""
    stored = load_file(folder / FILE) | {name: x for name, x in tensors.items() if x is not None}
    save_file(
        {name: x for name, x in stored.items() if tensors.get(name, x) is not None}, folder / FILE
    )
    return folder


def test_all_mismatches_are_reported_at_once(copy_folder: FolderOf) -> None:
    new = {
        "bert.embeddings.LayerNorm.bias": None,
        "bert.encoder.layer.1.output.dense.weight": None,
        "bert.encoder.layer.0.output.dense.weight": torch.zeros(24, 41),
        "bert.encoder.layer.0.output.dense.bias": torch.zeros(()),
        "bert.encoder.layer.7.output.dense.bias": torch.zeros(24),
        "rocket.engine": torch.zeros(3),
    }
    shapes = ("[24, 41]", "[24, 40]", "[]", "[24]")
    assert_load_fails(change_tensors(copy_folder("bert"), **new), *new, *shapes)


def test_weights_of_another_model_are_an_error(copy_folder: FolderOf) -> None:
    model_folder = copy_folder("gpt2")
    shutil.copy(copy_folder("bert") / FILE, model_folder / FILE)
    assert_load_fails(
        model_folder, "h.0.attn.c_attn.bias is missing", "bert.embeddings.LayerNorm.bias is unknown"
    )


def test_a_file_without_tensors_is_an_error(copy_folder: FolderOf) -> None:
    model_folder = copy_folder("t5")
    save_file({}, model_folder / FILE)
    assert_load_fails(model_folder)


def test_unprintable_tensor_names_are_escaped(copy_folder: FolderOf) -> None:
    assert_load_fails(
        change_tensors(copy_folder("bert"), **{"two\nlines\x1b[31m": torch.zeros(1)}), "two"
    )


@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn]
)
def test_weights_of_other_dtypes_are_errors(dtype: torch.dtype, copy_folder: FolderOf) -> None:
    name = "bert.encoder.layer.0.output.dense.weight"
    assert_load_fails(
        change_tensors(copy_folder("bert"), **{name: torch.zeros(24, 40).to(dtype)}),
        name,
        str(dtype).removeprefix("torch."),
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_give_one_warning(value: float, copy_folder: FolderOf) -> None:
    tensor = torch.zeros(53, 24)
    tensor[2, 3] = value
    model_folder = change_tensors(
        copy_folder("bert"),
        **{
            "bert.embeddings.word_embeddings.weight": tensor,
            "bert.embeddings.LayerNorm.bias": tensor[2].clone(),
        },
    )
    match = r"bert: NaN or infinite values in \S+tokens.weight; \S+norm.bias; is the file damaged"
    with pytest.warns(UserWarning, match=match) as caught:
        model = qkv.load(model_folder)
    assert len(caught) == 1
    assert model(tiny.random_ids(1, 3))["logits"].shape == (1, 3, 53)


def test_a_buffer_may_have_infinite_values(copy_folder: FolderOf) -> None:
    # GPT-2's causal mask is a buffer of the oldest files.
    mask = torch.full((1, 1, 8, 8), -float("inf")).triu(1)
    qkv.load(change_tensors(copy_folder("gpt2"), **{"transformer.h.0.attn.bias": mask}))


def test_many_unknown_tensors_are_not_all_listed(copy_folder: FolderOf) -> None:
    model_folder = copy_folder("bert")
    change_tensors(model_folder, **{f"bert.extra.{i}": torch.zeros(1) for i in range(500)})
    with pytest.raises(ValueError, match=r"bert\.extra\.0 is unknown; .*and 490 more") as caught:
        qkv.load(model_folder)
    assert len(str(caught.value)) < 2000
    change_tensors(model_folder, **{f"bert.extra.{i}": torch.zeros(1) for i in range(3_000)})
    assert_load_fails(model_folder, " tensors, but the model of config.json has only")


def encode_file(**entry: Any) -> bytes:
    text = json.dumps({"a": dict(dtype="F32", shape=[2], data_offsets=[0, 8]) | entry}).encode()
    return struct.pack("<Q", len(text)) + text + b"\0" * 8


VALID_FILE = save({"a": torch.zeros(2)})
INVALID_FILES: dict[str, bytes] = {
    "empty": b"",
    "three bytes": b"abc",
    "cut in the length": VALID_FILE[:5],
    "cut in the header": VALID_FILE[:20],
    "cut in the data": VALID_FILE[:-3],
    "too long": VALID_FILE + b"\0",
    "a length of 2^63": struct.pack("<Q", 1 << 63) + VALID_FILE[8:],
    "a length of 10^9": struct.pack("<Q", 10**9) + VALID_FILE[8:],
    "no JSON": struct.pack("<Q", 8) + b"{rocket}",
    "deep": struct.pack("<Q", len(DEEP_JSON)) + DEEP_JSON,
    "an unknown dtype": encode_file(dtype="F33"),
    "a shape of 10^18": encode_file(shape=[10**18]),
    "a shape of 2^64": encode_file(shape=[1 << 32, 1 << 32]),
    "a negative shape": encode_file(shape=[-2]),
    "offsets past the end": encode_file(shape=[10**9], data_offsets=[0, 4 * 10**9]),
    "offsets that cross": encode_file(data_offsets=[8, 0]),
    "a shape that is not its data": encode_file(shape=[3]),
    "a pickle": pickle.dumps({"a": 1}),
    "an LFS pointer": b"version https://git-lfs.github.com/spec/v1\n",
    "a zip": b"PK\x03\x04" + b"\0" * 60,
    "text": b"<html>not found</html>",
}


@pytest.mark.parametrize("content", INVALID_FILES.values(), ids=INVALID_FILES)
def test_invalid_safetensors_files_are_errors(content: bytes, copy_folder: FolderOf) -> None:
    model_folder = copy_folder("bert")
    (model_folder / FILE).write_bytes(content)
    assert_load_fails(model_folder, FILE)


class Code:
    """Creates a folder when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("file_format", ["zip", "old", "bare"])
@pytest.mark.parametrize("name", [FILE, "pytorch_model.bin"])
def test_code_in_a_pickle_is_never_run(
    name: str, file_format: str, copy_folder: FolderOf, tmp_path: Path
) -> None:
    model_folder = copy_folder("bert")
    marker = tmp_path / "ran"
    (model_folder / FILE).unlink()
    stored = {"a": torch.zeros(2), "b": Code(marker)}
    if file_format == "bare":
        (model_folder / name).write_bytes(pickle.dumps({"b": Code(marker)}))
    else:
        torch.save(stored, model_folder / name, _use_new_zipfile_serialization=file_format == "zip")
    assert_load_fails(model_folder, name)
    assert not marker.exists()


def test_a_folder_without_weights_is_an_error(copy_folder: FolderOf) -> None:
    model_folder = copy_folder("bert")
    (model_folder / FILE).unlink()
    assert_load_fails(model_folder, FILE, "pytorch_model.bin")


def write_index(model_folder: Path, shard: str) -> Path:
    stored = load_file(model_folder / FILE)
    (model_folder / FILE).unlink()
    save_file(stored, model_folder / "good.safetensors")
    names = dict.fromkeys(stored, "good.safetensors") | {"bert.embeddings.LayerNorm.bias": shard}
    (model_folder / f"{FILE}.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": names})
    )
    return model_folder


@pytest.mark.parametrize(
    "variant", ["up", "absolute", "link", "fifo", "folder", "missing", "device", "link to device"]
)
def test_shards_outside_of_the_folder_are_errors(
    variant: str, copy_folder: FolderOf, tmp_path: Path
) -> None:
    outside = tmp_path / "outside.safetensors"
    shutil.copy(copy_folder("bert") / FILE, outside)
    shard = {"up": "../outside.safetensors", "absolute": str(outside), "device": "/dev/zero"}.get(
        variant, "x.safetensors"
    )
    model_folder = write_index(copy_folder("bert"), shard)
    if variant == "link":
        (model_folder / shard).symlink_to(outside)
    elif variant == "fifo":
        os.mkfifo(model_folder / shard)
    elif variant == "folder":
        (model_folder / shard).mkdir()
    elif variant == "link to device":
        (model_folder / shard).symlink_to("/dev/zero")
    assert_load_fails(model_folder, "index.json", shard)


@pytest.mark.parametrize("variant", ["fifo", "folder", "device"])
def test_weights_must_be_a_regular_file(variant: str, copy_folder: FolderOf) -> None:
    path = copy_folder("bert") / FILE
    path.unlink()
    if variant == "fifo":
        os.mkfifo(path)
    elif variant == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    assert_load_fails(path.parent, FILE)


@pytest.mark.parametrize(
    "index", ["", "[]", "{}", '{"weight_map": 5}', '{"weight_map": {"a": 5}}', '{"weight_map": {}}']
)
def test_an_invalid_index_is_an_error(index: str, copy_folder: FolderOf) -> None:
    model_folder = copy_folder("bert")
    (model_folder / FILE).unlink()
    (model_folder / f"{FILE}.index.json").write_text(index)
    assert_load_fails(model_folder, model_folder.name)
