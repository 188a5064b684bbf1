"""Vector files as programs write them, and damaged ones."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from qkv.words import WordVectors, load
from qkv.words.write import write_vectors
from tests.support.errors import assert_error

Write = Callable[..., Path]
TEXT = b"2 3\nthe 0.5 -1 2e-3\ncat 1 2 3\n"
ROWS: list[list[float]] = [[0.5, -1, 2e-3], [1, 2, 3]]


def pack(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_bytes(content: bytes, name: str = "vectors.txt") -> Path:
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    return write_bytes


def check(vectors: WordVectors, words: list[str], rows: list[list[float]]) -> None:
    assert vectors.words == words
    assert torch.equal(vectors.vectors, torch.tensor(rows))


@pytest.mark.parametrize(
    "content",
    [
        TEXT,
        TEXT.rstrip(b"\n"),
        b"\xef\xbb\xbf" + TEXT,
        TEXT.replace(b"\n", b" \n").replace(b"3 \n", b"3\n", 1),  # word2vec: a space ends the line
        TEXT.replace(b"\n", b"\r\n"),
        TEXT.replace(b" ", b"\t"),
        TEXT.replace(b"the ", b"the  "),
        TEXT + b"\n",
        TEXT.partition(b"\n")[2],  # GloVe
        gzip.compress(TEXT, mtime=0),
    ],
    ids="plain no-end bom trailing-space crlf tabs two-spaces blank-end glove gzip".split(),
)
def test_text_files(content: bytes, write: Write) -> None:
    name = "vectors.txt.gz" if content[:2] == b"\x1f\x8b" else "vectors.txt"
    check(load(write(content, name)), ["the", "cat"], ROWS)


BINARY = b"the " + pack(*ROWS[0]) + b"\n" + b"cat " + pack(*ROWS[1]) + b"\n"


@pytest.mark.parametrize("name", ["vectors.bin", "vectors", "vectors.bin.gz"])
@pytest.mark.parametrize("newline", [True, False])
def test_binary_files_with_and_without_newlines(name: str, newline: bool, write: Write) -> None:
    content = b"2 3\n" + (
        BINARY if newline else b"the " + pack(*ROWS[0]) + b"cat " + pack(*ROWS[1])
    )
    check(
        load(write(gzip.compress(content, mtime=0) if name.endswith("gz") else content, name)),
        ["the", "cat"],
        ROWS,
    )


def test_a_binary_file_that_looks_like_text(write: Write) -> None:
    """Four printable bytes are a number too; the name or the format says that it is binary."""
    content = b"1 2\nword " + b"abcdefgh"
    expected = [list(struct.unpack("<2f", b"abcdefgh"))]
    check(load(write(content, "x.bin")), ["word"], expected)
    check(load(write(content, "x"), format="word2vec-binary"), ["word"], expected)


def test_a_space_in_a_binary_vector(write: Write) -> None:
    number = struct.unpack("<f", b"\x20\x20\x0a\x20")[0]
    content = b"2 2\nthe " + pack(number, number) + b"\ncat " + pack(number, 1)
    check(load(write(content, "x.bin")), ["the", "cat"], [[number, number], [number, 1]])


def test_many_binary_rows(write: Write) -> None:
    """More than one read of the buffer and more than one growth of the array."""
    torch.manual_seed(0)
    rows = torch.randn(5000, 300)
    content = b"5000 300\n" + b"".join(
        f"word{i} ".encode() + pack(*row) for i, row in enumerate(rows.tolist())
    )
    vectors = load(write(content, "x.bin"))
    assert torch.equal(vectors.vectors, rows)
    assert vectors.words[4999] == "word4999"
    first = load(write(content, "x.bin"), limit=1700)
    assert torch.equal(first.vectors, rows[:1700])


def test_words_with_spaces_and_digits(write: Write) -> None:
    """As in GloVe's 840B file: `. . .` is a word; so is 0.5, but not a second one before the numbers."""
    content = b"a 1 2 3\n. . . 4 5 6\n0.5 7 8 9\nat name@domain.com 1 1 1\n</s> 0 0 0\n"
    words = ["a", ". . .", "0.5", "at name@domain.com", "</s>"]
    rows: list[list[float]] = [[1.0, 2, 3], [4, 5, 6], [7, 8, 9], [1, 1, 1], [0, 0, 0]]
    check(load(write(content)), words, rows)
    check(load(write(b"5 3\n" + content)), words, rows)


@pytest.mark.parametrize("word", ["area 51", "my nan", "to infinity", "one 1_000", "3 1 2"])
@pytest.mark.parametrize("format", ["word2vec", "glove"])
def test_words_with_numbers_are_read_as_they_are_written(
    word: str, format: str, tmp_path: Path
) -> None:
    words = ["the", word, "cat"]
    vectors = torch.randn(3, 4)
    vectors[1, 0] = 1
    write_vectors(tmp_path / "vectors.txt", words, vectors, format=format)
    check(load(tmp_path / "vectors.txt"), words, vectors.tolist())


def test_unicode_spaces_are_part_of_words(write: Write) -> None:
    check(
        load(write("a\u00a0b 1 2\n\u3000 3 4\n".encode())), ["a\u00a0b", "\u3000"], [[1, 2], [3, 4]]
    )


def test_bytes_that_are_not_utf8(write: Write) -> None:
    content = b"caf\xe9 1 2\nok 3 4\n\xff 5 6\n\xfe 7 8\n"
    with pytest.warns(UserWarning, match="3 words are not UTF-8.*1 of them"):
        vectors = load(write(content))
    check(vectors, ["caf�", "ok", "�"], [[1, 2], [3, 4], [5, 6]])
    check(load(write("� 1 2\n".encode())), ["�"], [[1, 2]])  # the character itself


def test_limit(write: Write) -> None:
    check(load(write(TEXT), limit=1), ["the"], ROWS[:1])
    check(load(write(b"2 3\n" + BINARY, "x.bin"), limit=1), ["the"], ROWS[:1])
    assert_error(lambda: load(write(TEXT), limit=0), "limit")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"3 3\n" + TEXT[4:], ["promises 3 vectors", "has 2"]),
        (b"1 3\n" + TEXT[4:], ["promises 1 vectors", "has 2"]),
        (b"2 4\n" + TEXT[4:], ["line 2", "3 numbers", "'the'", "expected 4"]),
        (b"2 3\nthe 1 2 3\ncat 1 2\n", ["line 3", "2 numbers", "'cat'", "expected 3"]),
        (b"2 3\nthe 1 2 3\ncat 1.5 2.5 3.5 4.5\n", ["line 3", "4 numbers", "expected 3"]),
        (b"a 1 2\nb 1 2\nc 1\n", ["line 3", "1 numbers", "expected 2"]),
        (b"2 3\nthe 1 2 3\ncat 1 2 3 4\n", ["line 3", "4 numbers", "'cat'", "3, as the header says"]),
        (b"2 3\nthe 0.1 0.2 0.3\ncat 0.1 0.2 0.3 0.4\n", ["line 3", "4 numbers", "expected 3"]),
        (b"4 3\na 1 2 3\nb 4 5 6\nc 7 8 9 10\nd 1 2 3\n", ["line 4", "4 numbers", "expected 3"]),
        (b"3 2\nthe 1 0 1\ncat 0 1 1\ndog 1 1 0\n", ["line 2", "3 numbers", "2, as the header says"]),
        (b"-1 3\nthe 1 2 3\n", ["line 2", "3 numbers", "another line has; is line 1 meant as a header?"]),
        (b"9" * 23 + b" 3\nthe 1 2 3\n", ["line 2", "'the'", "is line 1 meant as a header?"]),
        (b"3.0 3\nthe 1 2 3\ncat 1 2 3\n", ["line 1", "'3.0'", "most lines have", "a header?"]),
        (b"a 1 2\nb 1 nan\n", ["line 2", "'b'", "NaN or infinite"]),
        (b"a 1 2\nb 1 -inf\n", ["line 2", "'b'", "NaN or infinite"]),
        (b"a 1 2\nb 1 1e99\n", ["line 2", "'b'", "NaN or infinite"]),
        (b"a 1 2\nb 1 x\n", ["line 2", "'b'", "no number"]),
        (b"a 1 2\nb 1 2\na 3 4\n", ["line 3", "'a'", "duplicate of row 1"]),
        (b"just words here\n", ["no number"]),
        (b"one\n", ["expected a word and"]),
        (b"0 3\n", ["0 vectors"]),
        (b"3 0\n", ["of 0 numbers"]),
        (b"", ["empty"]),
        (b"\n\n", ["no vectors"]),
        (b"PK\x03\x04zip", ["unzip"]),
        (b"\x80\x04\x95pickle", ["pickle", "save_word2vec_format"]),
        (b"\xba\x16\x4f\x2f\x0c", ["fastText", ".vec"]),
        (gzip.compress(TEXT, mtime=0), [".gz"]),
    ],
)  # fmt: skip
def test_damaged_text_files(content: bytes, words: list[str], write: Write) -> None:
    assert_error(lambda: load(write(content)), "vectors.txt", *words)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"2 3\n" + BINARY[:-3], ["promises 2 vectors", "ends in number 2"]),
        (b"3 3\n" + BINARY + b"x" * 9, ["promises 3 vectors", "ends in number 3"]),
        (b"1 3\n" + BINARY, ["data after the 1 vectors"]),
        (b"2 3\nthe " + pack(1, float("nan"), 2) + b"cat " + pack(1, 2, 3), ["'the'", "NaN"]),
        (b"2 3\nthe " + pack(1, 1, 2) + b"the " + pack(1, 2, 3), ["vector 2", "duplicate of row 1"]),
        (b"the " + pack(1, 2, 3), ["header"]),
    ],
)  # fmt: skip
def test_damaged_binary_files(content: bytes, words: list[str], write: Write) -> None:
    assert_error(lambda: load(write(content, "x.bin"), format="word2vec-binary"), "x.bin", *words)


@pytest.mark.parametrize(
    "header", [b"1000000000000 300\n", b"1 1000000000000\n", b"999999999 99999\n"]
)
@pytest.mark.parametrize("name", ["x.bin", "x.bin.gz", "x.txt", "x.txt.gz"])
def test_a_header_that_promises_too_much_allocates_nothing(
    header: bytes, name: str, write: Write
) -> None:
    content = header + (b"the " + pack(1, 2, 3) if ".bin" in name else b"the 1 2 3\n")
    path = write(gzip.compress(content, mtime=0) if name.endswith(".gz") else content, name)
    tracemalloc.start()
    try:
        assert_error(lambda: load(path), name)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20 * 2**20


def test_truncated_gzip(write: Write) -> None:
    content = gzip.compress(TEXT * 100, mtime=0)
    assert_error(lambda: load(write(content[:-20], "x.txt.gz")), "x.txt.gz", "truncated")
    assert_error(lambda: load(write(b"2 3\n", "x.txt.gz")), "x.txt.gz", "damaged")


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    assert_error(lambda: load(tmp_path), "folder")
    assert_error(lambda: load(tmp_path / "no.txt"), "No such file")
    assert_error(lambda: load(tmp_path / "no.txt", format="x"), "expected one of word2vec")
