"""Encoding: a text, or a pair of texts, as tokens. Knows no tokenizer: it only keeps and cuts lists."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Encoding:
    """Six lists of one length; special tokens are those put around the texts, not those typed in them."""

    ids: list[int]
    offsets: list[tuple[int, int]]  # characters of the text itself, or of the word; (0, 0): special
    types: list[int]  # segments, as the family counts them
    special: list[bool]
    sequence: list[int | None]  # 0: the first text, 1: its pair, None: special
    words: list[int | None]  # which word of its text; None: special, or not known

    def __len__(self) -> int:
        return len(self.ids)

    def cut(self, limit: int, *, side: str = "right") -> Encoding:
        """At most `limit` tokens: the longer text loses its tokens first, at that side; special ones stay."""
        if len(self) <= limit:
            return self
        first, second = self._places(0), self._places(1)
        room = self._room(limit, len(self) - len(first) - len(second))
        short, long = sorted((len(first), len(second)))
        long = max(short, room - short)
        if short + long > room:
            short, long = room // 2, room - room // 2
        sizes = (long, short) if len(first) > len(second) else (short, long)
        lost: set[int] = set()
        for places, size in zip((first, second), sizes, strict=True):
            lost.update(places[size:] if side == "right" else places[: max(len(places) - size, 0)])
        return self._take(place for place in range(len(self)) if place not in lost)

    def windows(self, limit: int, *, stride: int = 0) -> list[Encoding]:
        """The whole as parts of at most `limit` tokens, of which neighbours share `stride`.

        A pair repeats its first text in each part, as a question before pieces of a long passage.
        """
        slides = self._places(1) or self._places(0)
        room = self._room(limit, len(self) - len(slides))
        if len(slides) > room <= stride:
            raise ValueError(
                f"stride {stride}: expected less than {room}, the room that limit {limit} leaves"
            )
        starts = range(0, max(len(slides) - stride, 1), max(room - stride, 1))
        sliding = {*slides}
        stay = [place for place in range(len(self)) if place not in sliding]
        return [self._take(sorted(stay + slides[start : start + room])) for start in starts]

    def opened(self) -> Encoding:
        """Without the special tokens at the end: a text that goes on."""
        last = max((place for place, owner in enumerate(self.sequence) if owner is not None), default=-1)
        return self._take(range(last + 1))

    def _places(self, sequence: int) -> list[int]:
        return [place for place, owner in enumerate(self.sequence) if owner == sequence]

    def _room(self, limit: int, kept: int) -> int:
        if limit < kept:
            raise ValueError(f"limit {limit}: expected at least {kept}, the tokens that are always kept")
        return limit - kept

    def _take(self, places: Iterable[int]) -> Encoding:
        chosen = list(places)
        return Encoding(
            [self.ids[place] for place in chosen],
            [self.offsets[place] for place in chosen],
            [self.types[place] for place in chosen],
            [self.special[place] for place in chosen],
            [self.sequence[place] for place in chosen],
            [self.words[place] for place in chosen],
        )
