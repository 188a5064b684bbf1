"""Inputs of commands: texts as arguments, in files or on standard input. Does not depend on tasks."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cyclopts import Parameter

RECORD_SUFFIXES = tuple(
    ".jsonl .ndjson .json .csv .tsv .conll .parquet".split()
)  # files with columns
COMPRESSION_SUFFIXES = tuple(".gz .xz .bz2".split())
FILE_SUFFIXES = (*RECORD_SUFFIXES, *COMPRESSION_SUFFIXES, ".txt", ".md", ".zip")
MAX_FILE_NAME_WORDS = 8  # an argument with more words is a text, even if it ends with a suffix


def has_piped_input() -> bool:
    """Return whether standard input is a pipe or a file."""
    return sys.stdin is not None and not sys.stdin.isatty()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """Options for reading texts from files.

    Parameters
    ----------
    column
        column of the texts in a .csv, .tsv, .json, .jsonl or .parquet file; default: text, or the
        only text column
    """

    column: str | None = None

    def read_texts(self, arguments: Sequence[str]) -> list[str]:
        """Return the texts of arguments: each is a text, or a file with one per line or record."""
        if not arguments and not has_piped_input():
            raise ValueError(
                "no text; expected a text, a file with one text per line, or - for standard input"
            )
        self.check_column(arguments)
        texts: list[str] = []
        for argument in arguments or ["-"]:
            if not is_text_file(argument):
                texts.append(argument)
            elif has_records(argument):
                texts += self.read_records(argument)
            else:
                texts += check_texts(read_lines_with_places(argument))
        return texts

    def read_documents(self, arguments: Sequence[str]) -> list[str]:
        """Return the texts of arguments: each is a text, a file, or a file with one per record."""
        self.check_column(arguments)
        texts: list[str] = []
        for argument in arguments or ["-"]:
            if is_text_file(argument) and has_records(argument):
                texts += self.read_records(argument)
            else:
                texts.append(read_text_argument(argument))
        return texts

    def check_column(self, arguments: Sequence[str]) -> None:
        """Raise ValueError if there is a column and no file that has columns."""
        if self.column is not None and not any(map(has_records, arguments)):
            raise ValueError(
                f"--column {self.column}: expected a file with columns, {' '.join(RECORD_SUFFIXES)}"
            )

    def read_records(self, path: str) -> list[str]:
        return check_texts(read_text_column(path, self.column))


DEFAULT_FILE = FileOptions()


def has_records(argument: str) -> bool:
    """Return whether an argument has the suffix of a file with columns."""
    return strip_compression_suffix(argument).endswith(RECORD_SUFFIXES)


def check_texts(located_texts: Iterator[tuple[str, str]]) -> list[str]:
    """Return texts by their locations; an empty one is an error."""
    texts = []
    for location, text in located_texts:
        if not text.strip():
            raise ValueError(f"{location}: empty, expected a text; remove it")
        texts.append(text)
    return texts


def read_lines_with_places(path: str) -> Iterator[tuple[str, str]]:
    """Yield (location, line) for the lines of a file."""
    from qkv.data.read.lines import TextFile

    file = TextFile(path)
    return ((file.location(line_number), line) for line_number, line in file.iter_lines())


def read_text_column(path: str, column: str | None = None) -> Iterator[tuple[str, str]]:
    """Yield (location, text) of the records of a file; None: `text`, or the only text column."""
    from qkv.data.read.corpus import Corpus
    from qkv.data.read.record import quote_names

    for record in Corpus(path):
        if column is None:
            text_columns = [name for name, value in record.items() if isinstance(value, str)]
            if "text" not in record and len(text_columns) != 1:
                raise ValueError(
                    f"{record.location}: the columns are {quote_names(record)}; expected one named"
                    " 'text', or a single text column; set --column"
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
            " pass a text that ends with a file suffix on standard input"
        )
    return False
