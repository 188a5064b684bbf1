"""Records of examples in memory: texts, tuples, dicts, a DataFrame or a Dataset. Imports neither pandas
nor datasets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from qkv.data.read.columns import find_columns
from qkv.data.read.corpus import Corpus, select_columns
from qkv.data.read.record import Record, quote_names
from qkv.validate import shorten_repr

# A path, a Corpus, a pandas DataFrame, a Dataset of Hugging Face, or an iterable of texts, of tuples in
# the order of the objective's columns, or of dicts.
Examples = str | Path | Corpus | Iterable[Any]


def read_examples(
    data: Examples, *, column_names: Sequence[str], columns: Mapping[str, str] | None = None
) -> Iterable[Record]:
    """Return the examples as records with the columns of an objective, `column_names`.

    `columns` selects and renames columns, as in Corpus, but not those of texts and tuples, which have the
    names of the objective. Without it, columns with other usual names are found: `sentence` for `text`,
    `category` for `label`."""
    if isinstance(data, Corpus):
        return data
    if isinstance(data, str | Path):
        corpus = Corpus(data, columns=columns)
        usual_columns = find_columns(corpus, column_names) if columns is None else None
        return Corpus(data, columns=usual_columns) if usual_columns else corpus
    items = list(_iter_items(data))
    if columns is None:
        first = (Record(item, "") for item in items if isinstance(item, Mapping))
        columns = find_columns(first, column_names)
    records = []
    for number, item in enumerate(items):
        location = f"example {number}"
        if isinstance(item, Mapping):
            record = Record(item, location)
            records.append(select_columns(record, columns) if columns else record)
        else:
            records.append(Record(_name_values(item, column_names, location), location))
    return records


def _iter_items(data: Any) -> Iterator[Any]:
    """Yield every example: a row of a table as a dict, other items as they are."""
    if hasattr(data, "to_dict") and hasattr(data, "itertuples"):  # pandas
        for row in data.to_dict("records"):
            yield {str(name): _to_plain_value(value) for name, value in row.items()}
    elif isinstance(data, Mapping):
        yield from _iter_column_rows(data)
    elif class_names := _get_class_names(getattr(data, "features", None)):  # Hugging Face
        for row in data:
            names = ((column, class_names.get(column)) for column in row)
            yield {c: _name_classes(row[c], n) if n else row[c] for c, n in names}
    else:
        yield from data


def _to_plain_value(value: Any) -> Any:
    """Return an array as a list, and None for NaN, with which pandas marks a missing value."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, tuple):
        return list(value)
    return None if isinstance(value, float) and value != value else value


def _iter_column_rows(data: Mapping[str, Any]) -> Iterator[dict[str, object]]:
    """Yield the rows of a dict of columns, which are lists of the same length."""
    data = {str(name): _to_plain_value(column) for name, column in data.items()}
    if not data or not all(isinstance(column, list) for column in data.values()):
        raise ValueError(
            f"a dict of {quote_names(map(str, data))}, expected lists by column; "
            "of a dict of splits, pass one split, such as data['train']"
        )
    lengths = {name: len(column) for name, column in data.items()}
    if len({*lengths.values()}) > 1:
        raise ValueError(f"columns of different lengths, {lengths}; expected the same number")
    for values in zip(*data.values(), strict=True):
        yield dict(zip(data, values, strict=True))


def _get_class_names(features: Any) -> dict[str, Sequence[str]]:
    """Return the class names of the columns that are class labels, or lists of them, in a Dataset."""
    if not isinstance(features, Mapping):
        return {}
    names = {
        column: getattr(feature, "names", None)
        or getattr(getattr(feature, "feature", None), "names", None)
        for column, feature in features.items()
    }
    return {column: value for column, value in names.items() if value}


def _name_values(item: Any, column_names: Sequence[str], location: str) -> dict[str, object]:
    """Return a text or a tuple as a dict with the columns of the objective."""
    if isinstance(item, str):
        return {column_names[0]: item}
    if isinstance(item, tuple) and len(item) == len(column_names):
        return dict(zip(column_names, item, strict=True))
    raise ValueError(
        f"{location}: {shorten_repr(item)}, expected a text, a dict, "
        f"or a tuple ({', '.join(column_names)})"
    )


def _name_classes(value: Any, names: Sequence[str]) -> Any:
    """Return the names of class ids; an id without a name, such as -1, is kept."""
    if isinstance(value, list):
        return [_name_classes(item, names) for item in value]
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else value
