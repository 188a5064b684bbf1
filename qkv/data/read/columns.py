"""Columns of a table by their usual names: `sentence` or `review` for a text, `category` for a label."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from qkv.data.read.record import Record

# Names that tables have instead of ours. A pair of texts, such as sentence1 and sentence2, is not among
# them: a single text must not be chosen from it.
COLUMN_SYNONYMS: dict[str, tuple[str, ...]] = {
    "text": tuple("sentence review content body message document tweet comment utterance".split()),
    "label": tuple("labels category class sentiment intent topic".split()),
    "words": ("tokens",),
    "tags": ("ner_tags", "pos_tags", "labels"),
    "source": ("src",),
    "target": ("tgt",),
}


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
