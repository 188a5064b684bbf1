"""Columns of a table by their usual names: `sentence` or `review` for a text, `category` for a label."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from qkv.data.read.record import Record

# Names that tables have instead of ours, the most usual first. A pair of texts, such as sentence1 and
# sentence2, is not among them: a single text must not be chosen from it.
COLUMN_SYNONYMS: dict[str, tuple[str, ...]] = {
    "text": tuple("sentence review body message content comment tweet document utterance".split()),
    "label": tuple("labels class category topic sentiment intent".split()),
    "words": ("tokens",),
    "tags": ("ner_tags", "labels", "pos_tags"),
    "source": ("src",),
    "target": ("tgt",),
}
# Names that are not certain: whether the column fits is seen in its values.
POSSIBLE_COLUMN_NAMES: dict[str, tuple[str, ...]] = {
    "text": tuple(
        "description question sentence1 premise question1 text1 text_a title subject".split()
    ),
    "pair": tuple("sentence2 hypothesis question2 text2 text_b".split()),
    "label": tuple("queue tag tags type target rating stars score y".split()),
    "source": ("input",),
    "target": ("trg", "output", "translation"),
}


def list_usual_names(column: str) -> list[str]:
    """Return the usual names of a column, the most usual first: its own, certain and possible ones."""
    return [column, *COLUMN_SYNONYMS.get(column, ()), *POSSIBLE_COLUMN_NAMES.get(column, ())]


def find_columns(records: Iterable[Record], required: Sequence[str]) -> dict[str, str] | None:
    """Return `columns` that select the required columns under their usual names.

    None means that no other name is needed, or that none is certain: a column is found if exactly one
    column of the first record has one of its usual names, ignoring case."""
    first = next(iter(records), None)
    if first is None or all(name in first for name in required):
        return None
    columns = {name: name for name in first}
    for name in required:
        if name in first:
            continue
        synonyms = {name, *COLUMN_SYNONYMS.get(name, ())}
        candidates = [column for column in first if column.strip().lower() in synonyms]
        if len(candidates) != 1:
            return None
        columns.pop(candidates[0], None)
        columns[name] = candidates[0]
    return columns
