"""Encoders of texts with labels: classification, regression, token classification, question
answering, multiple choice."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from qkv.data.encode.encoder import NUM_LENGTH_VALUES, EncodedRow, RecordEncoder
from qkv.data.encode.overflow import OVERFLOW_MODES, apply_overflow
from qkv.data.read.record import Record, ReferenceAnswer
from qkv.text import Encoding
from qkv.validate import shorten_repr

IGNORED_TAG = 0  # stored tags are 1 + the label id; 0 means no label
NUM_TOKEN_TYPES = 8  # more than any family has
NUM_FLOAT_VALUES = 2**32  # the field size of float32 bits


@dataclass(frozen=True, kw_only=True)
class SequenceClassificationEncoder(RecordEncoder):
    """A text or a pair of texts with a label, several labels or a number."""

    label_names: tuple[str, ...] = ()
    problem_type: str = "single_label_classification"

    def field_sizes(self) -> Mapping[str, int]:
        size = NUM_FLOAT_VALUES if self.problem_type == "regression" else len(self.label_names)
        return {"tokens": len(self.tokenizer), "types": NUM_TOKEN_TYPES, "label": size}

    def __call__(self, records: Sequence[Record]) -> list[EncodedRow]:
        texts = [
            (record.get_text("text"), record.get_text("pair"))
            if "pair" in record
            else record.get_text("text")
            for record in records
        ]
        rows = []
        for encoding, record in zip(self.tokenizer.encode_batch(texts), records, strict=True):
            encoding = self.limit_length(encoding, record)
            rows.append(
                {
                    "tokens": encoding.input_ids,
                    "types": encoding.token_type_ids,
                    "label": self.encode_label(record),
                }
            )
        return rows

    def encode_label(self, record: Record) -> list[int]:
        """Return the label ids of a record, or its number as float32 bits."""
        value = get_column(record, "label")
        if self.problem_type == "regression":
            return [encode_float_bits(value, record)]
        if self.problem_type == "single_label_classification":
            return [get_label_id(value, self.label_names, record)]
        return sorted(
            {get_label_id(label, self.label_names, record) for label in split_labels(value)}
        )


@dataclass(frozen=True, kw_only=True)
class TokenClassificationEncoder(RecordEncoder):
    """Words with one tag each; the first token of a word has its tag, the others have no label."""

    label_names: tuple[str, ...]

    def field_sizes(self) -> Mapping[str, int]:
        return {
            "tokens": len(self.tokenizer),
            "types": NUM_TOKEN_TYPES,
            "labels": len(self.label_names) + 1,
        }

    def __call__(self, records: Sequence[Record]) -> list[EncodedRow]:
        rows = []
        for record in records:
            words = get_list_column(record, "words")
            tags = get_list_column(record, "tags")
            if len(words) != len(tags):
                raise ValueError(
                    f"{record.location}: {len(words)} words and {len(tags)} tags, expected one tag per word"
                )
            encoding = self.encode_words(record)
            labels = [IGNORED_TAG] * len(encoding)
            for word, token in map_words_to_first_tokens(encoding).items():
                labels[token] = 1 + get_label_id(tags[word], self.label_names, record)
            rows.append(
                {"tokens": encoding.input_ids, "types": encoding.token_type_ids, "labels": labels}
            )
        return rows

    def encode_words(self, record: Record) -> Encoding:
        """Encode the words of a record, or as many as fit."""
        words = list(map(str, get_list_column(record, "words")))
        return self.limit_length(self.tokenizer.encode_words(words), record)


@dataclass(frozen=True, kw_only=True)
class QuestionAnsweringEncoder(RecordEncoder):
    """A question and windows of its context, with the first and last token of the answer in each.

    If a window does not contain the answer, or there is no answer, both are the [CLS] token."""

    overflow_modes: ClassVar[tuple[str, ...]] = OVERFLOW_MODES
    stride: int = 128  # tokens of the context that neighboring windows share

    def field_sizes(self) -> Mapping[str, int]:
        positions = dict.fromkeys(("windows", "start", "end"), NUM_LENGTH_VALUES)
        return {"tokens": len(self.tokenizer), "types": NUM_TOKEN_TYPES, **positions}

    def __call__(self, records: Sequence[Record]) -> list[EncodedRow]:
        rows = []
        for windows, record in zip(self.encode_windows(records), records, strict=True):
            row: EncodedRow = {name: [] for name in self.field_sizes()}
            for window in windows:
                first, last = self.find_answer_tokens(window, record)
                row["tokens"] += window.input_ids
                row["types"] += window.token_type_ids
                row["windows"].append(len(window))
                row["start"].append(first)
                row["end"].append(last)
            rows.append(row)
        return rows

    def encode_windows(self, records: Sequence[Record]) -> list[list[Encoding]]:
        """Return the windows of every record."""
        texts = [
            (record.get_text("question").strip(), record.get_text("context")) for record in records
        ]
        encodings = self.tokenizer.encode_batch(texts)
        return [
            self.split_windows(encoding, record)
            for encoding, record in zip(encodings, records, strict=True)
        ]

    def split_windows(self, encoding: Encoding, record: Record) -> list[Encoding]:
        """Split a long encoding into overlapping windows, or apply another overflow mode."""
        if self.overflow != "window" or not self.max_length or len(encoding) <= self.max_length:
            return [self.limit_length(encoding, record)]
        num_context = sum(sequence_id == 1 for sequence_id in encoding.sequence_ids)
        num_question = len(encoding) - num_context
        if self.max_length - num_question <= self.stride:
            raise ValueError(
                f"{record.location}: a question of {num_question} tokens leaves "
                f"{self.max_length - num_question} of data.max_length {self.max_length}, "
                f"expected more than the stride, {self.stride}"
            )
        return apply_overflow(
            encoding, self.max_length, "window", text_name=record.location, stride=self.stride
        )

    def find_answer_tokens(self, window: Encoding, record: Record) -> tuple[int, int]:
        """Return the first and last token of the first answer, or the [CLS] token twice."""
        no_answer_index = self.find_no_answer_index(window)
        answers = record.get_answers()
        if not answers:
            return no_answer_index, no_answer_index
        begin, end = get_answer_char_span(answers[0], record)
        context = [i for i, sequence_id in enumerate(window.sequence_ids) if sequence_id == 1]
        offsets = window.offset_mapping
        is_covered = context and offsets[context[0]][0] <= begin and end <= offsets[context[-1]][1]
        answer = [i for i in context if offsets[i][1] > begin and offsets[i][0] < end]
        if not is_covered or not answer:
            return no_answer_index, no_answer_index
        return answer[0], answer[-1]

    def find_no_answer_index(self, window: Encoding) -> int:
        """Return the position of the [CLS] token, whose logits score "no answer"."""
        cls_token_id = self.tokenizer.cls_token_id
        return window.input_ids.index(cls_token_id) if cls_token_id in window.input_ids else 0


@dataclass(frozen=True, kw_only=True)
class MultipleChoiceEncoder(RecordEncoder):
    """A text paired with each of its choices; `label` is the index of the correct choice.

    All records have the same number of choices."""

    num_choices: int

    def field_sizes(self) -> Mapping[str, int]:
        return {
            "tokens": len(self.tokenizer),
            "types": NUM_TOKEN_TYPES,
            "windows": NUM_LENGTH_VALUES,
            "label": self.num_choices,
        }

    def __call__(self, records: Sequence[Record]) -> list[EncodedRow]:
        label_names = [str(i) for i in range(self.num_choices)]
        rows = []
        for record in records:
            text = record.get_text("text")
            choices = list(map(str, get_list_column(record, "choices")))
            if len(choices) != self.num_choices:
                raise ValueError(
                    f"{record.location}: {len(choices)} choices, expected {self.num_choices}, "
                    "the number of the first record"
                )
            encodings = [
                self.limit_length(encoding, record)
                for encoding in self.tokenizer.encode_batch([(text, choice) for choice in choices])
            ]
            rows.append(
                {
                    "tokens": [i for encoding in encodings for i in encoding.input_ids],
                    "types": [i for encoding in encodings for i in encoding.token_type_ids],
                    "windows": [len(encoding) for encoding in encodings],
                    "label": [get_label_id(get_column(record, "label"), label_names, record)],
                }
            )
        return rows


def get_column(record: Record, column: str) -> object:
    """Return the value of a column; raise ValueError if it is missing."""
    if column not in record:
        raise record.missing_column_error(column)
    return record[column]


def get_list_column(record: Record, column: str) -> list[Any]:
    """Return the value of a column; raise ValueError unless it is a list."""
    value = get_column(record, column)
    if not isinstance(value, list):
        raise ValueError(
            f"{record.location}: column {column!r} holds {shorten_repr(value)}, expected a list"
        )
    return value


def split_labels(value: object) -> list[object]:
    """Return several labels from a list or from a comma-separated text."""
    if isinstance(value, list):
        return value
    return [part.strip() for part in str(value).split(",") if part.strip()]


def get_label_id(label: object, label_names: Sequence[str], record: Record) -> int:
    """Return the index of a label among the label names; a number is an index if no name is one."""
    name = str(label)
    if name in label_names:
        return label_names.index(name)
    has_numbers = any(name.isdecimal() for name in label_names)
    if name.isdecimal() and not has_numbers and int(name) < len(label_names):
        return int(name)
    raise ValueError(
        f"{record.location}: label {label!r}, expected one of {', '.join(label_names[:20])}"
    )


def collect_label_names(
    records: Iterable[Record],
    column: str = "label",
    problem_type: str = "single_label_classification",
) -> tuple[str, ...]:
    """Return all labels that occur, sorted; numbers by value, before names."""
    label_names: set[str] = set()
    for record in records:
        value = get_column(record, column)
        is_multi_label = problem_type == "multi_label_classification" or isinstance(value, list)
        labels = split_labels(value) if is_multi_label else [value]
        if value is None or any(label is None or not str(label).strip() for label in labels):
            raise ValueError(
                f"{record.location}: column {column!r} holds {shorten_repr(value)}, expected a label"
            )
        label_names.update(map(str, labels))
    return sort_label_names(label_names)


def sort_label_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return label names in the order of their ids: numbers by value, before names."""
    return tuple(
        sorted(names, key=lambda name: (int(name), "") if name.isdecimal() else (1 << 62, name))
    )


def count_label_ids(
    records: Iterable[Record], column: str, label_names: Sequence[str]
) -> Counter[int]:
    """Return the number of occurrences of every label, or of every tag in lists of tags, by id."""
    counts: Counter[int] = Counter()
    for record in records:
        value = get_column(record, column)
        labels = value if isinstance(value, list) else [value]
        counts.update(get_label_id(label, label_names, record) for label in labels)
    return counts


def map_words_to_first_tokens(encoding: Encoding) -> dict[int, int]:
    """Return the first token of every word that has tokens."""
    first_tokens: dict[int, int] = {}
    for token, word in enumerate(encoding.word_ids):
        if word is not None:
            first_tokens.setdefault(word, token)
    return first_tokens


def get_answer_char_span(answer: ReferenceAnswer, record: Record) -> tuple[int, int]:
    """Return the start and end of an answer in the context, in characters."""
    text, start = answer
    if start is None:
        raise ValueError(
            f"{record.location}: answer {shorten_repr(text)} has no start, expected a text and its start"
        )
    if not text or record.get_text("context")[start : start + len(text)] != text:
        raise ValueError(
            f"{record.location}: answer {shorten_repr(text)} is not at character {start} of the context"
        )
    return start, start + len(text)


def encode_float_bits(value: object, record: Record) -> int:
    """Return the bits of a number as float32."""
    try:
        number = float(str(value))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{record.location}: label {value!r}, expected a number")
    return int(np.float32(number).view(np.uint32))


def decode_float_bits(bits: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the float32 numbers of encode_float_bits."""
    return bits.astype(np.uint32).view(np.float32)
