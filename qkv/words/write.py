"""Writing of vector files: word2vec text and binary, GloVe text; compressed if the name ends with .gz."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from torch import Tensor

from qkv.staging import write_file
from qkv.validate import shorten_repr
from qkv.words.formats import check_vector_format, has_binary_suffix

ROWS_AT_ONCE = 1000


def write_vectors(
    path: Path,
    words: Sequence[str],
    vectors: Tensor,
    *,
    format: str | None = None,
    exist_ok: bool = True,
) -> None:
    """Write a vector file in one step; an old file is replaced, or an error with `exist_ok=False`."""
    format = choose_vector_format(path, format)
    check_writable_words(words, format)
    if not vectors.isfinite().all():
        raise ValueError(
            f"{path}: not written, because a vector has a number that is NaN or infinite"
        )
    with write_file(path, exist_ok=exist_ok) as temporary, temporary.open("wb") as raw:
        if path.suffix != ".gz":
            raw.writelines(iter_rows(words, vectors, format))
            return
        with gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=0) as stream:
            cast(BinaryIO, stream).writelines(iter_rows(words, vectors, format))


def choose_vector_format(path: Path, format: str | None = None) -> str:
    """Return the format of a file to write, by default that of its name; raise ValueError for a path
    where no vector file can be written."""
    check_vector_format(format)
    if path.suffix in (".xz", ".bz2"):
        raise ValueError(f"{path}: expected a name that ends with .gz for a compressed file")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: the folder {path.parent} does not exist; create it first")
    return format or ("word2vec-binary" if has_binary_suffix(path) else "word2vec")


def check_writable_words(words: Sequence[str], format: str) -> None:
    """Raise ValueError for a word that a reader of the format could not tell from other parts."""
    separators = " \n" if format == "word2vec-binary" else "\t\r\n"
    for word in words:
        if not word or any(letter in word for letter in separators) or word[0] == " ":
            raise ValueError(
                f"the word {shorten_repr(word)} cannot be written as {format}, where words are separated "
                "by such characters; expected a word without spaces and line ends"
            )


def iter_rows(words: Sequence[str], vectors: Tensor, format: str) -> Iterator[bytes]:
    """Yield the header and the rows of a file."""
    if format != "glove":
        yield f"{len(words)} {vectors.shape[1]}\n".encode()
    for start in range(0, len(words), ROWS_AT_ONCE):
        block = vectors[start : start + ROWS_AT_ONCE].detach().cpu().float().numpy()
        names = [word.encode("utf-8", "replace") for word in words[start : start + ROWS_AT_ONCE]]
        if format == "word2vec-binary":
            rows = [row.tobytes() for row in block.astype("<f4")]
        else:  # the shortest text that is read as the same fp32 number
            rows = [b" ".join(row) for row in block.astype(np.str_).astype(np.bytes_).tolist()]
        yield from (name + b" " + row + b"\n" for name, row in zip(names, rows, strict=True))
