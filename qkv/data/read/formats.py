"""File formats: each function reads a file of one format as a stream of records, with the columns of
the file.
"""

import csv
import json
import os
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import groupby, islice, zip_longest
from types import ModuleType
from typing import Any

from qkv.data.read.lines import (
    DAMAGED_FILE_ADVICE,
    MAX_COMPRESSION_RATIO,
    MAX_LINE_BYTES,
    MIN_DECOMPRESSED_BYTES,
    TextFile,
)
from qkv.data.read.record import Record, quote_names
from qkv.files import DuplicateKeyError, merge_equal_keys
from qkv.validate import shorten_repr

PARQUET_BATCH_SIZE = 1024
MAX_BLOCK_LINES = 1_000_000


def import_optional(name: str, needed_for: str) -> ModuleType:
    """Import an optional dependency; raise ValueError if it is not installed."""
    try:
        return import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise ValueError(
            f"{needed_for}: reading it needs {package}; run pip install 'qkv[data]'"
        ) from None


def read_text_lines(file: TextFile) -> Iterator[Record]:
    """Read one record per line, including blank lines: record n is line n."""
    for line_number, line in file.iter_lines():
        yield Record({"text": line}, file.location(line_number))


def read_text_documents(file: TextFile) -> Iterator[Record]:
    """Read documents that are separated by blank lines."""
    for block in read_line_blocks(file):
        yield Record({"text": "\n".join(line for _, line in block)}, file.location(block[0][0]))


def read_text_chunks(file: TextFile) -> Iterator[Record]:
    """Read the file as one text, in consecutive chunks."""
    for line_number, text in file.iter_chunks():
        yield Record({"text": text}, file.location(line_number))


def read_line_blocks(file: TextFile) -> Iterator[list[tuple[int, str]]]:
    """Read blocks of numbered lines that are separated by blank lines."""
    for has_text, block in groupby(
        file.iter_lines(), key=lambda numbered: bool(numbered[1].strip())
    ):
        if has_text:
            lines = list(islice(block, MAX_BLOCK_LINES + 1))
            if len(lines) > MAX_BLOCK_LINES:
                raise ValueError(
                    f"{file.location(lines[0][0])}: more than {MAX_BLOCK_LINES:,} lines without a "
                    "blank line, expected a blank line after each document or sentence; "
                    "is this the right format or unit?"
                )
            yield lines


def read_labeled_lines(file: TextFile) -> Iterator[Record]:
    """Read lines of a label, a space and a text."""
    for line_number, line in file.iter_lines():
        label, space, text = line.partition(" ")
        if not (label and space):
            raise ValueError(
                f"{file.location(line_number)}: {shorten_repr(line)}, expected a label, a space and a text"
            )
        yield Record({"label": label, "text": text}, file.location(line_number))


def read_delimited_table(
    file: TextFile, column_names: Sequence[str], separator: str, has_quotes: bool
) -> Iterator[Record]:
    """Read the rows of a table; without `column_names`, the first row is the header.

    With `has_quotes` (CSV), a quoted field may contain separators and line ends; without it (TSV), a
    quote is an ordinary character.
    """
    if has_quotes:
        rows = _read_csv_rows(file, separator)
    else:
        rows = ((number, line.split(separator)) for number, line in file.iter_lines())
    blank_line: list[str] = [] if has_quotes else [""]  # in CSV, [""] is a quoted empty field
    for line_number, row in rows:
        if row == blank_line:
            continue
        if not column_names:
            column_names = _parse_header(file, line_number, row)
        elif len(row) != len(column_names):
            raise ValueError(
                f"{file.location(line_number)}: {len(row)} fields {shorten_repr(row)}, "
                f"expected {len(column_names)} ({quote_names(column_names)}); "
                "check the separators and quotes of the line"
            )
        else:
            yield Record(dict(zip(column_names, row, strict=True)), file.location(line_number))


def _parse_header(file: TextFile, line_number: int, row: list[str]) -> list[str]:
    # a column without a name is an index that pandas wrote, or follows a comma at the end of lines
    names = [name.strip() or f"column{number}" for number, name in enumerate(row, 1)]
    if len(set(names)) < len(names):
        raise ValueError(
            f"{file.location(line_number)}: header {shorten_repr(row)}, expected different names; "
            "if the file has no header, set `column_names`"
        )
    return names


def _read_csv_rows(file: TextFile, separator: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(MAX_LINE_BYTES)  # a global setting; the default rejects long texts
    lines = (f"{line}\n" for _, line in file.iter_lines())
    reader = csv.reader(lines, delimiter=separator, strict=True)
    first_line = 1
    try:
        for row in reader:
            yield first_line, row
            first_line = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(
            f"{file.location(first_line)}: not CSV ({error}); is a quote not closed? "
            f"(a {separator!r} file without quotes has the format 'tsv')"
        ) from None


def read_jsonl(file: TextFile) -> Iterator[Record]:
    """Read one JSON object per line."""
    for line_number, line in file.iter_lines():
        if line.strip():
            location = file.location(line_number)
            yield _to_record(_parse_json(line, location), location)


def read_json_records(file: TextFile) -> Iterator[Record]:
    """Read a JSON list of objects, or SQuAD's JSON, which is recognized by its content."""
    value = _parse_json(file.read_text(), str(file))
    if isinstance(value, dict) and isinstance(value.get("data"), list):
        yield from _read_squad(value, file)
    elif isinstance(value, list):
        for number, item in enumerate(value, 1):
            yield _to_record(item, f"{file}, item {number}")
    else:
        raise ValueError(
            f"{file}: {shorten_repr(value)}, expected a list of objects, or SQuAD's JSON; "
            "is it JSON lines? (.jsonl)"
        )


def _parse_json(text: str, location: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=merge_equal_keys)
    except DuplicateKeyError as error:
        raise ValueError(f"{location}: {error}; remove one of them") from None
    except json.JSONDecodeError as error:
        where = f"{location}, line {error.lineno}" if "\n" in text else location
        excerpt = shorten_repr(text[error.pos : error.pos + 40])
        raise ValueError(
            f"{where}: not JSON ({error.msg} at {excerpt}, column {error.colno}); {DAMAGED_FILE_ADVICE}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{location}: not JSON ({str(error)[:100]}); is this the right file?"
        ) from None


def _to_record(value: object, location: str) -> Record:
    if not isinstance(value, dict):
        raise ValueError(
            f"{location}: {shorten_repr(value)}, expected an object {{...}} with a key for each column"
        )
    return Record(value, location)


def _read_squad(value: Any, file: TextFile) -> Iterator[Record]:
    """Read the questions of SQuAD 1.1 or 2.0; an unanswerable question has no answers."""
    location = str(file)
    try:
        for n, article in enumerate(value["data"], 1):
            for m, paragraph in enumerate(article["paragraphs"], 1):
                for k, question in enumerate(paragraph["qas"], 1):
                    location = f"{file}, article {n}, paragraph {m}, question {k}"
                    yield Record(_parse_squad_question(question, paragraph["context"]), location)
                location = f"{file}, article {n}, after paragraph {m}"
            location = f"{file}, after article {n}"
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{location}: not SQuAD ({error!r}); "
            "expected data: [{paragraphs: [{context, qas: [{id, question, answers}]}]}]"
        ) from None


def _parse_squad_question(question: Any, context: str) -> dict[str, object]:
    answers = [] if question.get("is_impossible") else question.get("answers", [])
    return {
        "id": question["id"],
        "context": context,
        "question": question["question"],
        "answers": [
            {"text": answer["text"], "start": answer["answer_start"]} for answer in answers
        ],
    }


def read_parquet(file: TextFile, columns: Sequence[str]) -> Iterator[Record]:
    """Read the rows of a Parquet file in batches; only `columns`, if all of them are in the file."""
    parquet = import_optional("pyarrow.parquet", str(file))
    row_number = 0
    with file.open() as stream:
        try:
            table = parquet.ParquetFile(stream)
            groups = [table.metadata.row_group(i) for i in range(table.num_row_groups)]
            num_bytes = sum(group.total_byte_size for group in groups)
            file_size = stream.seek(0, os.SEEK_END)
            if num_bytes > MIN_DECOMPRESSED_BYTES + MAX_COMPRESSION_RATIO * file_size:
                raise ValueError(f"{num_bytes:,} bytes of columns in {file_size:,} bytes")
            has_columns = columns and set(columns) <= set(table.schema_arrow.names)
            for batch in table.iter_batches(
                PARQUET_BATCH_SIZE, columns=columns if has_columns else None
            ):
                for row in batch.to_pylist():
                    row_number += 1
                    yield Record(row, f"{file}, row {row_number}")
        except (ValueError, OSError, EOFError) as error:  # pyarrow's errors derive from these
            cause = " ".join(str(error).split())[:200]
            raise ValueError(f"{file}: not Parquet ({cause}); {DAMAGED_FILE_ADVICE}") from None


def read_conll(file: TextFile, column_names: Sequence[str]) -> Iterator[Record]:
    """Read sentences of one word per line with columns; each column is returned as a list.

    A blank line ends a sentence. Without `column_names`, the first column has the words and the last
    column the tags.
    """
    for block in read_line_blocks(file):
        rows: list[list[str]] = []
        for line_number, line in block:
            row = line.split("\t") if "\t" in line else line.split()
            num_columns = len(column_names) or (len(rows[0]) if rows else max(2, len(row)))
            if len(row) != num_columns:
                raise ValueError(
                    f"{file.location(line_number)}: {shorten_repr(line)}, "
                    f"expected {num_columns} columns; is a column or a blank line missing?"
                )
            rows.append(row)
        if rows[0][0] != "-DOCSTART-":
            columns = list(zip(*rows, strict=True))
            if not column_names:
                columns = [columns[0], columns[-1]]
            named_columns = zip(column_names or ("words", "tags"), columns, strict=True)
            values = {name: list(column) for name, column in named_columns}
            yield Record(values, file.location(block[0][0]))


def read_parallel_files(files: Sequence[TextFile], column_names: Sequence[str]) -> Iterator[Record]:
    """Read several files line by line, one column per file: lines n of all files form a record."""
    counts = [0] * len(files)
    for numbered_lines in zip_longest(*(file.iter_lines() for file in files)):
        for i, numbered_line in enumerate(numbered_lines):
            counts[i] += numbered_line is not None
        if counts.count(counts[0]) == len(counts):
            texts = (line for _, line in numbered_lines)
            yield Record(dict(zip(column_names, texts, strict=True)), files[0].location(counts[0]))
    if counts.count(counts[0]) < len(counts):
        line_counts = ", ".join(
            f"{file} has {num_lines} lines" for file, num_lines in zip(files, counts, strict=True)
        )
        raise ValueError(
            f"{line_counts}; expected the same number of lines; is one of the files truncated?"
        )
