"""File: a text file as numbered lines, whatever it is packed in. Knows nothing of what the lines mean."""

import bz2
import gzip
import io
import lzma
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import BinaryIO, cast

STDIN = "-"
PACKED: dict[str, Callable[[BinaryIO], object]] = {".xz": lzma.open, ".gz": gzip.open, ".bz2": bz2.open}
LINE_BYTES = 64 * 2**20
FILE_BYTES = 2**30
PIECE = 2**16
DAMAGED = "the file is cut or damaged; copy it again"

# What a file is by its first bytes, where its name does not say so.
MAGIC = {
    b"\xfd7zXZ\x00": "packed with xz; give it the ending .xz",
    b"\x1f\x8b":     "packed with gzip; give it the ending .gz",
    b"BZh":          "packed with bzip2; give it the ending .bz2",
    b"PK\x03\x04":   "a zip file; unpack it",
    b"PAR1":         "a Parquet file; give it the ending .parquet",
    b"\xff\xfe":     "UTF-16 text; convert it with `iconv -f utf-16 -t utf-8`",
    b"\xfe\xff":     "UTF-16 text; convert it with `iconv -f utf-16 -t utf-8`",
}  # fmt: skip


@dataclass(frozen=True)
class File:
    """A file, packed or not, or standard input as `-`."""

    path: str
    encoding: str = "utf-8"

    def place(self, line: int) -> str:
        return f"{self}, line {line}"

    def __str__(self) -> str:
        return "standard input" if self.path == STDIN else self.path

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """The file, unpacked and open for reading."""
        if self.path == STDIN:
            yield sys.stdin.buffer
            return
        unpack = PACKED.get(os.path.splitext(self.path)[1])
        try:
            raw = open(self.path, "rb")  # noqa: SIM115
        except OSError as error:
            raise ValueError(f"{self}: {error.strerror}; expected a file; is the path right?") from None
        with raw:
            # A buffer over the unpacker: its readline is several times faster than the unpacker's own.
            yield io.BufferedReader(cast(io.RawIOBase, unpack(raw)), 2**18) if unpack else raw

    def lines(self) -> Iterator[tuple[int, str]]:
        """Every line with its number, without its end; a byte order mark at the start is left out."""
        with self.opened() as file:
            for number in count(1):
                raw = self._read(file.readline, LINE_BYTES, number)
                if not raw:
                    return
                yield number, self._decode(raw, number).removesuffix("\n").removesuffix("\r")

    def pieces(self, size: int = PIECE) -> Iterator[tuple[int, str]]:
        """The whole text in pieces of about `size` characters, each with the number of its first line.

        Lines end in \\n. There is one space where pieces meet, the end of a line, so that a tokenizer says of
        them what it says of the whole."""
        with self.opened() as file:
            held, length, first = list[str](), 0, 1
            for number in count(1):
                raw = self._read(file.readline, LINE_BYTES, number)
                line = self._decode(raw, number).replace("\r\n", "\n")
                if held and (not raw or (length >= size and not line[:1].isspace() and alone(held[-1]))):
                    yield first, "".join(held)
                    held, length, first = [], 0, number
                if not raw:
                    return
                held.append(line)
                length += len(line)

    def text(self) -> str:
        """The whole text, lines ending in \\n: for what cannot be read line by line."""
        with self.opened() as file:
            return self._decode(self._read(file.read, FILE_BYTES, 1), 1).replace("\r\n", "\n")

    def _read(self, read: Callable[[int], bytes], limit: int, number: int) -> bytes:
        try:
            raw = read(limit + 1)
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            raise ValueError(f"{self.place(number)}: {error}; {DAMAGED}") from None
        if number == 1:
            self._check_start(raw)
        if b"\0" in raw:
            number += raw.count(b"\n", 0, raw.index(b"\0"))
            raise ValueError(f"{self.place(number)}: a NUL byte, expected text; is this a binary file?")
        if len(raw) > limit:
            advice = "is this the right file, or should it be read in smaller units?"
            raise ValueError(f"{self.place(number)}: goes on for more than {limit} bytes; {advice}")
        return raw

    def _check_start(self, raw: bytes) -> None:
        if not raw:
            raise ValueError(f"{self}: empty; expected text; was it written to the end?")
        for start, what in MAGIC.items():
            if raw.startswith(start):
                raise ValueError(f"{self}: not plain text but {what}")

    def _decode(self, raw: bytes, number: int) -> str:
        try:
            text = raw.decode(self.encoding)
        except UnicodeDecodeError as error:
            number += raw.count(b"\n", 0, error.start)
            column = error.start - raw.rfind(b"\n", 0, error.start)
            byte = f"byte 0x{raw[error.start]:02x} in column {column}"
            advice = "is the file cut, or in another encoding, such as latin-1?"
            raise ValueError(f"{self.place(number)}: {byte} is not {self.encoding}; {advice}") from None
        return text.removeprefix("\ufeff") if number == 1 else text


def alone(line: str) -> bool:
    """Whether a line's end is the only space after its last word."""
    return line.removesuffix("\n") == line.rstrip() != ""
