"""Forms: what a file of each kind holds, as a stream of records. Knows no columns but the file's own, and not
where files are found.
"""

import csv
import json
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import groupby, zip_longest
from types import ModuleType
from typing import Any

from qkv.data.read.lines import DAMAGED, LINE_BYTES, File
from qkv.data.read.record import Record, listed, short

PARQUET_ROWS = 1024


def extra(name: str, what: str) -> ModuleType:
    """A package that is not always installed."""
    try:
        return import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise ValueError(f"{what}: reading it takes {package}; run pip install 'qkv[data]'") from None


def lines(file: File) -> Iterator[Record]:
    """A record a line, blank ones too: the n-th record is the n-th line."""
    for number, line in file.lines():
        yield Record({"text": line}, file.place(number))


def documents(file: File) -> Iterator[Record]:
    """A record a run of lines; blank lines stand between them."""
    for block in blocks(file):
        yield Record({"text": "\n".join(line for _, line in block)}, file.place(block[0][0]))


def whole(file: File) -> Iterator[Record]:
    """The file as one text, in pieces that follow each other."""
    for number, text in file.pieces():
        yield Record({"text": text}, file.place(number))


def blocks(file: File) -> Iterator[list[tuple[int, str]]]:
    """Runs of lines that are not blank."""
    for full, run in groupby(file.lines(), key=lambda numbered: bool(numbered[1].strip())):
        if full:
            yield list(run)


def labelled(file: File) -> Iterator[Record]:
    """A label, a space, and a text that may hold more of them."""
    for number, line in file.lines():
        label, space, text = line.partition(" ")
        if not (label and space):
            raise ValueError(f"{file.place(number)}: {short(line)}, expected a label, a space and a text")
        yield Record({"label": label, "text": text}, file.place(number))


def table(file: File, names: Sequence[str], separator: str, quoted: bool) -> Iterator[Record]:
    """Rows of a table; without `names` the first row has them.

    Quoted, as CSV is, "a field" may hold separators and line ends. Otherwise, as TSV is, a quote is a letter.
    """
    rows = _quoted(file, separator) if quoted else ((n, line.split(separator)) for n, line in file.lines())
    for number, row in rows:
        if row in ([], [""]):  # a blank line
            continue
        if not names:
            names = _header(file, number, row)
        elif len(row) != len(names):
            found, expected = f"{len(row)} fields {short(row)}", f"{len(names)} ({listed(names)})"
            advice = "is a separator or a quote missing, or one too many?"
            raise ValueError(f"{file.place(number)}: {found}, expected {expected}; {advice}")
        else:
            yield Record(dict(zip(names, row, strict=True)), file.place(number))


def _header(file: File, number: int, row: list[str]) -> list[str]:
    names = [name.strip() for name in row]
    if len(set(names)) < len(names) or "" in names:
        advice = "has the file no header? then give `names`"
        raise ValueError(f"{file.place(number)}: header {short(row)}, expected different names; {advice}")
    return names


def _quoted(file: File, separator: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(LINE_BYTES)  # of this process; the default refuses long texts
    reader = csv.reader((f"{line}\n" for _, line in file.lines()), delimiter=separator, strict=True)
    start = 1
    try:
        for row in reader:
            yield start, row
            start = reader.line_num + 1
    except csv.Error as error:
        advice = f"is a quote left open? (a {separator!r} file without quoting is form 'tsv')"
        raise ValueError(f"{file.place(start)}: not CSV ({error}); {advice}") from None


def jsonl(file: File) -> Iterator[Record]:
    """A JSON object a line."""
    for number, line in file.lines():
        if line.strip():
            yield _object(_json(line, file.place(number)), file.place(number))


def json_list(file: File) -> Iterator[Record]:
    """A JSON list of objects, read whole; SQuAD's JSON is known by what it holds."""
    value = _json(file.text(), str(file))
    if isinstance(value, dict) and isinstance(value.get("data"), list):
        yield from _squad(value, file)
    elif isinstance(value, list):
        for number, item in enumerate(value, 1):
            yield _object(item, f"{file}, item {number}")
    else:
        expected = "a list of objects, or SQuAD's; is it JSON lines? (.jsonl)"
        raise ValueError(f"{file}: {short(value)}, expected {expected}")


def _json(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"{place}, line {error.lineno}" if "\n" in text else place
        found = f"{error.msg} at {short(text[error.pos : error.pos + 40])}, column {error.colno}"
        raise ValueError(f"{where}: not JSON ({found}); {DAMAGED}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place}: not JSON ({str(error)[:100]}); is this the right file?") from None


def _object(value: object, place: str) -> Record:
    if not isinstance(value, dict):
        raise ValueError(f"{place}: {short(value)}, expected an object {{...}} with a key a column")
    return Record(value, place)


def _squad(value: Any, file: File) -> Iterator[Record]:
    """Questions of SQuAD 1.1 and 2.0; one that cannot be answered has no answers."""
    place = str(file)
    try:
        for n, article in enumerate(value["data"], 1):
            for m, paragraph in enumerate(article["paragraphs"], 1):
                for k, question in enumerate(paragraph["qas"], 1):
                    place = f"{file}, article {n}, paragraph {m}, question {k}"
                    yield Record(_question(question, paragraph["context"]), place)
                place = f"{file}, article {n}, after paragraph {m}"
            place = f"{file}, after article {n}"
    except (KeyError, TypeError, AttributeError) as error:
        expected = "data: [{paragraphs: [{context, qas: [{id, question, answers}]}]}]"
        raise ValueError(f"{place}: not SQuAD ({error!r}); expected {expected}") from None


def _question(question: Any, context: str) -> dict[str, object]:
    answers = [] if question.get("is_impossible") else question.get("answers", [])
    return {
        "id": question["id"],
        "context": context,
        "question": question["question"],
        "answers": [{"text": answer["text"], "start": answer["answer_start"]} for answer in answers],
    }


def parquet(file: File, columns: Sequence[str]) -> Iterator[Record]:
    """Rows of a Parquet file, some at a time; only these columns, if there are any and the file has them."""
    parquet = extra("pyarrow.parquet", str(file))
    number = 0
    with file.opened() as opened:
        try:
            table = parquet.ParquetFile(opened)
            held = set(columns) <= set(table.schema_arrow.names)
            for batch in table.iter_batches(PARQUET_ROWS, columns=columns if columns and held else None):
                for row in batch.to_pylist():
                    number += 1
                    yield Record(row, f"{file}, row {number}")
        except (ValueError, OSError, EOFError) as error:  # pyarrow's are of these kinds
            cause = " ".join(str(error).split())[:200]
            raise ValueError(f"{file}: not Parquet ({cause}); {DAMAGED}") from None


def conll(file: File, names: Sequence[str]) -> Iterator[Record]:
    """Sentences, a word a line and columns beside it, a list a column; a blank line ends a sentence.

    Without `names` the first column is the words and the last the tags.
    """
    for block in blocks(file):
        rows: list[list[str]] = []
        for number, line in block:
            row = line.split("\t") if "\t" in line else line.split()
            width = len(names) or (len(rows[0]) if rows else max(2, len(row)))
            if len(row) != width:
                advice = "is a column or a blank line missing?"
                raise ValueError(f"{file.place(number)}: {short(line)}, expected {width} columns; {advice}")
            rows.append(row)
        if rows[0][0] != "-DOCSTART-":
            columns = list(zip(*rows, strict=True))
            if not names:
                columns = [columns[0], columns[-1]]
            held = zip(names or ("words", "tags"), columns, strict=True)
            yield Record({name: list(column) for name, column in held}, file.place(block[0][0]))


def parallel(files: Sequence[File], names: Sequence[str]) -> Iterator[Record]:
    """Lines of several files side by side, a column a file: the n-th lines are one record."""
    counts = [0] * len(files)
    for numbered in zip_longest(*(file.lines() for file in files)):
        for place, each in enumerate(numbered):
            counts[place] += each is not None
        if counts.count(counts[0]) == len(counts):
            texts = (line for _, line in numbered)
            yield Record(dict(zip(names, texts, strict=True)), files[0].place(counts[0]))
    if counts.count(counts[0]) < len(counts):
        found = ", ".join(f"{file} has {count} lines" for file, count in zip(files, counts, strict=True))
        raise ValueError(f"{found}; expected as many in each, line by line; is one of them cut?")
