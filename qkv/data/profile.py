"""Profiles of data files: the columns of texts and labels, lengths, class balance, duplicates.

Does not depend on tokenizers: lengths are counted in words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from qkv.data.read.columns import COLUMN_SYNONYMS, list_usual_names
from qkv.data.read.corpus import Corpus
from qkv.data.read.formats import read_csv_rows
from qkv.data.read.lines import TextFile
from qkv.data.read.record import Record, quote_names

MAX_RECORDS = 200_000  # records that are read for a profile
MIN_RECORDS = 10  # of training data
MAX_HEADER_WORDS = 4  # a longer cell of the first row is a text and not a column name
MAX_LABELS = 500


@dataclass(frozen=True, kw_only=True)
class TextProfile:
    """Number and lengths of texts; a duplicate is a text that occurred before."""

    count: int
    num_empty: int
    num_duplicates: int
    median_words: int
    long_words: int  # 99% of the texts have at most this many words
    max_words: int
    lengths: list[int]  # words of every text, sorted


def profile_texts(texts: Sequence[str]) -> TextProfile:
    """Return the profile of texts."""
    lengths = sorted(len(text.split()) for text in texts)
    count = len(lengths)
    nonempty = [text for text in texts if text.strip()]
    return TextProfile(
        count=count,
        num_empty=count - len(nonempty),
        num_duplicates=len(nonempty) - len({*nonempty}),
        median_words=lengths[count // 2],
        long_words=lengths[min(count - 1, count * 99 // 100)],
        max_words=lengths[-1],
        lengths=lengths,
    )


@dataclass(frozen=True, kw_only=True)
class Table:
    """The records of a file, and their columns by role, such as text and label."""

    records: list[Record]
    columns: dict[str, str]  # role: column
    column_names: tuple[str, ...] = ()  # of a file without a header
    is_complete: bool = True  # whether all records of the file were read

    def get_values(self, role: str) -> list[object]:
        """Return the values of the column of a role."""
        column = self.columns[role]
        return [record.get(column) for record in self.records]

    def get_texts(self, role: str) -> list[str]:
        """Return the texts of the column of a role; a missing value (null) is empty."""
        texts = []
        for record in self.records:
            value = record.get(self.columns[role])
            texts.append("" if value is None else record.get_text(self.columns[role]))
        return texts


def read_table(
    path: str | list[str], roles: Sequence[str], columns: dict[str, str], format: str | None = None
) -> Table:
    """Read a file and find the columns of the roles; `columns` are those that the user gave."""
    column_names: tuple[str, ...] = ()
    first_row = read_first_row(path)
    is_named = first_row is not None and has_usual_names(first_row, roles, columns)
    if first_row is None or is_named or is_header(first_row):
        records = [*islice(Corpus(path, format=format), MAX_RECORDS + 1)]
    if (
        first_row is not None
        and not is_named
        and not (is_header(first_row) and has_header(records))
    ):
        column_names = tuple(f"column{number}" for number in range(1, len(first_row) + 1))
        corpus = Corpus(path, format=format, column_names=column_names)
        records = [*islice(corpus, MAX_RECORDS + 1)]
    if len(records) < MIN_RECORDS:
        name = path if isinstance(path, str) else ", ".join(path)
        raise ValueError(
            f"{name}: {len(records):,} records; expected at least {MIN_RECORDS} to train on"
        )
    is_complete = len(records) <= MAX_RECORDS
    records = records[:MAX_RECORDS]
    for role, column in columns.items():
        if role not in roles:
            raise ValueError(f"--columns {role}={column}: expected one of {', '.join(roles)}")
        if column not in records[0]:
            raise records[0].missing_column_error(column)
    role_columns = dict(columns)
    for role in roles:
        if role not in role_columns:
            # other roles, such as context and question, are the names of their columns
            find_column = COLUMN_FINDERS.get(role)
            new_column = (
                role if find_column is None else find_column(records, [*role_columns.values()])
            )
            if new_column in records[0]:
                role_columns[role] = str(new_column)
    required = [role for role in roles if role != "pair"]
    missing = [role for role in required if role not in role_columns]
    if missing:
        raise ValueError(
            f"{records[0].location}: the columns are {quote_names(records[0])}; no column for "
            f"{' and '.join(missing)} was found; set --columns {missing[0]}=NAME"
        )
    if column_names:  # named by their roles
        roles_by_column = {column: role for role, column in role_columns.items()}
        names = tuple(roles_by_column.get(name, name) for name in column_names)
        renamed = [
            Record(dict(zip(names, record.values(), strict=True)), record.location)
            for record in records
        ]
        role_columns = {role: role for role in role_columns}
        return Table(
            records=renamed, columns=role_columns, column_names=names, is_complete=is_complete
        )
    return Table(records=records, columns=role_columns, is_complete=is_complete)


def read_first_row(path: str | list[str]) -> list[str] | None:
    """Return the cells of the first line of a CSV or TSV file; None for another format."""
    suffix = re.search(r"\.(csv|tsv)(\.\w+)?$", path.lower()) if isinstance(path, str) else None
    if suffix is None:
        return None
    file = TextFile(Corpus(path).list_files()[0])
    if suffix[1] == "tsv":
        return next(file.iter_lines())[1].split("\t")
    return next(read_csv_rows(file))[1]


def has_usual_names(cells: Sequence[str], roles: Sequence[str], columns: dict[str, str]) -> bool:
    """Return whether each role has a cell with its name, a synonym, or the name the user gave."""
    names = {cell.strip() for cell in cells}
    lower_names = {name.lower() for name in names}
    return all(
        columns[role] in names
        if role in columns
        else lower_names & {role, *COLUMN_SYNONYMS.get(role, ())}
        for role in roles
        if role != "pair"
    )


def is_header(cells: Sequence[str]) -> bool:
    """Return whether the cells of a row may be column names: short or empty, and not numbers.

    The reader refuses a header with the same name twice."""
    names = [cell for cell in cells if cell.strip()]
    return bool(names) and all(
        len(name.split()) <= MAX_HEADER_WORDS and not is_number(name) for name in names
    )


def has_header(records: Sequence[Record]) -> bool:
    """Return whether no column name is also a value of its column."""
    return not any(
        name in {str(record.get(name)) for record in records[:1000]} for name in records[0]
    )


def is_number(value: object) -> bool:
    try:
        float(str(value))
    except ValueError:
        return False
    return True


def find_text_column(records: Sequence[Record], taken: Sequence[str]) -> str | None:
    """Return the column of texts: one with a usual name and several words, else the longest."""
    names = [name for name in list_text_columns(records) if name not in taken]
    words = {name: count_mean_words(records, name) for name in names}
    for name in list_usual_names("text"):
        match = next((column for column in names if column.lower() == name), None)
        if match is not None and words[match] >= max(words.values()) / 4:
            return match
    return max(names, key=lambda name: words[name], default=None)


def find_pair_column(records: Sequence[Record], taken: Sequence[str]) -> str | None:
    """Return the column of the second text of a pair, by its name."""
    names = [name for name in list_text_columns(records) if name not in taken]
    return next((name for name in names if name.lower() in list_usual_names("pair")), None)


def find_label_column(records: Sequence[Record], taken: Sequence[str]) -> str | None:
    """Return the column of labels: `label`, one with a usual name, or that with the fewest values."""
    names = [name for name in records[0] if name not in taken]
    for name in names:
        if name.lower() == "label":
            return name
    label_names = list_usual_names("label")
    counts = {name: len({str(record.get(name)) for record in records}) for name in names}
    max_count = min(MAX_LABELS, len(records) // 2)
    usual_names = [
        name
        for name in names
        if name.lower() in label_names
        and (1 < counts[name] <= max_count or is_numeric_or_list(records, name))
    ]
    if usual_names:
        return min(usual_names, key=lambda name: label_names.index(name.lower()))
    candidates = [name for name in names if 1 < counts[name] <= max_count]
    return min(candidates, key=lambda name: counts[name], default=None)


def is_numeric_or_list(records: Sequence[Record], column: str) -> bool:
    """Return whether a column holds numbers, or lists of labels."""
    values = [record.get(column) for record in records[:1000]]
    return all(isinstance(value, list) or is_number(value) for value in values)


def find_source_column(records: Sequence[Record], taken: Sequence[str]) -> str | None:
    """Return the column of the source: one with a usual name, else the first text column."""
    return find_side_column(records, taken, "source", "target")


def find_target_column(records: Sequence[Record], taken: Sequence[str]) -> str | None:
    """Return the column of the target: one with a usual name, else the first text column left."""
    return find_side_column(records, taken, "target", "source")


def find_side_column(
    records: Sequence[Record], taken: Sequence[str], side: str, other_side: str
) -> str | None:
    names = [name for name in list_text_columns(records) if name not in taken]
    usual = [name for name in names if name.lower() in list_usual_names(side)]
    others = [name for name in names if name.lower() not in list_usual_names(other_side)]
    return next(iter([*usual, *others]), None)


def list_text_columns(records: Sequence[Record]) -> list[str]:
    """Return the columns that hold strings that are not all numbers."""
    sample = records[:1000]
    return [
        name
        for name in records[0]
        if all(isinstance(record.get(name), str | None) for record in sample)
        and not all(is_number(record.get(name)) for record in sample)
    ]


def count_mean_words(records: Sequence[Record], column: str) -> float:
    sample = records[:1000]
    return sum(len(str(record.get(column) or "").split()) for record in sample) / len(sample)


def find_list_column(records: Sequence[Record], taken: Sequence[str], role: str) -> str | None:
    """Return the column of lists with the most usual name of a role."""
    names = [
        name for name, value in records[0].items() if isinstance(value, list) and name not in taken
    ]
    return next(
        (name for usual in list_usual_names(role) for name in names if name.lower() == usual), None
    )


def find_words_column(records: Sequence[Record], taken: Sequence[str]) -> str | None:
    return find_list_column(records, taken, "words")


def find_tags_column(records: Sequence[Record], taken: Sequence[str]) -> str | None:
    return find_list_column(records, taken, "tags")


COLUMN_FINDERS: dict[str, Callable[[Sequence[Record], Sequence[str]], str | None]] = {
    "text": find_text_column,
    "pair": find_pair_column,
    "label": find_label_column,
    "source": find_source_column,
    "target": find_target_column,
    "words": find_words_column,
    "tags": find_tags_column,
}


def count_label_values(values: Iterable[object]) -> Counter[str]:
    """Return the number of records of each label; a list holds several labels."""
    counts: Counter[str] = Counter()
    for value in values:
        counts.update(map(str, value) if isinstance(value, list) else [str(value)])
    return counts


@dataclass(frozen=True, kw_only=True)
class PlainTextProfile:
    """Size of a plain text: characters, lines, and different characters."""

    num_characters: int
    num_lines: int
    num_distinct: int
    num_chunks: int


def profile_plain_text(path: str | list[str]) -> PlainTextProfile:
    """Return the profile of text files, which are read once."""
    letters: set[str] = set()
    num_characters = num_lines = num_chunks = 0
    for record in Corpus(path, unit="file"):
        text = record.get_text("text")
        letters |= {*text}
        num_characters += len(text)
        num_lines += text.count("\n")
        num_chunks += 1
    return PlainTextProfile(
        num_characters=num_characters,
        num_lines=num_lines,
        num_distinct=len(letters),
        num_chunks=num_chunks,
    )
