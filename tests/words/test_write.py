"""Vector files that are written are read again, by gensim too."""

from __future__ import annotations

import gzip
import struct
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.words import WordVectors, load
from tests.support.errors import assert_error

CASES = [
    ("x.bin", None),
    ("x.txt", None),
    ("x.vec", "word2vec"),
    ("x", "word2vec-binary"),
    ("x.txt", "glove"),
    ("x.bin.gz", None),
    ("x.txt.gz", "glove"),
]


@pytest.mark.parametrize(("name", "format"), CASES)
def test_a_file_has_the_same_vectors(
    name: str, format: str | None, vectors: WordVectors, tmp_path: Path
) -> None:
    vectors.vectors[0, :3] = torch.tensor([1e-30, -3.4e38, 0.1])
    vectors.save(tmp_path / name, format=format)
    read = load(tmp_path / name)
    assert read.words == vectors.words
    assert torch.equal(read.vectors, vectors.vectors)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_the_bytes_of_the_formats(tmp_path: Path) -> None:
    vectors = WordVectors(["a", "é"], torch.tensor([[0.1, -2], [1e-9, 3]]))
    rows = struct.pack("<2f", 0.1, -2), struct.pack("<2f", 1e-9, 3)
    for name, format, expected in (
        ("x.bin", None, b"2 2\na " + rows[0] + "\né ".encode() + rows[1] + b"\n"),
        ("x.txt", None, "2 2\na 0.1 -2.0\né 1e-09 3.0\n".encode()),
        ("y.txt", "glove", "a 0.1 -2.0\né 1e-09 3.0\n".encode()),
    ):  # fmt: skip
        vectors.save(tmp_path / name, format=format)
        assert (tmp_path / name).read_bytes() == expected
    vectors.save(tmp_path / "x.txt.gz")
    assert (
        gzip.decompress((tmp_path / "x.txt.gz").read_bytes()) == (tmp_path / "x.txt").read_bytes()
    )


def test_what_cannot_be_written(vectors: WordVectors, tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("old")
    for words, format in ((["a\nb"], None), ([""], None), (["a b"], "word2vec-binary")):
        unwritable = WordVectors(words, torch.ones(1, 2))
        assert_error(lambda x=unwritable, f=format: x.save(path, format=f), repr(words[0]))  # type: ignore[misc]
    vectors.vectors[1, 1] = torch.nan
    assert_error(lambda: vectors.save(path), "NaN")
    assert_error(lambda: vectors.save(path, format="x"), "expected one of word2vec")
    assert_error(lambda: vectors.save(tmp_path / "no" / "x.txt"), "does not exist")
    assert_error(lambda: vectors.save(tmp_path / "x.xz"), ".gz")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture
def gensim_vectors() -> Any:
    """The class KeyedVectors of gensim; without gensim, the test is skipped."""
    pytest.importorskip("gensim", reason="gensim is not installed")
    return import_module("gensim.models").KeyedVectors


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # files left open
@pytest.mark.parametrize(("name", "format"), CASES)
def test_gensim_reads_our_files(
    name: str, format: str | None, vectors: WordVectors, gensim_vectors: Any, tmp_path: Path
) -> None:
    path = tmp_path / name
    vectors.save(path, format=format)
    is_binary = ".bin" in name or format == "word2vec-binary"
    read = gensim_vectors.load_word2vec_format(
        str(path), binary=is_binary, no_header=format == "glove"
    )
    assert read.index_to_key == vectors.words
    assert torch.equal(torch.from_numpy(read.vectors), vectors.vectors)


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_files_of_gensim(
    binary: bool, suffix: str, vectors: WordVectors, gensim_vectors: Any, tmp_path: Path
) -> None:
    keyed = gensim_vectors(vectors.vector_size)
    keyed.add_vectors(vectors.words, vectors.vectors.numpy())
    path = tmp_path / f"x{suffix}"
    keyed.save_word2vec_format(str(path), binary=binary)
    read = load(path)
    assert [read[word].tolist() for word in vectors.words] == vectors.vectors.tolist()
    keyed.save_word2vec_format(str(path), binary=binary, write_header=binary)
    assert torch.equal(load(path).vectors, read.vectors)
