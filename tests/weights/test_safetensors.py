"""One file of safetensors: what the reference implementation reads back, and where tensors lie in memory."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

import qkv
from qkv.weights.safetensors import ALIGNMENT, DTYPES, aligned, read_safetensors, write_safetensors
from tests.support import tiny


def tensors_of_every_dtype() -> dict[str, Tensor]:
    made = {}
    for dtype, name in DTYPES.items():
        raw = torch.arange(96, dtype=torch.uint8).remainder(2)
        made[f"{name} ü"] = raw.view(dtype) if dtype is not torch.bool else raw.bool()
    return made | {"empty": torch.empty(0, 3), "number": torch.tensor(2.5), "odd": torch.ones(3, 5)}


def test_the_reference_implementation_reads_what_is_written(tmp_path: Path) -> None:
    tensors = tensors_of_every_dtype()
    write_safetensors(tmp_path / "a", tensors, metadata={"format": "pt", "quote": 'a "b"\n'})
    for found in (load_file(tmp_path / "a"), read_safetensors(tmp_path / "a")):
        assert found.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
            both = (x.reshape(-1).view(torch.uint8) for x in (found[name], tensor))
            assert torch.equal(*both), name
    from safetensors import safe_open

    with safe_open(tmp_path / "a", "pt") as file:
        assert file.metadata() == {"format": "pt", "quote": 'a "b"\n'}


def test_whole_lines_come_first_and_lie_at_boundaries(tmp_path: Path) -> None:
    sizes = {"a": 3, "b": 16, "c": 1, "d": 160, "e": 7}
    tensors = {name: torch.full((size,), 1.0) for name, size in sizes.items()}
    write_safetensors(tmp_path / "a", tensors)
    data = (tmp_path / "a").read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert (8 + length) % ALIGNMENT == 0
    header = json.loads(data[8 : 8 + length])
    assert list(header) == ["b", "d", "a", "c", "e"]
    assert header["a"]["data_offsets"] == [704, 716]
    found = read_safetensors(tmp_path / "a")
    assert [found[name].data_ptr() % ALIGNMENT == 0 for name in "bdace"] == [True, True, True, False, False]
    assert aligned(found["b"]) is found["b"]
    moved = aligned(found["c"])
    assert moved.data_ptr() % ALIGNMENT == 0
    assert torch.equal(moved, found["c"])


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_loaded_model_lies_at_boundaries(family: str, tmp_path: Path) -> None:
    tiny.model(family, dtype=torch.float32).save(tmp_path / "a")
    tensors = load_file(tmp_path / "a" / "model.safetensors")
    save_file({f"{name}": x for name, x in tensors.items()}, tmp_path / "a" / "model.safetensors", {"x": "y"})
    for parameter in qkv.load(tmp_path / "a").net.parameters():
        assert parameter.data_ptr() % ALIGNMENT == 0


def test_a_dtype_that_has_no_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SafetensorError, match=r"a is torch\.complex128"):
        write_safetensors(tmp_path / "a", {"a": torch.ones(2, dtype=torch.complex128)})
    assert not (tmp_path / "a").exists()


def test_others_may_read_it(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write_safetensors(tmp_path / "a", {"a": torch.ones(2)})
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "a")]
    assert modes[0] == modes[1]
