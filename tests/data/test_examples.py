"""Examples in memory become records: texts, tuples, dicts, tables of pandas and Hugging Face."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qkv.data.read.columns import find_columns
from qkv.data.read.corpus import Corpus
from qkv.data.read.examples import read_examples
from qkv.data.read.record import Record

ROWS = [("good, kind", "praise"), ('a "bug"', "blame")]
COLUMNS = ("text", "label")
EXPECTED = [{"text": text, "label": label} for text, label in ROWS]


class Dataset:
    """What a Dataset of Hugging Face has: rows as dicts, and features with class names."""

    def __init__(self, rows: list[dict[str, Any]], **features: Any) -> None:
        self.rows = rows
        self.features = features

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)


def read(data: Any, **settings: Any) -> list[Record]:
    return list(read_examples(data, **{"column_names": COLUMNS} | settings))


def make_data_frame(**columns: list[Any]) -> Any:
    pandas: Any = pytest.importorskip("pandas")
    return pandas.DataFrame(columns)


@pytest.mark.parametrize("kind", ["tuples", "generator", "dicts", "columns", "pandas", "Dataset"])
def test_kinds_of_data(kind: str) -> None:
    texts, labels = map(list, zip(*ROWS, strict=True))
    data: dict[str, Any] = {
        "tuples": ROWS,
        "generator": (row for row in ROWS),
        "dicts": EXPECTED,
        "columns": {"text": texts, "label": labels},
        "Dataset": Dataset(EXPECTED),
    }
    if kind == "pandas":
        data["pandas"] = make_data_frame(text=texts, label=labels)
    records = read(data[kind])
    assert records == EXPECTED
    assert [record.location for record in records] == ["example 0", "example 1"]


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl"])
def test_files(suffix: str, tmp_path: Path) -> None:
    lines = {
        "csv": 'text,label\n"good, kind",praise\n"a ""bug""",blame\n',
        "tsv": 'text\tlabel\ngood, kind\tpraise\na "bug"\tblame\n',
        "jsonl": '{"text": "good, kind", "label": "praise"}\n{"text": "a \\"bug\\"", "label": "blame"}\n',
    }
    path = tmp_path / f"data.{suffix}"
    path.write_text(lines[suffix])
    assert read(path) == read(str(path)) == read(Corpus(path)) == EXPECTED


def test_texts_and_numbers_of_pandas() -> None:
    assert read(["a", "b"]) == [{"text": "a"}, {"text": "b"}]
    data = make_data_frame(text=["a", "b"], label=[1.5, float("nan")])
    assert read(data) == [{"text": "a", "label": 1.5}, {"text": "b", "label": None}]


def test_class_names_of_a_dataset() -> None:
    classes = SimpleNamespace(names=["neg", "pos"])
    data = Dataset(
        [{"text": "a", "label": 1}, {"text": "b", "label": -1}], label=classes, text=object()
    )
    assert [record["label"] for record in read(data)] == ["pos", -1]
    tags = SimpleNamespace(feature=SimpleNamespace(names=["O", "B-PER"]))
    data = Dataset([{"tokens": ["a", "b"], "ner_tags": [1, 0]}], ner_tags=tags)
    assert read(data, column_names=("words", "tags")) == [
        {"words": ["a", "b"], "tags": ["B-PER", "O"]}
    ]


def test_columns_are_found_or_given(tmp_path: Path) -> None:
    data = [{"Review": "a", "Sentiment": "good", "id": 1}]
    expected = [{"text": "a", "label": "good", "id": 1}]
    assert read(data) == expected
    path = tmp_path / "reviews.csv"
    path.write_text("Review,Sentiment,id\na,good,1\n")
    assert read(path) == [{"text": "a", "label": "good", "id": "1"}]
    columns = {"text": "Sentiment", "label": "id"}
    assert read(data, columns=columns) == [{"text": "good", "label": 1}]
    assert read(path, columns=columns) == [{"text": "good", "label": "1"}]
    assert read(ROWS, columns=columns) == EXPECTED  # tuples have the names of the objective


@pytest.mark.parametrize(
    "names",
    [
        ("text", "label", "category"),  # nothing to find
        ("review", "category", "topic"),  # two candidates for the label
        ("sentence1", "sentence2", "label"),  # a pair: the second text would be lost
        ("review", "stars"),
    ],
)
def test_columns_that_are_not_certain(names: tuple[str, ...]) -> None:
    assert find_columns([Record(dict.fromkeys(names, "a"), "x")], COLUMNS) is None
    assert find_columns([], COLUMNS) is None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"train": Dataset([]), "test": Dataset([])}, "a dict of 'train', 'test', expected lists by"),
        ({"text": ["a", "b"], "label": ["c"]}, "columns of different lengths, {'text': 2, 'label': 1}"),
        ([("a", "b", "c")], r"example 0: \('a', 'b', 'c'\), expected a text, a dict, or a tuple"),
        (["a", 3], r"example 1: 3, expected a text, a dict, or a tuple \(text, label\)"),
    ],
)  # fmt: skip
def test_errors(data: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(data)


def test_arrays_of_numpy_and_pandas_are_lists() -> None:
    words = np.array(["a", "b"], dtype=object)
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"text": [words, words], "label": [0, float("nan")]})
    first, second = read_examples(table, column_names=("text", "label"))
    assert (first.get("text"), second.get("label")) == (["a", "b"], None)
    columns = {"text": np.array(["x", "y"]), "label": (1, 2)}
    records = [*read_examples(columns, column_names=("text", "label"))]
    assert [(record.get("text"), record.get("label")) for record in records] == [("x", 1), ("y", 2)]
