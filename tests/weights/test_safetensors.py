"""The safetensors format: agreement with the reference implementation, and alignment in memory."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

import qkv
from qkv.weights.safetensors import (
    ALIGNMENT,
    SAFETENSORS_DTYPES,
    align_tensor,
    read_safetensors,
    write_safetensors,
)
from tests.support import compare, tiny


def build_tensors_of_every_dtype() -> dict[str, Tensor]:
    tensors = {}
    for dtype, name in SAFETENSORS_DTYPES.items():
        raw = torch.arange(96, dtype=torch.uint8).remainder(2)
        tensors[f"{name} ü"] = raw.view(dtype) if dtype is not torch.bool else raw.bool()
    return tensors | {
        "empty": torch.empty(0, 3),
        "number": torch.tensor(2.5),
        "odd": torch.ones(3, 5),
    }


def test_the_reference_implementation_reads_our_files(tmp_path: Path) -> None:
    tensors = build_tensors_of_every_dtype()
    write_safetensors(tmp_path / "a", tensors, metadata={"format": "pt", "quote": 'a "b"\n'})
    for loaded in (load_file(tmp_path / "a"), read_safetensors(tmp_path / "a")):
        compare.assert_bitwise_equal(loaded, tensors, because=compare.COPIED)
    with safe_open(tmp_path / "a", "pt") as file:
        assert file.metadata() == {"format": "pt", "quote": 'a "b"\n'}


def test_aligned_tensors_come_first(tmp_path: Path) -> None:
    sizes = {"a": 3, "b": 16, "c": 1, "d": 160, "e": 7}
    tensors = {name: torch.full((size,), 1.0) for name, size in sizes.items()}
    write_safetensors(tmp_path / "a", tensors)
    data = (tmp_path / "a").read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert (8 + length) % ALIGNMENT == 0
    header = json.loads(data[8 : 8 + length])
    assert list(header) == ["b", "d", "a", "c", "e"]
    assert header["a"]["data_offsets"] == [704, 716]
    loaded = read_safetensors(tmp_path / "a")
    is_aligned = {name: x.data_ptr() % ALIGNMENT == 0 for name, x in loaded.items()}
    assert is_aligned == {"b": True, "d": True, "a": True, "c": False, "e": False}
    assert align_tensor(loaded["b"]) is loaded["b"]
    aligned = align_tensor(loaded["c"])
    assert aligned.data_ptr() % ALIGNMENT == 0
    compare.assert_bitwise_equal(aligned, loaded["c"], because=compare.COPIED)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_loaded_parameters_are_aligned(family: str, tmp_path: Path) -> None:
    tiny.build(family, dtype=torch.float32).save(tmp_path / "a")
    tensors = load_file(tmp_path / "a" / "model.safetensors")
    save_file(
        {f"{name}": x for name, x in tensors.items()},
        tmp_path / "a" / "model.safetensors",
        {"x": "y"},
    )
    for parameter in qkv.load(tmp_path / "a").net.parameters():
        assert parameter.data_ptr() % ALIGNMENT == 0


def test_an_unsupported_dtype_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SafetensorError, match=r"a is torch\.complex128"):
        write_safetensors(tmp_path / "a", {"a": torch.ones(2, dtype=torch.complex128)})
    assert not (tmp_path / "a").exists()


def test_a_file_has_the_default_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write_safetensors(tmp_path / "a", {"a": torch.ones(2)})
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "a")]
    assert modes[0] == modes[1]
