"""TextFile: a text file, compressed or not, as numbered lines. Does not depend on file formats."""

from __future__ import annotations

import bz2
import codecs
import errno
import gzip
import io
import lzma
import os
import select
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, BinaryIO, cast

STDIN = "-"
COMPRESSION_OPENERS: dict[str, Callable[[BinaryIO], object]] = {
    ".xz": lzma.open,
    ".gz": gzip.open,
    ".bz2": bz2.open,
}
MAX_LINE_BYTES = 64 * 2**20
MAX_FILE_BYTES = 2**30
CHUNK_CHARACTERS = 2**16
PART_BYTES = 2**16  # of a long line
MAX_WORD_PARTS = 16  # parts without a space
# A compressed file may hold this many bytes, and beyond them this many for each of its own: text has
# less than 20, and a file of one repeated character more than 1000.
MIN_DECOMPRESSED_BYTES = 4 * 2**20
MAX_COMPRESSION_RATIO = 100
BLOCK_BYTES = 2**20
PIPE_WAIT_SECONDS = 10.0  # for a writer of a pipe
UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
DAMAGED_FILE_ADVICE = "the file is truncated or damaged; copy it again"

UTF16_ADVICE = "UTF-16 text; convert it with `iconv -f utf-16 -t utf-8`"

# File types by their first bytes, for files with another suffix.
MAGIC_BYTES = {
    b"\xfd7zXZ\x00": "compressed with xz; give it the suffix .xz",
    b"\x1f\x8b":     "compressed with gzip; give it the suffix .gz",
    b"BZh":          "compressed with bzip2; give it the suffix .bz2",
    b"PK\x03\x04":   "a zip file; unzip it",
    b"PAR1":         "a Parquet file; give it the suffix .parquet",
    codecs.BOM_UTF16_LE: UTF16_ADVICE,
    codecs.BOM_UTF16_BE: UTF16_ADVICE,
}  # fmt: skip


class Utf16Reader(io.RawIOBase):
    """A stream of UTF-16 bytes as UTF-8."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-16")()
        self._pending = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        while not self._pending:
            raw = self._stream.read(CHUNK_CHARACTERS)
            self._pending = self._decoder.decode(raw, final=not raw).encode()
            if not raw:
                break
        count = min(len(view), len(self._pending))
        view[:count] = self._pending[:count]
        self._pending = self._pending[count:]
        return count


@dataclass(frozen=True)
class TextFile:
    """A file, compressed or not; the path `-` is standard input.

    With the encoding utf-8, a file that begins with the byte order mark of UTF-16 is read as such."""

    path: str
    encoding: str = "utf-8"

    def location(self, line_number: int) -> str:
        """Return the location of a line for error messages."""
        return f"{self}, line {line_number}"

    def __str__(self) -> str:
        return "standard input" if self.path == STDIN else self.path

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Open the file for reading, decompressed."""
        if self.path == STDIN:
            yield sys.stdin.buffer
            return
        decompress = COMPRESSION_OPENERS.get(os.path.splitext(self.path)[1])
        try:
            raw = open(self.path, "rb", opener=open_readable)  # noqa: SIM115
        except OSError as error:
            raise ValueError(
                f"{self}: {error.strerror}; expected a file; is the path right?"
            ) from None
        with raw:
            if decompress is None:
                yield raw
                return
            limited = _LimitedReader(cast(io.RawIOBase, decompress(raw)), raw, str(self))
            # A buffer around the decompressor makes readline several times faster.
            yield io.BufferedReader(limited, 2**18)

    @contextmanager
    def _open_text(self) -> Iterator[BinaryIO]:
        """Open the file for reading as text in its encoding."""
        with self.open() as stream:
            with self._locate_errors(1):
                start = stream.peek(2)[:2] if isinstance(stream, io.BufferedReader) else b""
            is_utf16 = self.encoding == "utf-8" and start in UTF16_MARKS
            yield io.BufferedReader(Utf16Reader(stream)) if is_utf16 else stream

    def iter_lines(self) -> Iterator[tuple[int, str]]:
        """Iterate over line numbers and lines, without line ends and without a byte order mark."""
        with self._open_text() as file:
            for line_number in count(1):
                raw = self._read_bytes(file.readline, MAX_LINE_BYTES, line_number)
                if not raw:
                    return
                yield (
                    line_number,
                    self._decode(raw, line_number).removesuffix("\n").removesuffix("\r"),
                )

    def iter_line_parts(self, max_bytes: int = PART_BYTES) -> Iterator[str]:
        """Iterate over lines; a line of more than `max_bytes` is cut at spaces, so that a file of one
        line, such as text8, can be read."""
        with self._open_text() as file:
            part = b""
            for read_number in count(1):
                raw = self._read_bytes(lambda _: file.readline(max_bytes), max_bytes, read_number)
                part += raw
                end = len(part)
                if len(raw) == max_bytes and not raw.endswith(b"\n"):
                    end = part.rfind(b" ") + 1
                if len(part) - end > MAX_WORD_PARTS * max_bytes:
                    raise ValueError(
                        f"{self}: a word of more than {len(part) - end - 1} bytes; is this text?"
                    )
                if end:
                    yield self._decode(part[:end], read_number).rstrip("\r\n")
                part = part[end:]
                if not raw:
                    return

    def iter_chunks(self) -> Iterator[tuple[int, str]]:
        """Iterate over chunks of about CHUNK_CHARACTERS, each with the number of its first line.

        Lines end with \\n. Chunks are split only where a line end is the only whitespace, so that the
        tokens of the chunks are the tokens of the whole text."""
        with self._open_text() as file:
            lines: list[str] = []
            length = 0
            first_line = 1
            for line_number in count(1):
                raw = self._read_bytes(file.readline, MAX_LINE_BYTES, line_number)
                line = self._decode(raw, line_number).replace("\r\n", "\n")
                is_full = length >= CHUNK_CHARACTERS
                if lines and (
                    not raw
                    or (
                        is_full
                        and not line[:1].isspace()
                        and ends_without_trailing_space(lines[-1])
                    )
                ):
                    yield first_line, "".join(lines)
                    lines = []
                    length = 0
                    first_line = line_number
                if not raw:
                    return
                lines.append(line)
                length += len(line)

    def read_text(self) -> str:
        """Return the whole text, with lines that end with \\n."""

        def read_blocks(max_bytes: int) -> bytes:
            """Read in blocks, because one call would allocate the maximum."""
            blocks = []
            while max_bytes > 0 and (block := file.read(min(max_bytes, BLOCK_BYTES))):
                blocks.append(block)
                max_bytes -= len(block)
            return b"".join(blocks)

        with self._open_text() as file:
            raw = self._read_bytes(read_blocks, MAX_FILE_BYTES, 1)
            return self._decode(raw, 1).replace("\r\n", "\n")

    @contextmanager
    def _locate_errors(self, line_number: int) -> Iterator[None]:
        """Convert errors of reading to a ValueError with the location."""
        try:
            yield
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            raise ValueError(
                f"{self.location(line_number)}: {error}; {DAMAGED_FILE_ADVICE}"
            ) from None
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{self.location(line_number)}: not UTF-16 ({error.reason}), as its byte order mark "
                f"says; {DAMAGED_FILE_ADVICE}"
            ) from None

    def _read_bytes(self, read: Callable[[int], bytes], max_bytes: int, line_number: int) -> bytes:
        with self._locate_errors(line_number):
            raw = read(max_bytes + 1)
        if line_number == 1:
            self._check_magic_bytes(raw)
        if b"\0" in raw:
            line_number += raw.count(b"\n", 0, raw.index(b"\0"))
            raise ValueError(
                f"{self.location(line_number)}: a NUL byte, expected text; is this a binary file?"
            )
        if len(raw) > max_bytes:
            raise ValueError(
                f"{self.location(line_number)}: more than {max_bytes} bytes; "
                "is this the right file, or should it be read in smaller units?"
            )
        return raw

    def _check_magic_bytes(self, raw: bytes) -> None:
        if not raw:
            raise ValueError(f"{self}: empty; expected text; was the file written completely?")
        for start, description in MAGIC_BYTES.items():
            if raw.startswith(start):
                raise ValueError(f"{self}: not plain text but {description}")

    def _decode(self, raw: bytes, line_number: int) -> str:
        try:
            text = raw.decode(self.encoding)
        except UnicodeDecodeError as error:
            line_number += raw.count(b"\n", 0, error.start)
            column = error.start - raw.rfind(b"\n", 0, error.start)
            raise ValueError(
                f"{self.location(line_number)}: byte 0x{raw[error.start]:02x} in column {column} is not "
                f"{self.encoding}; is the file truncated, or in another encoding, such as latin-1?"
            ) from None
        return text.removeprefix("\ufeff") if line_number == 1 else text


class _LimitedReader(io.RawIOBase):
    """Reads a decompressor until it has returned far more bytes than it has read."""

    def __init__(self, decompressor: io.RawIOBase, raw: BinaryIO, name: str) -> None:
        self.decompressor = decompressor
        self.raw = raw
        self.name = name

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.decompressor.tell()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self.decompressor.seek(offset, whence)

    def readinto(self, buffer: Any) -> int:
        size = self.decompressor.readinto(memoryview(buffer)[:BLOCK_BYTES]) or 0
        limit = MIN_DECOMPRESSED_BYTES + MAX_COMPRESSION_RATIO * self.raw.tell()
        if self.tell() > limit:
            raise ValueError(
                f"{self.name}: more than {MAX_COMPRESSION_RATIO} bytes of text for each byte of the "
                "file, expected a text; is the file damaged? If not, decompress it first"
            )
        return size


def open_readable(path: str, flags: int) -> int:
    """Open a file; raise OSError for a folder, a device, and a pipe that nothing writes to.

    `open` alone would wait for a writer of the pipe for ever, and /dev/zero has no end."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode) or stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            raise OSError(errno.EINVAL, "a folder or device")
        if stat.S_ISFIFO(mode) and not select.select([descriptor], [], [], PIPE_WAIT_SECONDS)[0]:
            with suppress(BlockingIOError):  # there is a writer, which has written nothing yet
                os.read(descriptor, 1)
                raise OSError(errno.EPIPE, "a pipe without a writer")
        os.set_blocking(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def ends_without_trailing_space(line: str) -> bool:
    """Return whether the line end is the only whitespace after the last word."""
    return line.removesuffix("\n") == line.rstrip() != ""
