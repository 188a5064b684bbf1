"""Weight files: bitwise round trips in every format, both ways with transformers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor
from transformers import BertConfig, BertModel

from qkv.files import read_json_object
from qkv.weights.tensors import find_nonfinite, read_tensors, write_tensors
from tests.support import compare
from tests.support.weight_files import LAYOUTS, FileFormat, list_names


def assert_same(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    compare.assert_bitwise_equal(actual, expected, because=compare.COPIED)


@pytest.mark.parametrize(("file_format", "shard_bytes"), LAYOUTS)
def test_tensors_survive_a_round_trip(
    tmp_path: Path, tensors: dict[str, Tensor], file_format: FileFormat, shard_bytes: int
) -> None:
    names = write_tensors(
        tmp_path / "model", tensors, file_format=file_format, max_shard_size=shard_bytes
    )
    assert sorted(names) == list_names(tmp_path / "model")
    assert_same(read_tensors(tmp_path / "model"), tensors)
    for name in names:
        if not name.endswith(".json"):
            part = read_tensors(tmp_path / "model" / name)
            assert_same(part, {key: tensors[key] for key in part})


def test_layout_matches_hugging_face(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    assert write_tensors(tmp_path, tensors) == ["model.safetensors"]
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    names = write_tensors(tmp_path, tensors, max_shard_size=60)
    assert names == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]
    index = read_json_object(tmp_path / names[-1])
    assert index["metadata"] == {"total_size": sum(tensor.nbytes for tensor in tensors.values())}
    assert index["weight_map"] == {name: names[place > 1] for place, name in enumerate(tensors)}
    assert write_tensors(tmp_path, tensors, file_format="bin") == ["pytorch_model.bin"]
    assert write_tensors(tmp_path, tensors, file_format="bin", max_shard_size=0)[::7] == [
        "pytorch_model-00001-of-00007.bin",
        "pytorch_model.bin.index.json",
    ]


@pytest.mark.parametrize("file_format", ["safetensors", "bin"])
def test_shared_and_strided_memory_is_written(tmp_path: Path, file_format: FileFormat) -> None:
    base = torch.randn(1000, 8)
    tensors = {
        "base": base,
        "tied": base,
        "rows": base[2:5],
        "transposed": base.T,
        "column": base[:, 1],
        "expanded": base[0].expand(3, 8),
        "parameter": torch.nn.Parameter(base + 1),
    }
    write_tensors(tmp_path, tensors, file_format=file_format)
    read = read_tensors(tmp_path)
    assert_same(tensors, read)
    assert not any(tensor.requires_grad for tensor in read.values())
    write_tensors(tmp_path, {"rows": base[2:5]}, file_format=file_format)
    assert sum(entry.stat().st_size for entry in tmp_path.iterdir()) < base.nbytes / 4


def test_tensors_survive_the_file_they_were_read_from(tmp_path: Path) -> None:
    old = {"a": torch.randn(64, 64)}
    write_tensors(tmp_path, old)
    read = read_tensors(tmp_path)
    write_tensors(tmp_path, {name: tensor * 2 for name, tensor in read.items()})
    assert_same(read, old)
    assert_same(read_tensors(tmp_path), {"a": old["a"] * 2})


def test_safetensors_and_single_files_are_preferred(tmp_path: Path) -> None:
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


def test_the_legacy_format_of_torch_is_read(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    del tensors["float8"]  # unknown to that format
    torch.save(tensors, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert_same(read_tensors(tmp_path), tensors)


def test_npz_files_are_read(tmp_path: Path) -> None:
    arrays = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array(5)}
    np.savez(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type]
    np.savez_compressed(tmp_path / "b.npz", **arrays)  # type: ignore[arg-type]
    for name in ("a.npz", "b.npz"):
        read = read_tensors(tmp_path / name)
        assert_same(read, {name: torch.from_numpy(array) for name, array in arrays.items()})


def test_header_length_may_look_like_a_pickle(tmp_path: Path) -> None:
    for size in range(1, 100):
        data = save({"n" * size: torch.zeros(2)})
        (tmp_path / "model.safetensors").write_bytes(data)
        assert read_tensors(tmp_path)["n" * size].shape == (2,)
        if data[0] == 0x80:
            return
    pytest.fail("no header was 128 bytes long")


def test_transformers_and_qkv_read_each_others_files(tmp_path: Path) -> None:
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
        assert_same(read_tensors(tmp_path / size), weights)
    assert len(list_names(tmp_path / "3KB")) > 4
    for file_format, shard_bytes in LAYOUTS:
        folder = tmp_path / f"{file_format}{shard_bytes}"
        write_tensors(
            folder, weights, file_format=file_format, max_shard_size=max(shard_bytes, 3000)
        )
        model.config.save_pretrained(folder)
        loaded = BertModel.from_pretrained(folder, use_safetensors=file_format == "safetensors")
        assert_same(
            weights, {name: parameter.detach() for name, parameter in loaded.named_parameters()}
        )


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
def test_values_that_are_not_finite_are_found(dtype: torch.dtype) -> None:
    values = torch.linspace(-1, 1, 50)
    tensors = {
        "finite": values.to(dtype),
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
        "integers": torch.tensor([1, 2]),
        "bool": torch.tensor(True),
    }
    assert find_nonfinite(tensors) == [name for name in tensors if name in ("nan", "inf", "-inf")]


def test_values_of_rare_dtypes_that_are_not_finite_are_found() -> None:
    exponents = torch.tensor([1, 255], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    fours = torch.tensor([1, 255], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    assert find_nonfinite({"a": exponents, "b": exponents[:1], "c": fours}) == ["a"]
