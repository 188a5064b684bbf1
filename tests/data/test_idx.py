"""idx files: the images and labels of MNIST, compressed or not, and files that are none."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from qkv.data.read.corpus import Corpus
from tests.support.corpora import assert_short_error

IMAGES = np.arange(2 * 4 * 3, dtype=np.uint8).reshape(2, 4, 3)
LABELS = np.array([7, 0], np.uint8)


def encode(array: np.ndarray, magic: bytes = b"\0\0\x08") -> bytes:
    header = magic + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Return a function that writes images and labels, and returns the path of the images."""

    def write_files(images: bytes, labels: bytes | None, suffix: str = "") -> str:
        compress = gzip.compress if suffix else bytes
        path = tmp_path / f"train-images-idx3-ubyte{suffix}"
        path.write_bytes(compress(images))
        if labels is not None:
            (tmp_path / f"train-labels-idx1-ubyte{suffix}").write_bytes(compress(labels))
        return str(path)

    return write_files


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_images_and_labels_are_read(write: Callable[..., str], suffix: str) -> None:
    path = write(encode(IMAGES), encode(LABELS), suffix)
    records = list(Corpus(path))
    assert [record["label"] for record in records] == ["7", "0"]
    assert all(
        (record["image"] == image).all() for record, image in zip(records, IMAGES, strict=True)
    )
    assert records[1].location == f"{path}, image 2"
    assert len(list(Corpus(path, format="idx"))) == 2


def test_labels_may_be_compressed_alone(write: Callable[..., str], tmp_path: Path) -> None:
    path = write(encode(IMAGES), None)
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(encode(LABELS)))
    assert len(list(Corpus(path))) == 2


@pytest.mark.parametrize(("images", "labels", "words"), [
    (encode(IMAGES), None, "no~labels train-labels-idx1-ubyte"),
    (encode(IMAGES), encode(LABELS[:1]), "2~images 1~labels same~number"),
    (encode(IMAGES)[:-1], encode(LABELS), "ends~in~item~2 damaged"),
    (encode(IMAGES)[:10], encode(LABELS), "header~is~incomplete"),
    (encode(IMAGES) + b"x", encode(LABELS), "more~bytes"),
    (encode(IMAGES), encode(LABELS) + b"x", "labels more~bytes"),
    (encode(IMAGES), encode(LABELS)[:-1], "labels ends~in~item~2"),
    (encode(IMAGES, b"\0\0\x0d"), encode(LABELS), "begins~with~00~00~0d~03 expected~00~00~08~03"),
    (encode(LABELS), encode(LABELS), "begins~with~00~00~08~01 expected~00~00~08~03"),
    (encode(IMAGES), encode(IMAGES), "labels begins~with expected~00~00~08~01~ 1~axis"),
    (encode(IMAGES[:0]), encode(LABELS[:0]), "empty"),
    (b"\0\0\x08\x03" + struct.pack(">3I", 2, 2**31, 2**31), encode(LABELS), "2147483648"),
    (b"", encode(LABELS), "begins~with~nothing"),
])  # fmt: skip
def test_a_bad_file_is_an_error(
    write: Callable[..., str], images: bytes, labels: bytes | None, words: str
) -> None:
    path = write(images, labels)
    expected = [word.replace("~", " ").strip() for word in words.split()]
    assert_short_error(lambda: list(Corpus(path, format="idx")), *expected)
    assert_short_error(lambda: list(Corpus(path)), *expected)  # by its name, if not by its content


def test_a_damaged_compressed_file_is_an_error(write: Callable[..., str], tmp_path: Path) -> None:
    path = write(encode(IMAGES), encode(LABELS), ".gz")
    Path(path).write_bytes(Path(path).read_bytes()[:-12])
    assert_short_error(lambda: list(Corpus(path, format="idx")), path, "damaged")


def test_a_file_of_labels_alone_is_an_error(write: Callable[..., str], tmp_path: Path) -> None:
    write(encode(IMAGES), encode(LABELS))
    path = tmp_path / "train-labels-idx1-ubyte"
    assert_short_error(lambda: list(Corpus(path)), path, "train-images-idx3-ubyte")
