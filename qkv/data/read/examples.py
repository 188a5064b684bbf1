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

    `columns` selects and renames columns, as in Corpus. Without it, columns with other usual names are
    found: `sentence` for `text`, `category` for `label`."""
    if isinstance(data, Corpus):
        return data
    if isinstance(data, str | Path):
        corpus = Corpus(data, columns=columns)
        usual_columns = find_columns(corpus, column_names) if columns is None else None
        return Corpus(data, columns=usual_columns) if usual_columns else corpus
    records = [
        Record(row, f"example {number}")
        for number, row in enumerate(_iter_rows(data, column_names))
    ]
    columns = columns or find_columns(records, column_names)
    return [select_columns(record, columns) for record in records] if columns else records


def _iter_rows(data: Any, column_names: Sequence[str]) -> Iterator[dict[str, object]]:
    """Yield every example as a dict."""
    if hasattr(data, "to_dict") and hasattr(data, "itertuples"):  # pandas
        for row in data.to_dict("records"):
            yield {str(name): _replace_nan(value) for name, value in row.items()}
    elif isinstance(data, Mapping):
        yield from _iter_column_rows(data)
    else:
        class_names = _get_class_names(getattr(data, "features", None))
        for number, item in enumerate(data):
            yield _convert_example(item, f"example {number}", column_names, class_names)


def _replace_nan(value: object) -> object:
    """Return None for NaN, with which pandas marks a missing value."""
    return None if isinstance(value, float) and value != value else value


def _iter_column_rows(data: Mapping[str, Any]) -> Iterator[dict[str, object]]:
    """Yield the rows of a dict of columns, which are lists of the same length."""
    if not data or not all(isinstance(column, list | tuple) for column in data.values()):
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


def _convert_example(
    item: Any,
    location: str,
    column_names: Sequence[str],
    class_names: Mapping[str, Sequence[str]],
) -> dict[str, object]:
    """Return a text, a tuple or a dict as a dict."""
    if isinstance(item, str):
        return {column_names[0]: item}
    if isinstance(item, Mapping):
        row = dict(item)
        for column in class_names.keys() & row.keys():
            row[column] = _name_classes(row[column], class_names[column])
        return row
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
