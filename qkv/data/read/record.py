"""Record: one example and its location in a file. Does not depend on file formats or tasks."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from qkv.validate import check_text_length, shorten_repr

TEXT_COLUMNS = "text pair source target words context question caption choices".split()
ANSWER_START_KEYS = ("start", "answer_start")  # the key of qkv and that of SQuAD


class ReferenceAnswer(NamedTuple):
    """A reference answer, and the character of the context where it begins, if known."""

    text: str
    start: int | None = None


class Record(dict[str, object]):
    """The columns of one example by name, and its location in a file, for error messages."""

    __slots__ = ("location", "source_columns")
    location: str
    source_columns: tuple[str, ...]  # the columns of the file, if `columns` selected some of them

    def __init__(
        self, values: Mapping[str, object], location: str, source_columns: tuple[str, ...] = ()
    ) -> None:
        super().__init__(values)
        self.location = location
        self.source_columns = source_columns

    def missing_column_error(self, column: str) -> ValueError:
        """Return the error for a missing column, which lists the columns that exist."""
        hint = f"; data.columns selects {quote_names(self)}"
        if not self.source_columns:
            hint = f"; columns={{{column!r}: ...}} selects another one"
        names = quote_names(self.source_columns or self)
        return ValueError(f"{self.location}: no column {column!r}; the columns are {names}{hint}")

    def get_text(self, column: str) -> str:
        """Return the text of a column; raise ValueError if it is missing or not a text."""
        if column not in self:
            raise self.missing_column_error(column)
        value = self[column]
        if not isinstance(value, str):
            raise ValueError(
                f"{self.location}: column {column!r} holds {shorten_repr(value)}, expected text"
            )
        check_text_length(f"{self.location}: column {column!r}", value)
        return value

    def get_answers(self) -> list[ReferenceAnswer]:
        """Return all reference answers; an unanswerable question has none.

        The column `answers` is a list of answers, one text, or the format of SQuAD on the hub,
        {"text": [...], "answer_start": [...]}."""
        if "answers" not in self:
            raise self.missing_column_error("answers")
        value = self["answers"]
        try:
            if isinstance(value, dict):
                texts = value["text"]
                keys = [key for key in ANSWER_START_KEYS if key in value]
                starts = value[keys[0]] if keys else [None] * len(texts)
                return [
                    _parse_answer({"text": text, "start": start})
                    for text, start in zip(texts, starts, strict=True)
                ]
            if isinstance(value, str):
                return [_parse_answer(value)]
            if isinstance(value, list):
                return [_parse_answer(answer) for answer in value]
        except (KeyError, TypeError, ValueError):
            pass
        raise ValueError(
            f"{self.location}: column 'answers' holds {shorten_repr(value)}, "
            "expected a list of answers, each a text, or a text and its start"
        )

    def iter_texts(self) -> Iterator[str]:
        """Iterate over the texts in TEXT_COLUMNS; lists of words or choices are joined."""
        for column in TEXT_COLUMNS:
            value = self.get(column)
            if isinstance(value, str):
                yield value
            elif isinstance(value, list):
                yield " ".join(map(str, value))


def _parse_answer(value: object) -> ReferenceAnswer:
    if isinstance(value, str):
        return ReferenceAnswer(value)
    if not isinstance(value, dict) or not isinstance(value["text"], str):
        raise TypeError
    start = next((value[key] for key in ANSWER_START_KEYS if key in value), None)
    return ReferenceAnswer(value["text"], None if start is None else int(start))


def locate_error(location: str, error: ValueError) -> ValueError:
    """Return the error with the location of its record in front, once."""
    return ValueError(f"{location}: {str(error).removeprefix(f'{location}: ')}")


def quote_names(names: Iterable[str]) -> str:
    """Return names, quoted and separated by commas, for an error message."""
    return ", ".join(repr(name) for name in names)[:200] or "none"
