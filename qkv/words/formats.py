"""The formats of vector files, and how a file shows which one it has.

word2vec         text: a header "V D", then a line of a word and D numbers for each word
word2vec-binary  the same header, then for each word: the word, a space, D float32, perhaps a newline
glove            text without a header"""

from __future__ import annotations

from pathlib import Path

VECTOR_FORMATS = ("word2vec", "word2vec-binary", "glove")
# The first bytes of files that are often taken for vector files, and what to do with them.
FOREIGN_FILES = {
    b"\x1f\x8b": "compressed with gzip; give it the suffix .gz",
    b"\xfd7zXZ\x00": "compressed with xz; give it the suffix .xz",
    b"BZh9": "compressed with bzip2; give it the suffix .bz2",
    b"PK\x03\x04": "a zip file; unzip it",
    b"\xba\x16\x4f\x2f": "a fastText model; use its .vec file",
    b"\x80\x02": "a pickle, which is not read; gensim writes files with save_word2vec_format",
    b"\x80\x03": "a pickle, which is not read; gensim writes files with save_word2vec_format",
    b"\x80\x04": "a pickle, which is not read; gensim writes files with save_word2vec_format",
    b"\x80\x05": "a pickle, which is not read; gensim writes files with save_word2vec_format",
}
BINARY_BYTES = bytes(range(0x09)) + bytes(range(0x0E, 0x20)) + b"\x7f"  # in no text


def check_vector_format(format: str | None) -> None:
    """Raise ValueError unless the format is None or the name of one."""
    if format is not None and format not in VECTOR_FORMATS:
        raise ValueError(f"format {format!r}, expected one of {', '.join(VECTOR_FORMATS)}")


def has_binary_suffix(path: Path) -> bool:
    """Return whether the name of a file, without a suffix of compression, ends with .bin."""
    name = path.with_suffix("") if path.suffix in (".gz", ".xz", ".bz2") else path
    return name.suffix == ".bin"


def parse_header(line: bytes) -> tuple[int, int] | None:
    """Return the number of words and the vector size of a header; None for any other line."""
    fields = line.split()
    if len(fields) != 2 or not all(field.isdigit() and len(field) < 20 for field in fields):
        return None
    return int(fields[0]), int(fields[1])


def detect_format(path: Path, first_line: bytes, following_bytes: bytes) -> str:
    """Return the format of a file with this first line and some of the bytes after it."""
    if parse_header(first_line) is None:
        return "glove"
    is_binary = bool(following_bytes.translate(None, BINARY_BYTES) != following_bytes)
    return "word2vec-binary" if is_binary or has_binary_suffix(path) else "word2vec"
