"""How: every setting of decoding, checked when it is made. Knows no network and no text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal

MOST = 1_000  # beams, results, words drafted at once
IDS = 1 << 28  # no vocabulary is larger
Ids = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class How:
    """How ids are chosen. A value at its default changes nothing."""

    # what comes back
    results: int = 1  # of a beam, or drawn
    best_of: int | None = None  # so many are drawn, the likeliest `results` of them come back
    # beams
    beams: int = 1
    length_penalty: float = 1.0  # a result scores its log-probability over its length to this power
    early: bool | Literal["never"] = False  # when a row has as many results as beams: go on while it pays
    groups: int = 1  # beams in so many groups, each kept from the words of those before it
    diversity: float = 0.0
    words: tuple[tuple[Ids, ...], ...] = ()  # one phrase of each must be in the result
    # drawing
    sample: bool = False
    temperature: float = 1.0
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0
    typical: float = 1.0
    epsilon: float = 0.0
    eta: float = 0.0
    # contrastive search, with top_k candidates
    contrast: float = 0.0
    # lengths: of all ids of a row, or of the new ones, which count where both are given
    min_length: int = 0
    max_length: int | None = None
    min_new: int | None = None
    max_new: int | None = None
    decay: tuple[int, float] | None = None  # after so many new ids the end grows likelier by this factor
    # what may be said
    repetition: float = 1.0
    no_repeat: int = 0  # no run of so many ids twice
    source_repetition: float = 1.0
    source_no_repeat: int = 0  # no run of so many ids of the source
    bad_words: tuple[Ids, ...] = ()
    bias: tuple[tuple[Ids, float], ...] = ()
    suppress: Ids = ()
    first_suppress: Ids = ()  # as the first new id
    first: int | None = None  # the id after a row's first
    last: Ids = ()  # one of these where the length ends
    finite: bool = False  # scores that are no numbers become some
    renormalise: bool = False
    stop: tuple[Ids, ...] = ()  # a row that ends so is done
    # ids with a meaning
    start: int | None = None  # of an encoder-decoder's row; None: as the model has it
    ends: Ids = ()
    pad: int | None = None
    begin: int | None = None
    # a draft model
    drafts: int = 5  # ids that it proposes at a time

    def __post_init__(self) -> None:
        for field in fields(self):
            check(field.name, getattr(self, field.name))
        check_together(self)

    @property
    def copies(self) -> int:
        """Rows that are drawn of one prompt."""
        return max(self.results, self.best_of or 1) if self.sample and self.beams == 1 else 1

    @property
    def ids(self) -> Iterator[int]:
        """All ids that are named anywhere."""
        for one in (self.start, self.first):
            yield from () if one is None else (one,)
        yield from (*self.suppress, *self.first_suppress, *self.last, *self.ends)
        phrases = (*self.bad_words, *self.stop, *(phrase for phrase, _ in self.bias))
        yield from (each for phrase in phrases for each in phrase)
        yield from (each for phrases in self.words for phrase in phrases for each in phrase)


# What a field may be: whole numbers and numbers from and up to, ids, phrases.
WHOLE = {
    "results": (1, MOST), "best_of": (1, MOST), "beams": (1, MOST), "groups": (1, MOST), "top_k": (0, IDS),
    "min_length": (0, IDS), "max_length": (1, IDS), "min_new": (0, IDS), "max_new": (1, IDS),
    "no_repeat": (0, IDS), "source_no_repeat": (0, IDS), "first": (0, IDS), "start": (0, IDS),
    "pad": (0, IDS), "begin": (0, IDS), "drafts": (1, MOST),
}  # fmt: skip
BIG = 1e6
NUMBER = {
    "length_penalty": (-10.0, 10.0), "diversity": (0.0, BIG), "temperature": (1e-6, BIG), "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0), "typical": (1e-6, 1.0), "epsilon": (0.0, 1.0), "eta": (0.0, 1.0),
    "contrast": (0.0, 1.0), "repetition": (1e-6, BIG), "source_repetition": (1e-6, BIG),
}  # fmt: skip
FLAGS = ("sample", "finite", "renormalise")
SOME_IDS = ("suppress", "first_suppress", "last", "ends")
PHRASES = ("bad_words", "stop")


def check(name: str, value: Any, called: str | None = None) -> None:
    """One setting by itself; `called` is its name where it was read."""
    wanted = problem(name, value)
    if wanted:
        raise ValueError(f"{called or name} is {short(value)}, expected {wanted}")


def problem(name: str, value: Any) -> str | None:
    """None, or what was expected of a setting."""
    if name in WHOLE:
        low, high = WHOLE[name]
        good = (value is None and name not in NEEDED) or (whole(value) and low <= value <= high)
        return None if good else f"a whole number from {low:,} to {high:,}"
    if name in NUMBER:
        least, most = NUMBER[name]
        good = number(value) and least <= value <= most
        return None if good else f"a number from {least:,g} to {most:,g}"
    if name in FLAGS:
        return None if isinstance(value, bool) else "true or false"
    if name == "early":
        return None if isinstance(value, bool) or value == "never" else 'true, false or "never"'
    if name in SOME_IDS:
        return None if ids(value, empty=True) else "ids from 0 on"
    if name in PHRASES:
        return None if many(value, ids) else "phrases of one id or more each"
    if name == "words":
        good = many(value, lambda each: bool(each) and many(each, ids))
        return None if good else "phrases of one id or more each, or lists of them to choose one from"
    if name == "bias":
        good = many(value, lambda each: pair(each) and ids(each[0]) and not_nan(each[1]))
        return None if good else "pairs of a phrase and a number"
    good = value is None or (pair(value) and whole(value[0]) and value[0] >= 0 and number(value[1]))
    return None if good and (value is None or value[1] > 0) else "a length from 0 on and a factor above 0"


def check_together(how: How) -> None:
    """Settings that are right by themselves: do they go together?"""
    if how.beams % how.groups:
        raise ValueError(f"groups is {how.groups}, expected a divisor of the {how.beams} beams")
    if how.diversity and how.groups == 1:
        raise ValueError(f"diversity is {how.diversity:g} in one group of beams: set groups too")
    if how.groups > 1 and (how.sample or how.words):
        raise ValueError("groups of beams go without sample and words: take one of them")
    if how.words and (how.beams == 1 or how.sample):
        raise ValueError("words are found by beams, without sample: set beams to 2 or more")
    most = how.beams if how.beams > 1 else (how.best_of or MOST) if how.sample else 1
    if how.results > most:
        among = f"{how.beams} beams" if how.beams > 1 else f"{most} drawn" if how.sample else "a greedy row"
        raise ValueError(f"results is {how.results}, expected no more than come of {among}")
    if how.best_of is not None and (how.beams > 1 or not how.sample):
        raise ValueError(f"best_of is {how.best_of}, and nothing is drawn: set sample, and no beams")
    if how.contrast and (how.beams > 1 or how.sample or how.top_k < 2):
        raise ValueError("contrast goes with top_k of 2 or more, without sample and beams")
    forced = {"first": () if how.first is None else (how.first,), "last": how.last}
    for name, some in forced.items():
        if some and {*some} <= {*how.suppress}:
            raise ValueError(f"{name} is {short(some)}, and suppress forbids it: drop one of the two")


NEEDED = {"results", "beams", "groups", "top_k", "min_length", "no_repeat", "source_no_repeat", "drafts"}


def whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def number(value: Any) -> bool:
    return (isinstance(value, float) or whole(value)) and math.isfinite(value)


def not_nan(value: Any) -> bool:
    return number(value) or value in (math.inf, -math.inf)


def pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2


def many(value: Any, good: Any) -> bool:
    return isinstance(value, tuple) and all(good(each) for each in value)


def ids(value: Any, empty: bool = False) -> bool:
    return many(value, lambda each: whole(each) and 0 <= each < IDS) and (empty or len(value) > 0)


def short(value: Any) -> str:
    """A value as it is shown in one line."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
