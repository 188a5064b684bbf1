"""Entries: what one prompt has been asked for and has said. Knows no tensors' whereabouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.decode.config import How
from qkv.decode.logits.processors import Allowed, Rule, Seen, rules_of
from qkv.decode.logits.sampling import Filter, filters_of
from qkv.decode.transfer import sent

Stop = Callable[[list[int]], bool]  # new ids so far -> is the row done?


class Found(NamedTuple):
    """One result: its new ids, the end among them; its score; that of each id; and why it ended."""

    ids: list[int]
    score: float  # the sum of the scores over the number of ids ** length_penalty
    scores: list[float]
    reason: str  # end, stop, length; nothing: no id may follow


class Event(NamedTuple):
    """What a step brought to one request."""

    ticket: int
    ids: list[int]  # said in this step; a beam says all of them when it is done
    copy: int = 0  # which of several rows drawn for one prompt
    results: list[Found] | None = None  # the best first, once all is said


@dataclass(kw_only=True, eq=False)
class Entry:
    """A prompt in a pool; no other is the same."""

    ticket: int
    how: How
    prompt: list[int]
    most: int  # ids that the row may have in all
    source: list[int] | Tensor | None = None
    seed: int = 0
    copy: int = 0
    allowed: Allowed | None = None
    stop: Stop | None = None
    place: int = 0
    length: int = field(init=False)
    ids: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.length = len(self.prompt)

    @property
    def reads(self) -> int:
        """How many ids, or states, are read at first."""
        return len(self.prompt) + (0 if self.source is None else len(self.source))

    @property
    def read_before(self) -> list[int]:
        """What counts as the source: ids that an encoder reads, else the prompt."""
        return self.source if isinstance(self.source, list) else self.prompt

    def say(self, id_: int, score: float) -> str | None:
        """Takes the next id; why the row is done, if it is."""
        self.length += 1
        if score != score:  # not a number: all ids are forbidden
            return "nothing"
        self.ids.append(id_)
        self.scores.append(score)
        return why(self, self.ids)

    def found(self, reason: str) -> Found:
        return Found(self.ids, total(self.scores, self.how.length_penalty), self.scores, reason)


def why(entry: Entry, ids: list[int]) -> str | None:
    """Why a row that has said these new ids is done, if it is."""
    if ids[-1] in entry.how.ends:
        return "end"
    if entry.how.stop and any(ids[-len(phrase) :] == [*phrase] for phrase in entry.how.stop):
        return "stop"
    if entry.stop is not None and entry.stop(ids):
        return "stop"
    return "length" if len(entry.prompt) + len(ids) >= entry.most else None


def total(scores: list[float], penalty: float) -> float:
    return sum(scores) / max(len(scores), 1) ** penalty


class News(NamedTuple):
    """What the host hears of a choice."""

    events: Sequence[Event] = ()
    done: Mapping[int, list[Found]] = MappingProxyType({})  # entries of the group, and what they have found


def no_news() -> News:
    return News()


class Choice(NamedTuple):
    """What the N rows of a group do next."""

    feed: Tensor  # (N,) the ids that they read
    said: Tensor | None = None  # (N,) the ids that they have said; None: nothing yet
    parents: Tensor | None = None  # (N,) the rows of the group that they go on from; None: themselves
    tell: Callable[[], News] = no_news  # asked last, when the device has its work: the host may have to wait


See = Callable[[], Seen]


class Group:
    """Entries of one pool with the same settings; `state` holds what a method knows of each, one a row."""

    def __init__(self, how: How, entries: list[Entry], device: torch.device) -> None:
        self.how, self.entries, self.device = how, entries, device
        self.rules: list[Rule] = rules_of(how, guided=any(entry.allowed for entry in entries))
        self.filters: list[Filter] = filters_of(how) if how.sample else []
        self.fresh = True  # it has not chosen yet
        self.state: dict[str, Tensor] = {}
        self.ends = self.tensor([*how.ends])
        if how.source_repetition != 1 or how.source_no_repeat:
            before = [entry.read_before for entry in entries]
            longest = max(map(len, before))
            lists = [[each + 1 for each in ids] + [0] * (longest - len(ids)) for ids in before]
            self.state["source"] = self.tensor(lists)  # (P, S) ids + 1; 0: none
        if how.sample:
            self.state["seed"] = self.tensor([entry.seed for entry in entries])

    def tensor(self, values: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        return sent(values, self.device)

    def admit(self, other: Group) -> None:
        """Entries join below these; what is shorter along a later axis is filled with zeros."""
        self.entries += other.entries
        self.rules = rules_of(self.how, guided=any(entry.allowed for entry in self.entries))
        self.state = {name: below(x, other.state[name]) for name, x in self.state.items()}

    def keep(self, index: list[int]) -> None:
        """These entries, in this order."""
        self.entries = [self.entries[i] for i in index]
        places = self.tensor(index)
        self.state = {name: x.index_select(0, places) for name, x in self.state.items()}


def below(above: Tensor, other: Tensor) -> Tensor:
    """Two tensors one below the other, both as large along the other axes as the larger is."""
    sizes = [max(a, b) for a, b in zip(above.shape[1:], other.shape[1:], strict=True)]
    return torch.cat([grown(above, sizes), grown(other, sizes)])


def grown(x: Tensor, sizes: list[int]) -> Tensor:
    """Zeros are added at the end of every axis but the first."""
    gaps = [gap for have, want in zip(x.shape[:0:-1], sizes[::-1], strict=True) for gap in (0, want - have)]
    return torch.nn.functional.pad(x, gaps) if any(gaps) else x
