"""Inputs of commands: texts as arguments, in files or on standard input. Does not depend on tasks."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import Parameter

if TYPE_CHECKING:
    from qkv.data.read.corpus import Corpus
    from qkv.data.read.record import Record

RECORD_SUFFIXES = tuple(
    ".jsonl .ndjson .json .csv .tsv .conll .parquet".split()
)  # files with columns
COMPRESSION_SUFFIXES = tuple(".gz .xz .bz2".split())
FILE_SUFFIXES = (*RECORD_SUFFIXES, *COMPRESSION_SUFFIXES, ".txt", ".md", ".zip")
MAX_LINES = 5_000_000  # that one command reads into memory
MAX_FILE_NAME_WORDS = 8  # an argument with more words is a text, even if it ends with a suffix


def is_image_argument(argument: str) -> bool:
    """Return whether an argument is an image file or a folder, which may have images."""
    from qkv.data.read.image_folder import is_image_name

    return (is_image_name(Path(argument)) and os.path.isfile(argument)) or os.path.isdir(argument)


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
        only text column; with it, standard input is CSV, TSV, JSON or JSON lines
    """

    column: str | None = None

    def read_texts(self, arguments: Sequence[str]) -> list[str]:
        """Return the texts of arguments: each is a text, or a file with one per line or record.

        Blank lines and records are returned as well; a blank argument is an error."""
        if not arguments and not has_piped_input():
            raise ValueError(
                "no text; expected a text, a file with one text per line, or - for standard input"
            )
        self.check_column(arguments)
        texts: list[str] = []
        for argument in arguments or ["-"]:
            if not is_text_file(argument):
                texts.append(check_argument(argument))
            elif self.has_columns(argument):
                texts += read_text_column(argument, self.column)
            else:
                texts += read_lines(argument)
        return texts

    def read_documents(self, arguments: Sequence[str]) -> list[str]:
        """Return the texts of arguments: each is a text, a file, or a file with one per record."""
        self.check_column(arguments)
        texts: list[str] = []
        for argument in arguments or ["-"]:
            if is_text_file(argument) and self.has_columns(argument):
                texts += read_text_column(argument, self.column)
            else:
                texts.append(read_text_argument(argument))
        return texts

    def read_questions(self, question: str, context: str | None) -> list[tuple[str, str]]:
        """Return questions with their contexts: one question, or a file with one per line or record.

        Without a context, it is the column `context` of the records."""
        self.check_column([question])
        context_text = None if context is None else check_argument(read_text_argument(context))
        if is_text_file(question) and self.has_columns(question):
            column = self.column or "question"
            return [
                (
                    get_record_text(record, column),
                    get_record_text(record, "context") if context_text is None else context_text,
                )
                for record in open_records(question)
            ]
        if context_text is None:
            raise ValueError(
                "--context is missing; expected a file or a text; only a file of questions with"
                f" columns ({' '.join(RECORD_SUFFIXES)}) has contexts of its own"
            )
        questions = read_lines(question) if is_text_file(question) else [check_argument(question)]
        return [(text, context_text) for text in questions]

    def check_column(self, arguments: Sequence[str]) -> None:
        """Raise ValueError if there is a column and no file that has columns."""
        if self.column is not None and not any(map(self.has_columns, arguments or ["-"])):
            raise ValueError(
                f"--column {self.column}: expected a file with columns, {' '.join(RECORD_SUFFIXES)}"
            )

    def has_columns(self, argument: str) -> bool:
        """Return whether an argument is a file with columns, by its suffix or the option `column`."""
        return has_records(argument) or (argument == "-" and self.column is not None)


DEFAULT_FILE = FileOptions()


def has_records(argument: str) -> bool:
    """Return whether an argument has the suffix of a file with columns."""
    return strip_compression_suffix(argument).endswith(RECORD_SUFFIXES)


def check_argument(text: str) -> str:
    """Return the text of an argument; a blank one is an error."""
    if not text.strip():
        problem = "only whitespace" if text else "empty"
        raise ValueError(f"text is {problem}, expected a text")
    return text


def read_lines(path: str) -> list[str]:
    """Return the lines of a file."""
    from qkv.data.read.lines import TextFile

    file = TextFile(path)
    lines = [line for _, line in islice(file.iter_lines(), MAX_LINES + 1)]
    if len(lines) > MAX_LINES:
        raise ValueError(f"{file}: more than {MAX_LINES:,} lines; expected fewer: split the file")
    return lines


def open_records(path: str) -> Corpus:
    """Return the records of a file with columns; the format of standard input is guessed."""
    from qkv.data.read.corpus import Corpus

    return Corpus(path, format=guess_stdin_format() if path == "-" else None)


def guess_stdin_format() -> str:
    """Return the format of a table on standard input, by its first bytes."""
    buffer: Any = sys.stdin.buffer
    first_line = buffer.peek(4096).lstrip().partition(b"\n")[0]
    formats = {b"{": "jsonl", b"[": "json"}
    return formats.get(first_line[:1], "tsv" if b"\t" in first_line else "csv")


def read_text_column(path: str, column: str | None = None) -> Iterator[str]:
    """Yield the texts of the records of a file; None: `text`, or the only text column."""
    from qkv.data.read.record import quote_names

    for record in open_records(path):
        if column is None:
            text_columns = [name for name, value in record.items() if isinstance(value, str)]
            if "text" not in record and len(text_columns) != 1:
                raise ValueError(
                    f"{record.location}: the columns are {quote_names(record)}; expected one named"
                    " 'text', or a single text column; set --column"
                )
            column = "text" if "text" in record else text_columns[0]
        yield get_record_text(record, column)


def get_record_text(record: Record, column: str) -> str:
    """Return the text of a column; a missing value (null) is an empty text."""
    return "" if column in record and record[column] is None else record.get_text(column)


def strip_compression_suffix(file_name: str) -> str:
    """Return a file name in lowercase, without the suffix of a compression format."""
    stem, suffix = os.path.splitext(file_name)
    return (stem if suffix in COMPRESSION_SUFFIXES else file_name).lower()


def read_text_argument(argument: str) -> str:
    """Return a text, or the content of a file as one text."""
    from qkv.data.read.lines import TextFile

    if argument == "-" and not has_piped_input():
        raise ValueError("no text; expected a text or a file")
    if is_text_file(argument):
        return TextFile(argument).read_text().removesuffix("\n")
    return check_argument(argument)


def is_file_or_pipe(argument: str) -> bool:
    """Return whether an argument is the path of a file, or of a pipe such as <(command) of a shell.

    Raise ValueError for a device, which may have no end."""
    try:
        mode = os.stat(argument).st_mode
    except (OSError, ValueError):  # too long for a path, or with NUL
        return False
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise ValueError(f"{argument}: a device; expected a text, or a file with texts")
    return stat.S_ISREG(mode) or stat.S_ISFIFO(mode)


def is_text_file(argument: str) -> bool:
    """Return whether an argument is a file instead of a text.

    Raise ValueError for a folder, and for a file name whose file does not exist."""
    if argument == "-" or is_file_or_pipe(argument):
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
