"""Inputs of commands: texts as arguments, in files or on standard input. Knows no task."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated

from cyclopts import Parameter, Token

RECORD_SUFFIXES = tuple(
    ".jsonl .ndjson .json .csv .tsv .conll .parquet".split()
)  # files with columns
COMPRESSION_SUFFIXES = tuple(".gz .xz .bz2".split())
FILE_SUFFIXES = (*RECORD_SUFFIXES, *COMPRESSION_SUFFIXES, ".txt", ".md", ".zip")
MAX_FILE_NAME_WORDS = 8  # an argument of more words is a text, even if it ends like a file name


def parse_int(_: object, tokens: Sequence[Token]) -> int:
    """Parse an integer; a fraction is an error instead of being rounded."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"{tokens[0].value!r}, expected a whole number") from None


StrictInt = Annotated[int, Parameter(converter=parse_int)]


def has_piped_input() -> bool:
    """Return whether standard input is a pipe or a file."""
    return sys.stdin is not None and not sys.stdin.isatty()


def read_text_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the texts of arguments: each is a text, or a file with one text per line or record."""
    if not arguments and not has_piped_input():
        raise ValueError(
            "no text; expected a text, a file with one text per line, or - for standard input"
        )
    texts: list[str] = []
    for argument in arguments or ["-"]:
        if not is_text_file(argument):
            texts.append(argument)
            continue
        has_columns = strip_compression_suffix(argument).endswith(RECORD_SUFFIXES)
        read = read_text_column if has_columns else read_lines_with_places
        for location, text in read(argument):
            if not text.strip():
                raise ValueError(f"{location}: empty, expected a text; remove it")
            texts.append(text)
    return texts


def read_lines_with_places(path: str) -> Iterator[tuple[str, str]]:
    """Yield (location, line) for the lines of a file."""
    from qkv.data.read.lines import TextFile

    file = TextFile(path)
    return ((file.location(line_number), line) for line_number, line in file.iter_lines())


def read_text_column(path: str) -> Iterator[tuple[str, str]]:
    """Yield (location, text) of the records of a file: its column `text` or only text column."""
    from qkv.data.read.corpus import Corpus
    from qkv.data.read.record import quote_names

    column = None
    for record in Corpus(path):
        if column is None:
            text_columns = [name for name, value in record.items() if isinstance(value, str)]
            if "text" not in record and len(text_columns) != 1:
                raise ValueError(
                    f"{record.location}: the columns are {quote_names(record)};"
                    " expected one named 'text', or a single text column"
                )
            column = "text" if "text" in record else text_columns[0]
        yield record.location, record.get_text(column)


def strip_compression_suffix(file_name: str) -> str:
    """Return a file name in lowercase, without the suffix of a compression format."""
    stem, suffix = os.path.splitext(file_name)
    return (stem if suffix in COMPRESSION_SUFFIXES else file_name).lower()


def read_text_argument(argument: str) -> str:
    """Return a text, or the content of a file as one text."""
    from qkv.data.read.lines import TextFile

    if argument == "-" and not has_piped_input():
        raise ValueError("no text; expected a text or a file")
    return TextFile(argument).read_text().removesuffix("\n") if is_text_file(argument) else argument


def is_text_file(argument: str) -> bool:
    """Return whether an argument is a file instead of a text.

    Raise ValueError for a folder, and for a file name whose file does not exist."""
    if argument == "-" or os.path.isfile(argument):
        return True
    if os.path.isdir(argument):
        raise ValueError(f"{argument}: a folder; expected a text, or a file with texts")
    looks_like_file = argument.lower().endswith(FILE_SUFFIXES) and "\n" not in argument
    if looks_like_file and len(argument.split()) <= MAX_FILE_NAME_WORDS:
        raise ValueError(
            f"{argument}: no such file; expected a file or a text;"
            " pass a text that ends like a file name on standard input"
        )
    return False
