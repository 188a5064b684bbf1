"""Words that must be in a result: beams that have said more of them are kept beside beams that score better.

Beams to which equally many ids are missing form a bank, and every bank keeps beams (Post and Vilar 2018)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from qkv.decode.entry import Entry
from qkv.decode.rules import Seen
from qkv.decode.settings import Ids

Words = tuple[tuple[Ids, ...], ...]


class Candidates(NamedTuple):
    """Continuations (P, m) of the beams of each prompt."""

    value: Tensor
    beam: Tensor
    word: Tensor
    turn: Tensor | None = None  # the order in which they are taken, where that is not by value
    whole: Tensor | None = None  # true where all words are said


class One(NamedTuple):
    """A candidate of one prompt, as above."""

    value: float = -float("inf")
    beam: int = 0
    word: int = 0
    turn: int = 0
    whole: bool = False


def with_words(entries: list[Entry], found: Candidates, ahead: Tensor, seen: Seen) -> Candidates:
    """The candidates found, and those that go on with a word; `ahead` (P, K, V) are the scores of all."""
    rows = []
    for i, entry in enumerate(entries):
        said = [seen.new(i * seen.width + k) for k in range(seen.width)]
        pairs = {*zip(found.beam[i].tolist(), found.word[i].tolist(), strict=True)}
        pairs |= {(k, word) for k, ids in enumerate(said) for word in ways_on(ids, entry.how.words)}
        rows.append(in_turn(entry, said, sorted(pairs), ahead[i]))
    longest = max(seen.width, *map(len, rows))
    filled = [[*row, *[One(turn=longest)] * (longest - len(row))] for row in rows]
    parts = [[list(part) for part in zip(*row, strict=True)] for row in filled]
    return Candidates(*(torch.tensor(part, device=ahead.device) for part in zip(*parts, strict=True)))


def in_turn(entry: Entry, said: list[list[int]], pairs: list[tuple[int, int]], ahead: Tensor) -> list[One]:
    """The best candidate of each bank, then the second of each: those first to which less is missing."""
    room, banks = entry.most - entry.length - 1, dict[int, list[One]]()
    scores = ahead[[k for k, _ in pairs], [word for _, word in pairs]].tolist()
    for (k, word), score in zip(pairs, scores, strict=True):
        left = missing([*said[k], word], entry.how.words)
        ends = word in entry.how.ends or left > room  # before all is said
        if score > -float("inf") and not (left and ends):
            banks.setdefault(left, []).append(One(score, k, word, whole=left == 0))
    for bank in banks.values():
        bank.sort(key=lambda one: (-one.value, one.beam, one.word))
    turns = [(place, left, one) for left, bank in banks.items() for place, one in enumerate(bank)]
    return [one._replace(turn=n) for n, (*_, one) in enumerate(sorted(turns, key=lambda turn: turn[:2]))]


def missing(ids: list[int], words: Words) -> int:
    """How many ids are still to be said, at most one word being begun at the end."""
    unsaid = [phrases for phrases in words if not said_one(ids, phrases)]
    whole = [min(map(len, phrases)) for phrases in unsaid]
    rest = [min(len(phrase) - begun(ids, phrase) for phrase in phrases) for phrases in unsaid]
    return sum(whole) + min((b - a for a, b in zip(whole, rest, strict=True)), default=0)


def ways_on(ids: list[int], words: Words) -> set[int]:
    """The ids that would begin a word that is not yet said, or go on with it."""
    unsaid = [phrase for phrases in words if not said_one(ids, phrases) for phrase in phrases]
    return {phrase[n] for phrase in unsaid for n in (0, begun(ids, phrase))}


def said_one(ids: list[int], phrases: tuple[Ids, ...]) -> bool:
    return any(
        tuple(ids[i : i + len(phrase)]) == phrase
        for phrase in phrases
        for i in range(len(ids) - len(phrase) + 1)
    )


def begun(ids: list[int], phrase: Ids) -> int:
    """How many ids of the phrase stand at the end."""
    return next(n for n in range(len(phrase) - 1, -1, -1) if n == 0 or tuple(ids[-n:]) == phrase[:n])
