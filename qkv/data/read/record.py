"""Record: one example as it was read, and where. Knows no form of files and no task."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

TEXTS = "text pair source target words context question caption choices".split()  # columns that hold text


STARTS = ("start", "answer_start")  # where an answer begins: ours, SQuAD's


class Answer(NamedTuple):
    """An answer to a question, and the character of the context where it begins, if that is told."""

    text: str
    start: int | None = None


class Record(dict[str, object]):
    """The columns of one example by name, and the place it was read from, for messages."""

    __slots__ = ("found", "place")
    place: str
    found: tuple[str, ...]  # the columns of the file, where these were picked of them

    def __init__(self, values: Mapping[str, object], place: str, found: tuple[str, ...] = ()) -> None:
        super().__init__(values)
        self.place, self.found = place, found

    def lacks(self, column: str) -> ValueError:
        """What to say where a column is not there: those of the file, and those that were picked of them."""
        picked = f"; data.columns picks {listed(self)}" if self.found else ""
        held = listed(self.found or self)
        return ValueError(f"{self.place}: no column {column!r}; the columns are {held}{picked}")

    def text(self, column: str) -> str:
        """The text in a column."""
        if column not in self:
            raise self.lacks(column)
        value = self[column]
        if not isinstance(value, str):
            raise ValueError(f"{self.place}: column {column!r} holds {short(value)}, expected text")
        return value

    def answers(self) -> list[Answer]:
        """Every answer that is right, none where there is none: a list of them, one text, or SQuAD as the hub
        has it, {"text": [...], "answer_start": [...]}."""
        if "answers" not in self:
            raise self.lacks("answers")
        value = self["answers"]
        try:
            if isinstance(value, dict):
                starts = next((value[name] for name in STARTS if name in value), [None] * len(value["text"]))
                return [_answer({"text": a, "start": b}) for a, b in zip(value["text"], starts, strict=True)]
            if isinstance(value, str | list):
                return [_answer(each) for each in ([value] if isinstance(value, str) else value)]
        except (KeyError, TypeError, ValueError):
            pass
        expected = "a list of answers, each a text, or a text and its start"
        raise ValueError(f"{self.place}: column 'answers' holds {short(value)}, expected {expected}")

    def texts(self) -> Iterator[str]:
        """What stands in the usual columns of text, lists of words or choices joined."""
        for column in TEXTS:
            value = self.get(column)
            if isinstance(value, str | list):
                yield value if isinstance(value, str) else " ".join(map(str, value))


def _answer(value: object) -> Answer:
    if isinstance(value, str):
        return Answer(value)
    if not isinstance(value, dict) or not isinstance(value["text"], str):
        raise TypeError
    start = next((value[name] for name in STARTS if name in value), None)
    return Answer(value["text"], None if start is None else int(start))


def listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)[:200] or "none"


def short(value: object) -> str:
    """A value as one line of reasonable length."""
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
