"""Reading of vector files: word2vec text and binary, GloVe text; compressed or not.

The memory in use is proportional to the data that was read, not to what a header promises."""

from __future__ import annotations

import lzma
import os
import re
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from qkv.data.read.lines import COMPRESSION_OPENERS, TextFile
from qkv.files import DAMAGED_FILE_HINT, get_file_size
from qkv.validate import check_number, shorten_repr
from qkv.words.config import MAX_VECTOR_SIZE
from qkv.words.formats import FOREIGN_FILES, check_vector_format, detect_format, parse_header
from qkv.words.vectors import WordVectors

MAX_ROW_BYTES = 2**24
MAX_WORD_BYTES = 2**16
READ_BYTES = 2**22
LINES_AT_ONCE = 1000
BOM = b"\xef\xbb\xbf"
NUMBER_TEXT = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
VectorArray = NDArray[np.float32]


def load_vectors(
    path: str | os.PathLike[str], *, format: str | None = None, limit: int | None = None
) -> WordVectors:
    """Read a vector file: word2vec, word2vec-binary or glove, by default the format that it seems to
    have; .gz, .xz and .bz2 are decompressed. With `limit`, only the first words are read."""
    check_vector_format(format)
    if limit is not None:
        check_number("limit", limit, integer=True, at_least=1)
    file = Path(path)
    size = get_file_size(file)
    try:
        with TextFile(str(path)).open() as stream:
            reader = VectorReader(file, stream, limit)
            return reader.read(format, None if file.suffix in COMPRESSION_OPENERS else size)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise ValueError(f"{path}: {error}; {DAMAGED_FILE_HINT}") from None


class VectorReader:
    """Reads the rows of one open file, and collects words and vectors."""

    def __init__(self, path: Path, stream: BinaryIO, limit: int | None) -> None:
        self.path = path
        self.stream = stream
        self.limit = limit
        self.words: list[str] = []
        self.row_by_word: dict[bytes, int] = {}
        self.vectors: VectorArray = np.empty((0, 0), np.float32)
        self.num_undecodable = 0
        self.size_source = "the header says"

    def read(self, format: str | None, size: int | None) -> WordVectors:
        """Return the vectors of the file; `size` is that of an uncompressed file in bytes."""
        first_line = self.read_line().removeprefix(BOM)
        for start, description in FOREIGN_FILES.items():
            if first_line.startswith(start):
                raise ValueError(f"{self.path}: not a vector file but {description}")
        peek = getattr(self.stream, "peek", lambda n: b"")
        format = format or detect_format(self.path, first_line, peek(4096)[:4096])
        header = None if format == "glove" else parse_header(first_line)
        if header is None:
            if format != "glove":
                raise ValueError(
                    f"{self.path}, line 1: {shorten_repr(first_line[:80])}, expected a header of two "
                    "whole numbers, the number of words and the vector size; is the format glove?"
                )
            self.read_text_rows(first_line, None)
        else:
            self.check_header(*header, format, size)
            if format == "word2vec":
                self.read_text_rows(b"", header[1])
            else:
                self.read_binary_rows(*header)
            self.check_count(header[0])
        return self.finish()

    def read_line(self) -> bytes:
        line = self.stream.readline(MAX_ROW_BYTES + 1)
        if len(line) > MAX_ROW_BYTES:
            raise ValueError(
                f"{self.path}: a line of more than {MAX_ROW_BYTES} bytes; is this a vector file?"
            )
        return line

    def check_header(self, count: int, vector_size: int, format: str, size: int | None) -> None:
        """Raise ValueError for a header that promises nothing, or more than the file can have."""
        if not count or not 0 < vector_size <= MAX_VECTOR_SIZE:
            raise ValueError(
                f"{self.path}: the header promises {count} vectors of {vector_size} numbers, expected "
                f"at least 1 vector of 1 to {MAX_VECTOR_SIZE} numbers"
            )
        num_bytes = count * (1 + (4 if format == "word2vec-binary" else 2) * vector_size)
        if self.limit is None and size is not None and num_bytes > size:
            raise ValueError(
                f"{self.path}: the header promises {count} vectors of {vector_size} numbers, at least "
                f"{num_bytes} bytes, but the file has {size}; {DAMAGED_FILE_HINT}"
            )

    def check_count(self, count: int) -> None:
        """Raise ValueError unless the file has as many rows as its header says."""
        num_rows = len(self.row_by_word)
        if self.limit is None and num_rows != count:
            raise ValueError(
                f"{self.path}: the header promises {count} vectors, the file has {num_rows}; "
                f"{DAMAGED_FILE_HINT}"
            )

    def is_full(self) -> bool:
        return self.limit is not None and len(self.row_by_word) >= self.limit

    # --- text ---

    def iter_rows(self, first_line: bytes, first_number: int) -> Iterator[tuple[int, bytes]]:
        """Yield the numbers of lines and the lines that are not blank, with spaces for tabs."""
        number = first_number
        line = first_line or self.read_line()
        while line:
            row = line.rstrip(b" \t\r\n").replace(b"\t", b" ")
            if row:
                yield number, row
            line = self.read_line()
            number += 1

    def read_text_rows(self, first_line: bytes, vector_size: int | None) -> None:
        """Read lines of a word and its numbers, up to the end of the file or the limit."""
        rows = self.iter_rows(first_line, 1 if first_line else 2)
        while lines := list(islice(rows, LINES_AT_ONCE)):
            if vector_size is None:
                counts = Counter(row.count(b" ") for _, row in lines)
                (vector_size, count), *_ = counts.most_common()
                is_most = count * 2 > len(lines)
                self.size_source = "most lines have" if is_most else "another line has"
                if all(map(is_number_text, lines[0][1].split())):
                    self.size_source += "; is line 1 meant as a header?"
                if not 0 < vector_size <= MAX_VECTOR_SIZE:
                    raise ValueError(
                        f"{self.path}, line 1: {shorten_repr(lines[0][1][:80])}, expected a word and "
                        "the numbers of its vector; is this a vector file?"
                    )
            splits = [self.split_row(number, row, vector_size) for number, row in lines]
            vectors = parse_numbers([numbers for _, numbers in splits], vector_size)
            for index, ((number, _), (word, numbers)) in enumerate(zip(lines, splits, strict=True)):
                if self.is_full():
                    return
                where = f"{self.path}, line {number}"
                if vectors is None:
                    row_vector = parse_numbers([numbers], vector_size)
                    if row_vector is None:
                        raise ValueError(
                            f"{where}: the vector of {shorten_repr(decode(word))} has something that "
                            f"is no number, expected {vector_size} numbers"
                        )
                    self.add(word, row_vector[0], where)
                else:
                    self.add(word, vectors[index], where)

    def split_row(self, number: int, row: bytes, vector_size: int) -> tuple[bytes, bytes]:
        """Return the word and the numbers of a row. A word may contain spaces, as some of GloVe's do:
        the numbers are the last fields."""
        if row.count(b" ") == vector_size:
            word, _, numbers = row.partition(b" ")
            return word, numbers
        first, *fields = row.split(b" ")
        fields = [field for field in fields if field]
        extra_fields, vector = fields[:-vector_size], fields[-vector_size:]
        # Where the vector has decimals, a whole number before it is a part of the word, as in "area 51".
        is_part = is_decimal if any(map(is_decimal, vector)) else is_number_text
        if len(fields) < vector_size or any(map(is_part, extra_fields)):
            raise ValueError(
                f"{self.path}, line {number}: {len(fields)} numbers after the word "
                f"{shorten_repr(decode(first))}, expected {vector_size}, as {self.size_source}"
            )
        return b" ".join([first, *extra_fields]), b" ".join(vector)

    # --- binary ---

    def read_binary_rows(self, count: int, vector_size: int) -> None:
        """Read `count` words, each followed by a space and its vector; newlines before a word, which
        word2vec writes and gensim does not, are skipped."""
        num_bytes = 4 * vector_size
        buffer = b""
        position = 0
        for number in range(1, count + 1):
            if self.is_full():
                return
            end = buffer.find(b" ", position)
            if end < 0 or len(buffer) < end + 1 + num_bytes:
                buffer = buffer[position:] + self.stream.read(READ_BYTES + num_bytes)
                position = 0
                end = buffer.find(b" ")
                if end >= 0 and len(buffer) < end + 1 + num_bytes:
                    buffer += self.stream.read(end + 1 + num_bytes - len(buffer))
            word = buffer[position:end].lstrip(b"\n")
            if end < 0 or len(buffer) < end + 1 + num_bytes:
                raise ValueError(
                    f"{self.path}: the header promises {count} vectors of {vector_size} numbers, the "
                    f"file ends in number {number}; {DAMAGED_FILE_HINT}"
                )
            where = f"{self.path}, vector {number}"
            if len(word) > MAX_WORD_BYTES:
                raise ValueError(
                    f"{where}: a word of {len(word)} bytes; {DAMAGED_FILE_HINT}, or is its vector size "
                    f"not {vector_size}?"
                )
            self.add(word, np.frombuffer(buffer, "<f4", vector_size, end + 1), where)
            position = end + 1 + num_bytes
        if rest := (buffer[position:] + self.stream.read(64)).strip():
            raise ValueError(
                f"{self.path}: data after the {count} vectors that the header promises, beginning with "
                f"{shorten_repr(rest[:20])}; {DAMAGED_FILE_HINT}"
            )

    # --- rows ---

    def add(self, word: bytes, vector: VectorArray, where: str) -> None:
        """Add a row; raise ValueError for a word that occurs twice and for NaN or infinite numbers."""
        text = decode(word)
        if word in self.row_by_word:
            raise ValueError(
                f"{where}: the word {shorten_repr(text)} is a duplicate of row "
                f"{self.row_by_word[word] + 1}, expected different words"
            )
        if not np.isfinite(vector).all():
            raise ValueError(
                f"{where}: the vector of {shorten_repr(text)} has a number that is NaN or infinite, "
                f"expected finite numbers; {DAMAGED_FILE_HINT}"
            )
        row = len(self.row_by_word)
        self.row_by_word[word] = row
        self.num_undecodable += "�" in text and word.decode("utf-8", "ignore") != text
        self.words.append(text)
        if row >= len(self.vectors):  # grows by a half
            num_rows = max(1024, len(self.vectors) * 3 // 2)
            if not row:
                self.vectors = np.empty((num_rows, len(vector)), np.float32)
            else:
                self.vectors.resize((num_rows, len(vector)), refcheck=False)
        self.vectors[row] = vector

    def finish(self) -> WordVectors:
        """Return the rows; of words that differ only in bytes that are not UTF-8, the first stays."""
        if not self.words:
            raise ValueError(f"{self.path}: no vectors, expected at least one")
        self.vectors.resize((len(self.words), self.vectors.shape[1]), refcheck=False)
        vectors = torch.from_numpy(self.vectors)
        if not self.num_undecodable:
            return WordVectors(self.words, vectors)
        first_rows: dict[str, int] = {}
        for row, word in enumerate(self.words):
            first_rows.setdefault(word, row)
        num_dropped = len(self.words) - len(first_rows)
        dropped = f", and {num_dropped} of them are left out as duplicates" if num_dropped else ""
        warnings.warn(
            f"{self.path}: {self.num_undecodable} words are not UTF-8; they have � for such "
            f"bytes{dropped}",
            stacklevel=2,
        )
        return WordVectors(list(first_rows), vectors[list(first_rows.values())])


def decode(word: bytes) -> str:
    """Return a word as text, with � for bytes that are not UTF-8."""
    return word.decode("utf-8", errors="replace")


def is_number_text(field: bytes) -> bool:
    """Return whether a field of a row is a number, rather than a part of a word such as "nan"."""
    return NUMBER_TEXT.fullmatch(field) is not None


def is_decimal(field: bytes) -> bool:
    """Return whether a field is a number with a point or an exponent, as nearly all files have."""
    return is_number_text(field) and not field.lstrip(b"+-").isdigit()


def parse_numbers(rows: list[bytes], vector_size: int) -> VectorArray | None:
    """Return the numbers of rows of text as an array, None if something else is among them."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)  # numpy's, of text that is no number
            numbers = np.fromstring(b" ".join(rows), np.float32, sep=" ")
    except (DeprecationWarning, ValueError):
        return None
    return (
        numbers.reshape(len(rows), vector_size) if numbers.size == len(rows) * vector_size else None
    )
