"""Accuracy of a translation model on everyday phrases, or of a sentiment classifier on short verdicts.

    python tools/phrases.py MODEL bench/phrases.tsv [--show-errors]
    python tools/phrases.py MODEL bench/verdicts.tsv [--show-errors]

The columns of the file select the task:

to, source, accepted     translate; `to` is en or de; ` | ` separates the accepted translations
label, text              classify; the label is positive or negative

An output is correct if it equals an accepted text after both are normalized: case-insensitive (ß is
ss), surrounding whitespace and quotes and final . ! ? … ignored, a leading article (a, an, the, der, die,
das, ein, eine) or the leading `to` of an English infinitive ignored. All else is compared exactly.

Both lists were written by hand, without the training data and without a model's output."""

from __future__ import annotations

import argparse
import re
import string
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import qkv
from qkv.data.read.formats import read_delimited_table
from qkv.data.read.lines import TextFile
from qkv.data.read.record import Record

SOURCE_LANGUAGES = {"en": "de", "de": "en"}  # by target language
SEPARATOR = " | "
EDGES = string.whitespace + "\"'`´‘’‚“”„«»‹›"
FINAL_STOPS = ".!?…"
LEADING_WORD = re.compile(r"^(?:an?|the|der|die|das|eine?|to)\s+")


@dataclass(frozen=True)
class Prediction:
    """The output of a model for one row of the file, and the outputs that are accepted."""

    group: str  # what the accuracy is printed for: a target language or a label
    text: str
    output: str
    accepted: Sequence[str]

    @property
    def is_correct(self) -> bool:
        return normalize(self.output) in map(normalize, self.accepted)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("file", type=Path)
    parser.add_argument("--show-errors", action="store_true", help="print the incorrect outputs")
    options = parser.parse_args()
    rows = read_rows(options.file)
    match list(rows[0]) if rows else []:
        case ["to", "source", "accepted"]:
            predictions = translate_rows(options.model, rows)
        case ["label", "text"]:
            predictions = classify_rows(options.model, rows)
        case columns:
            sys.exit(
                f"{options.file}: columns {columns}, expected to, source, accepted or label, text"
            )
    for line in format_report(predictions, options.show_errors):
        print(line)


def read_rows(path: Path) -> list[Record]:
    return list(read_delimited_table(TextFile(str(path)), (), "\t", has_quotes=False))


def translate_rows(model: str, rows: Sequence[Record]) -> list[Prediction]:
    task = qkv.task("translate", model)
    predictions = []
    for target in dict.fromkeys(row.get_text("to") for row in rows):
        if target not in SOURCE_LANGUAGES:
            sys.exit(f"`to` is {target!r}, expected en or de")
        selected = [row for row in rows if row["to"] == target]
        texts = [row.get_text("source") for row in selected]
        results = task.map(texts, src_lang=SOURCE_LANGUAGES[target], tgt_lang=target)
        for row, text, result in zip(selected, texts, results, strict=True):
            accepted = row.get_text("accepted").split(SEPARATOR)
            predictions.append(Prediction(f"into {target}", text, result.text, accepted))
    return predictions


def classify_rows(model: str, rows: Sequence[Record]) -> list[Prediction]:
    labels, texts = ([row.get_text(column) for row in rows] for column in ("label", "text"))
    results = qkv.task("classify", model).map(texts)
    return [
        Prediction(label, text, result.label, [label])
        for label, text, result in zip(labels, texts, results, strict=True)
    ]


def normalize(text: str) -> str:
    """Return a text in the form in which outputs are compared."""
    text = text.casefold().lstrip(EDGES).rstrip(EDGES + FINAL_STOPS)
    return LEADING_WORD.sub("", text)


def format_report(predictions: Sequence[Prediction], show_errors: bool) -> Iterator[str]:
    """Yield the incorrect outputs, if they are to be shown, and the accuracy of each group."""
    for prediction in predictions:
        if show_errors and not prediction.is_correct:
            accepted = SEPARATOR.join(prediction.accepted)
            yield f"{prediction.text}: {prediction.output}, expected {accepted}"
    for group in dict.fromkeys(prediction.group for prediction in predictions):
        selected = [prediction for prediction in predictions if prediction.group == group]
        correct = sum(prediction.is_correct for prediction in selected)
        yield f"{group}: {correct} of {len(selected)} ({correct / len(selected):.1%})"


if __name__ == "__main__":
    main()
