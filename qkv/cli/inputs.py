"""What commands are given: texts as arguments, in files, or from standard input; numbers. Knows no task."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated

from cyclopts import Parameter, Token

RECORDS = tuple(".jsonl .ndjson .json .csv .tsv .conll .parquet".split())  # endings of files with columns
PACKED = tuple(".gz .xz .bz2".split())
FILES = (*RECORDS, *PACKED, ".txt", ".md", ".zip")
WORDS = 8  # a text that ends as a file's name does and has more of them is no name


def whole(_: object, tokens: Sequence[Token]) -> int:
    """A whole number as it is written, where half of one would be rounded in silence."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"{tokens[0].value!r}, expected a whole number") from None


Whole = Annotated[int, Parameter(converter=whole)]


def piped() -> bool:
    """Is there something to read, other than a person's typing?"""
    return sys.stdin is not None and not sys.stdin.isatty()


def read_texts(given: Sequence[str]) -> list[str]:
    """The texts of arguments: each is one, or names a file that has one a line, or one a record."""
    if not given and not piped():
        raise ValueError("no text; expected one, a file with one a line, or - for standard input")
    found: list[str] = []
    for one in given or ["-"]:
        if not is_file(one):
            found.append(one)
            continue
        for place, text in columns(one) if unpacked(one).endswith(RECORDS) else lines(one):
            if not text.strip():
                raise ValueError(f"{place}: empty, expected a text in each; leave it out")
            found.append(text)
    return found


def lines(path: str) -> Iterator[tuple[str, str]]:
    """The lines of a file, each with its place."""
    from qkv.data.read.lines import File

    file = File(path)
    return ((file.place(number), line) for number, line in file.lines())


def columns(path: str) -> Iterator[tuple[str, str]]:
    """The texts of a file of records, each with its place: its column `text`, or its only column of text."""
    from qkv.data.read.corpus import Corpus
    from qkv.data.read.record import listed

    column = None
    for record in Corpus(path):
        if column is None:
            of_text = [name for name, value in record.items() if isinstance(value, str)]
            if "text" not in record and len(of_text) != 1:
                wanted = "expected one named 'text', or a single one of text; name it so"
                raise ValueError(f"{record.place}: the columns are {listed(record)}; {wanted}")
            column = "text" if "text" in record else of_text[0]
        yield record.place, record.text(column)


def unpacked(name: str) -> str:
    """A file's name in small letters, without a packer's ending."""
    stem, ending = os.path.splitext(name)
    return (stem if ending in PACKED else name).lower()


def read_whole(given: str) -> str:
    """A text, or all of a file as one."""
    from qkv.data.read.lines import File

    if given == "-" and not piped():
        raise ValueError("no text; expected one, or a file")
    return File(given).text().removesuffix("\n") if is_file(given) else given


def is_file(given: str) -> bool:
    """Is it a file, not a text? A folder is a mistake, and so is a name as of a file that is not there."""
    if given == "-" or os.path.isfile(given):
        return True
    if os.path.isdir(given):
        raise ValueError(f"{given}: a folder; expected a text, or a file with texts")
    if given.lower().endswith(FILES) and "\n" not in given and len(given.split()) <= WORDS:
        raise ValueError(f"{given}: no such file; expected one, or a text (one that ends so goes through -)")
    return False
