"""Encoders of plain text, which map records to rows of token ids by field; `labels` has those of labels.

An encoder stores the folder of the tokenizer, so that each worker process loads the tokenizer itself.
`overflow` applies to texts that are longer than a row (see the module `overflow`). With "window", an
encoder of plain text keeps the whole text, and the dataset splits it into rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from string import Formatter
from typing import Any, ClassVar

from numpy.typing import NDArray

from qkv.data.encode.overflow import (
    DEFAULT_OVERFLOW,
    ONE_ROW_MODES,
    OVERFLOW_MODES,
    apply_overflow,
    check_overflow,
)
from qkv.data.read.record import Record
from qkv.text import Encoding, Tokenizer
from qkv.text.sentences import split_sentences
from qkv.validate import shorten_repr

EncodedRow = dict[str, list[int]]
EncodedRows = Sequence[Mapping[str, Sequence[int] | NDArray[Any]]]
NUM_LENGTH_VALUES = 2**31  # the field size of lengths and positions


class Encoder(ABC):
    """Encodes records to rows of numbers, by field. The repr of an encoder states all its settings."""

    @abstractmethod
    def field_sizes(self) -> Mapping[str, int]:
        """Return the number of different values of each field."""

    @abstractmethod
    def __call__(self, records: Sequence[Record]) -> EncodedRows:
        """Encode each record to a row."""


@dataclass(frozen=True, kw_only=True)
class RecordEncoder(Encoder):
    """Encodes records to rows of token ids, by field."""

    tokenizer_folder: str
    max_length: int = 0  # maximum number of tokens of a row; 0: no limit
    overflow: str = DEFAULT_OVERFLOW  # mode for longer texts, one of `overflow_modes`

    overflow_modes: ClassVar[tuple[str, ...]] = ONE_ROW_MODES

    def __post_init__(self) -> None:
        check_overflow("data.overflow", self.overflow, self.overflow_modes, "the objective")

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, loaded on first use."""
        return Tokenizer.load(self.tokenizer_folder)

    def __getstate__(self) -> dict[str, object]:
        """Omit the tokenizer, because each process loads it."""
        return {name: value for name, value in self.__dict__.items() if name != "tokenizer"}

    def field_sizes(self) -> Mapping[str, int]:
        """Return the number of different ids of each field."""
        return {"tokens": len(self.tokenizer)}

    @abstractmethod
    def __call__(self, records: Sequence[Record]) -> list[EncodedRow]:
        """Encode each record to a row."""

    def fits(self, num_tokens: int, max_length: int) -> bool:
        """Return whether a text is kept whole, because it is short or the dataset splits it."""
        return not self.max_length or num_tokens <= max_length or self.overflow == "window"

    def limit_length(
        self, encoding: Encoding, record: Record, max_length: int | None = None
    ) -> Encoding:
        """Return an encoding of at most `max_length` tokens (default: that of a row); with "window",
        return the whole text, which the dataset splits."""
        max_length = self.max_length if max_length is None else max_length
        if self.fits(len(encoding), max_length):
            return encoding
        (part,) = apply_overflow(
            encoding,
            max_length,
            self.overflow,
            text_name=record.location,
            modes=self.overflow_modes,
            setting="data.overflow",
            remedy="set a larger data.max_length",
        )
        return part

    def encode_texts(
        self,
        texts: Sequence[str],
        records: Sequence[Record],
        max_length: int | None = None,
        **encode_options: Any,
    ) -> list[list[int]]:
        """Encode texts to at most `max_length` ids; a text that is too long is encoded twice."""
        max_length = self.max_length if max_length is None else max_length
        rows = []
        for ids, text, record in zip(
            self.tokenizer.encode_ids(texts, **encode_options), texts, records, strict=True
        ):
            if not self.fits(len(ids), max_length):
                (encoding,) = self.tokenizer.encode_batch([text], **encode_options)
                ids = self.limit_length(encoding, record, max_length).input_ids
            rows.append(ids)
        return rows


@dataclass(frozen=True, kw_only=True)
class PlainTextEncoder(RecordEncoder):
    """Text without special tokens, except for an optional EOS token after every record.

    With `mark_word_starts`, the field `starts` is 1 where a word begins. `num_special_tokens` tokens
    of each row are reserved."""

    overflow_modes: ClassVar[tuple[str, ...]] = OVERFLOW_MODES
    add_eos: bool = True
    mark_word_starts: bool = False
    num_special_tokens: int = 0

    def field_sizes(self) -> Mapping[str, int]:
        return {"tokens": len(self.tokenizer)} | ({"starts": 2} if self.mark_word_starts else {})

    def __call__(self, records: Sequence[Record]) -> list[EncodedRow]:
        texts = [record.get_text("text") for record in records]
        end = get_end_token_ids(self.tokenizer) if self.add_eos else []
        max_length = self.max_length - self.num_special_tokens
        if not self.mark_word_starts:
            rows = self.encode_texts(texts, records, max_length, add_special_tokens=False)
            return [{"tokens": [*ids, *end]} for ids in rows]
        encodings = self.tokenizer.encode_batch(texts, add_special_tokens=False)
        marked_rows = []
        for encoding, record in zip(encodings, records, strict=True):
            encoding = self.limit_length(encoding, record, max_length)
            word_starts = [*compute_word_starts(encoding, record), *[1 for _ in end]]
            marked_rows.append({"tokens": [*encoding.input_ids, *end], "starts": word_starts})
        return marked_rows


@dataclass(frozen=True, kw_only=True)
class SentenceSplitEncoder(RecordEncoder):
    """Documents split into sentences: one per line, or by punctuation in a document of one line.

    Documents of any length are kept: sentence pairs that fit into a row are sampled from them."""

    mark_word_starts: bool = False

    def field_sizes(self) -> Mapping[str, int]:
        sizes = {"tokens": len(self.tokenizer), "sentences": NUM_LENGTH_VALUES}
        return sizes | ({"starts": 2} if self.mark_word_starts else {})

    def __call__(self, records: Sequence[Record]) -> list[EncodedRow]:
        rows = []
        for record in records:
            lines = [line for line in record.get_text("text").splitlines() if line.strip()]
            sentences = split_sentences(lines[0]) if len(lines) == 1 else lines
            encodings = self.tokenizer.encode_batch(sentences, add_special_tokens=False)
            encodings = [encoding for encoding in encodings if len(encoding)]
            row = {
                "tokens": [i for encoding in encodings for i in encoding.input_ids],
                "sentences": [len(encoding) for encoding in encodings],
            }
            if self.mark_word_starts:
                row["starts"] = [
                    start
                    for encoding in encodings
                    for start in compute_word_starts(encoding, record)
                ]
            rows.append(row)
        return rows


@dataclass(frozen=True, kw_only=True)
class ControlCodeEncoder(RecordEncoder):
    """Text with a code from a column: a control code (CTRL) or a language code (mBART)."""

    overflow_modes: ClassVar[tuple[str, ...]] = OVERFLOW_MODES
    code_column: str = "code"
    add_eos: bool = True
    num_special_tokens: int = 0  # tokens of each row that are reserved

    def field_sizes(self) -> Mapping[str, int]:
        return dict.fromkeys(("tokens", "code"), len(self.tokenizer))

    def __call__(self, records: Sequence[Record]) -> list[EncodedRow]:
        tokenizer = self.tokenizer
        codes = tokenizer.languages
        # The control codes of CTRL are regular tokens of its vocabulary.
        code_ids = codes or tokenizer.get_vocab()
        end = get_end_token_ids(tokenizer) if self.add_eos else []
        max_length = self.max_length - self.num_special_tokens - len(end)
        rows = []
        for record in records:
            name = record.get_text(self.code_column)
            code = code_ids.get(name)
            if code is None:
                expected = (
                    ", ".join(list(codes)[:20])
                    or "the tokens of the vocabulary; tokenizer.extra_tokens adds codes"
                )
                raise ValueError(
                    f"{record.location}: {self.code_column} {shorten_repr(name)}, expected one of: {expected}"
                )
            text = record.get_text("text")
            (encoding,) = tokenizer.encode_batch([text], add_special_tokens=False)
            encoding = self.limit_length(encoding, record, max_length)
            rows.append({"tokens": [*encoding.input_ids, *end], "code": [code]})
        return rows


@dataclass(frozen=True, kw_only=True)
class SourceTargetEncoder(RecordEncoder):
    """A source and a target, each a template of columns, with optional language codes.

    For example, the source "question: {question} context: {context}" combines two columns."""

    languages: tuple[str | None, str | None] = (None, None)
    source: str = "{source}"
    target: str = "{target}"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("source", "target"):
            try:
                parse_template_columns(getattr(self, name))
            except ValueError as error:
                raise ValueError(f"objective.{name} {getattr(self, name)!r}: {error}") from None

    def field_sizes(self) -> Mapping[str, int]:
        return {"source": len(self.tokenizer), "target": len(self.tokenizer)}

    def __call__(self, records: Sequence[Record]) -> list[EncodedRow]:
        rows: list[EncodedRow] = [{} for _ in records]
        for field, language in zip(("source", "target"), self.languages, strict=True):
            texts = self.format_texts(records, field)
            encoded = self.encode_texts(
                texts, records, is_target=field == "target", language=language
            )
            for row, ids in zip(rows, encoded, strict=True):
                row[field] = ids
        return rows

    def format_texts(self, records: Sequence[Record], field: str) -> list[str]:
        """Return the source texts or the target texts."""
        template = getattr(self, field)
        columns = parse_template_columns(template)
        return [template.format(**get_column_texts(record, columns)) for record in records]


def get_end_token_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the EOS token, or SEP, as a list; empty if there is none."""
    return [i for i in (tokenizer.eos_token_id, tokenizer.sep_token_id) if i is not None][:1]


def compute_word_starts(encoding: Encoding, record: Record) -> list[int]:
    """Return 1 for each token that begins a word, else 0."""
    words = encoding.word_ids
    if any(
        word is None and not is_special
        for word, is_special in zip(words, encoding.special_tokens_mask, strict=True)
    ):
        raise ValueError(
            f"{record.location}: this tokenizer has no word boundaries; set objective.whole_word = false"
        )
    return [int(i == 0 or words[i] != words[i - 1]) for i in range(len(words))]


def parse_template_columns(template: str) -> list[str]:
    """Return the column names in a template."""
    names = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    if not names or not all(name.isidentifier() for name in names):
        raise ValueError("expected a template with column names, such as {source}")
    return names


def get_column_texts(record: Record, column_names: Sequence[str]) -> dict[str, str]:
    """Return texts by column; for SQuAD's `answers`, the first answer or an empty text."""
    texts = {}
    for name in column_names:
        if name == "answers":
            texts[name] = next((answer.text for answer in record.get_answers()), "")
        else:
            texts[name] = record.get_text(name)
    return texts
