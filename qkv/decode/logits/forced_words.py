"""Words that must be in a result: beams that have said more of them are kept beside beams that score better.

Beams that have come equally far form a bank, and every bank keeps beams (Post and Vilar 2018). Banks, their
order and what is proposed are those of transformers 4.55, which had this search."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from qkv.decode.config import Ids
from qkv.decode.logits.processors import Seen
from qkv.decode.request import Entry

Words = tuple[tuple[Ids, ...], ...]
STRIDE = 100  # scores of one bank lie closer together than banks do


class Candidates(NamedTuple):
    """Continuations (P, m) of the beams of each prompt."""

    value: Tensor
    beam: Tensor
    word: Tensor
    turn: Tensor | None = None  # the order in which they are taken, where that is not by value
    whole: Tensor | None = None  # true where all words are said
    hope: Tensor | None = None  # (P,) the best value, where that of the beams that go on is not meant


class One(NamedTuple):
    """A candidate of one prompt, as above."""

    value: float = -float("inf")
    beam: int = 0
    word: int = 0
    turn: int = 0
    whole: bool = False


def with_words(entries: list[Entry], found: Candidates, ahead: Tensor, seen: Seen) -> Candidates:
    """Of the candidates found the ends, and those that go on; `ahead` (P, K, V) are the scores of all."""
    rows = []
    for i, entry in enumerate(entries):
        said = [seen.new(i * seen.width + k) for k in range(seen.width)]
        parts = (found.value[i].tolist(), found.beam[i].tolist(), found.word[i].tolist())
        rows.append(in_turn(entry, said, [One(*each) for each in zip(*parts, strict=True)], ahead[i]))
    longest = max(map(len, rows))
    filled = [[*row, *[One(turn=longest)] * (longest - len(row))] for row in rows]
    columns = ([[one[part] for one in row] for row in filled] for part in range(len(One._fields)))
    value, beam, word, turn, whole = (torch.tensor(column, device=ahead.device) for column in columns)
    return Candidates(value, beam, word, turn, whole, found.value.amax(1))


def in_turn(entry: Entry, said: list[list[int]], found: list[One], ahead: Tensor) -> list[One]:
    """The candidates of one prompt: the best of each bank, then the second of each; then ends."""
    words, width = entry.how.words, len(said)
    before = [Progress(ids, words) for ids in said]
    ends = [one for one in found[:width] if one.word in entry.how.ends and before[one.beam].whole]
    running = [one for one in found if one.word not in entry.how.ends][:width]
    taken = {(*said[one.beam], one.word) for one in running}
    for k, state in enumerate(before):
        for word in state.ways_on():
            if (*said[k], word) not in taken:  # beams may have said the same
                taken.add((*said[k], word))
                running.append(One(float(ahead[k, word]), k, word))
    states = [Progress([*said[one.beam], one.word], words) for one in running]
    order = sorted(range(len(running)), key=lambda i: -(states[i].bank * STRIDE + running[i].value))
    place, last, turns = 0, None, []
    for i in order:
        place = place + 1 if states[i].bank == last else 0
        last = states[i].bank
        turns.append((place, i))
    chosen = (
        [i for _, i in sorted(turns, key=lambda turn: turn[0])] if len(running) > width else [*range(width)]
    )
    most = 2 * len(found)
    go_on = [running[i]._replace(turn=n, whole=states[i].whole) for n, i in enumerate(chosen[:width])]
    return [*go_on, *(one._replace(turn=most, whole=True) for one in ends)]


class Progress:
    """How much of the words has been said: those that are done, one that is begun, those that wait."""

    def __init__(self, ids: list[int], words: Words) -> None:
        self.waiting, self.begun, self.done = [*words], list[int](), 0
        self.current: tuple[Ids, ...] | None = None
        self.longest = max((len(phrase) for phrases in words for phrase in phrases), default=0)
        for word in ids:
            if not self.whole:
                self.add(word)

    @property
    def whole(self) -> bool:
        return not self.waiting and self.current is None

    @property
    def bank(self) -> int:
        """Words that are done count as much as the longest; of one that is begun, what is left is missing."""
        begun = 0
        if self.current is not None:
            begun = self.longest - max(map(len, self.current)) + len(self.begun)
        return self.done * self.longest + begun

    def add(self, word: int) -> None:
        """The next id goes on with the word that is begun, or breaks it off; or begins one that waits."""
        ids = [*self.begun, word]
        if self.current is not None and not goes_on(self.current, ids):
            self.waiting.append(self.current)
            self.current, self.begun = None, []
            return
        if self.current is None:
            phrases = next((each for each in self.waiting if goes_on(each, ids)), None)
            if phrases is None:
                return
            self.waiting.remove(phrases)
            self.current = phrases
        self.begun = ids
        if tuple(ids) in self.current:
            self.done, self.current, self.begun = self.done + 1, None, []

    def ways_on(self) -> list[int]:
        """The ids that go on with the word that is begun, or begin one that waits."""
        phrases = self.waiting if self.current is None else [self.current]
        at = len(self.begun)
        return list(dict.fromkeys(
            phrase[at] for each in phrases for phrase in each if [*phrase[:at]] == self.begun
        ))  # fmt: skip


def goes_on(phrases: tuple[Ids, ...], ids: list[int]) -> bool:
    return any([*phrase[: len(ids)]] == ids for phrase in phrases)


def least_room(words: Words) -> int:
    """The ids that the words need, one after another."""
    return sum(min(map(len, phrases)) for phrases in words)
