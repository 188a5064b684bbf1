"""Record: one example as it was read, and where. Knows no form and no task."""

from collections.abc import Iterable, Iterator, Mapping

TEXTS = "text pair source target words context question caption choices".split()  # columns that hold text


class Record(dict[str, object]):
    """The columns of one example by name, and the place it was read from, for messages."""

    __slots__ = ("place",)
    place: str

    def __init__(self, values: Mapping[str, object], place: str) -> None:
        super().__init__(values)
        self.place = place

    def text(self, column: str) -> str:
        """The text in a column."""
        if column not in self:
            raise ValueError(f"{self.place}: no column {column!r}; the columns are {listed(self)}")
        value = self[column]
        if not isinstance(value, str):
            raise ValueError(f"{self.place}: column {column!r} holds {short(value)}, expected text")
        return value

    def texts(self) -> Iterator[str]:
        """What stands in the usual columns of text, lists of words or choices joined."""
        for column in TEXTS:
            value = self.get(column)
            if isinstance(value, str | list):
                yield value if isinstance(value, str) else " ".join(map(str, value))


def listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)[:200] or "none"


def short(value: object) -> str:
    """A value as one line of reasonable length."""
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
