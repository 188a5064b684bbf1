"""Weight files whose content is far larger than the file are refused before it is allocated."""

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from qkv.weights.tensors import read_tensors
from tests.support.errors import assert_error
from tests.support.limits import get_error_message

ELEMENTS = 2**31  # 8 GiB of float32


def write_zip(path: Path, source: Path, changed: dict[str, bytes], compression: int) -> None:
    """Write a zip file with the members of another, some of them changed."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w", compression) as new:
        for name in old.namelist():
            new.writestr(name, changed.get(name.rpartition("/")[2], old.read(name)))


@pytest.mark.parametrize(
    "expand",
    [
        lambda: torch.zeros(1).expand(ELEMENTS),
        lambda: torch.zeros(30_000).expand(2**16, 30_000),
        lambda: torch.zeros(2**14).as_strided((2**13, 2**13), (1, 1)),  # overlapping rows
    ],
)
def test_an_expanded_tensor_is_refused(tmp_path: Path, expand: Callable[[], Tensor]) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save({"weight": expand()}, path)
    assert path.stat().st_size < 200_000
    message = get_error_message(lambda: read_tensors(tmp_path))
    assert "bytes of tensors in a file of" in message
    assert str(path) in message


def test_views_of_one_storage_are_counted_together(tmp_path: Path) -> None:
    storage = torch.zeros(2**20)
    torch.save({f"tensor{i}": storage.view(-1) for i in range(1000)}, tmp_path / "a.bin")
    get_error_message(lambda: read_tensors(tmp_path / "a.bin"))


def test_a_small_expanded_tensor_is_read(tmp_path: Path) -> None:
    torch.save({"mask": torch.ones(1).expand(4, 512)}, tmp_path / "a.bin")
    assert read_tensors(tmp_path / "a.bin")["mask"].sum() == 4 * 512


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "make_tensor"),
    [
        ("meta", lambda: torch.zeros(3, device="meta")),
        ("sparse", lambda: torch.eye(3).to_sparse()),
        ("sparse", lambda: torch.eye(3).to_sparse_csr()),
        ("nested", lambda: torch.nested.nested_tensor([torch.zeros(3), torch.zeros(2)])),
        ("quantized", lambda: torch.quantize_per_tensor(torch.zeros(3), 1.0, 0, torch.qint8)),
    ],
)
def test_a_tensor_that_is_not_dense_is_an_error(
    tmp_path: Path, kind: str, make_tensor: Callable[[], Tensor]
) -> None:
    torch.save({"a": torch.ones(1), "b.weight": make_tensor()}, tmp_path / "a.bin")
    assert_error(lambda: read_tensors(tmp_path / "a.bin"), "b.weight is", kind, "dense tensor")


def test_a_compressed_torch_file_is_refused(tmp_path: Path) -> None:
    # A memory-mapped file would read the compressed bytes as numbers.
    torch.save({"a": torch.ones(1000)}, tmp_path / "plain.bin")
    write_zip(tmp_path / "a.bin", tmp_path / "plain.bin", {}, zipfile.ZIP_DEFLATED)
    assert_error(lambda: read_tensors(tmp_path / "a.bin"), "is compressed")


def test_a_pickle_of_shared_tuples_is_refused(tmp_path: Path) -> None:
    # {0: (), 1: t1, 2: t2, ..., t40: 1} where each t has its predecessor twice: 2^40 hashes
    pickle = b"\x80\x02}(K\x00)q\x00"
    for i in range(40):
        pickle += b"K%ch%ch%c\x86q%c" % (i + 1, i, i, i + 1)
    pickle += b"h%cK\x01u." % 40
    torch.save({"a": torch.ones(1)}, tmp_path / "plain.bin")
    write_zip(tmp_path / "a.bin", tmp_path / "plain.bin", {"data.pkl": pickle}, zipfile.ZIP_STORED)
    assert "objects in objects" in get_error_message(lambda: read_tensors(tmp_path / "a.bin"))


def test_a_compressed_npz_file_is_limited(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    header = {"descr": "<f4", "fortran_order": False, "shape": (2**26,)}
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("weight.npy", "w") as member,
    ):
        np.lib.format.write_array_header_1_0(member, header)
        for _ in range(2**8):
            member.write(bytes(2**20))
    assert path.stat().st_size < 300_000
    message = get_error_message(lambda: read_tensors(path))
    assert "bytes of unpacked data in a file of" in message
    np.savez_compressed(path, zeros=np.zeros(2**20, np.float32), ones=np.ones(3))
    assert read_tensors(path)["zeros"].shape == (2**20,)
