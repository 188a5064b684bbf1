"""Attention patterns: rules on the positions of a query and a key, as frozen dataclasses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, dataclass_transform

# An int, a numpy array or a tensor: any type with comparison and arithmetic.
PositionIds = Any


@dataclass_transform(frozen_default=True)
class Pattern:
    """An attention pattern: whether the query at position `i` may attend to the key at position `j`.

    Every pattern is a frozen dataclass. Patterns are combined with `&` and `|`."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)

    def __call__(self, i: PositionIds, j: PositionIds) -> Any:
        raise TypeError(f"{type(self).__name__} cannot be evaluated on two positions")

    def __and__(self, other: Pattern) -> Pattern:
        return And(self, other)

    def __or__(self, other: Pattern) -> Pattern:
        return Or(self, other)

    def with_memory(self, length: PositionIds) -> Pattern:
        """Return the pattern for a segment that follows a memory of this length."""
        return self


class Full(Pattern):
    """Every query attends to every key."""

    def __call__(self, i: PositionIds, j: PositionIds) -> Any:
        return (i == i) & (j == j)


class Causal(Pattern):
    """A query attends to its own position and to earlier positions."""

    def __call__(self, i: PositionIds, j: PositionIds) -> Any:
        return j <= i


class Local(Pattern):
    """A query attends to positions on both sides, at most `window` away."""

    window: int

    def __call__(self, i: PositionIds, j: PositionIds) -> Any:
        return (i - j <= self.window) & (j - i <= self.window)


class Banded(Pattern):
    """A query attends to the last `window` positions, including its own."""

    window: int

    def __call__(self, i: PositionIds, j: PositionIds) -> Any:
        return (j <= i) & (i - j < self.window)


class Strided(Pattern):
    """A query attends to every `stride`-th earlier position (Sparse Transformer, section 4.3)."""

    stride: int

    def __call__(self, i: PositionIds, j: PositionIds) -> Any:
        return (j <= i) & ((i - j) % self.stride == 0)


class Chunk(Pattern):
    """A query attends within its own chunk of `stride` positions, causally (fixed pattern, head 1)."""

    stride: int

    def __call__(self, i: PositionIds, j: PositionIds) -> Any:
        return (j <= i) & (i // self.stride == j // self.stride)


class ChunkEnds(Pattern):
    """A query attends to the last `count` positions of every chunk so far (fixed pattern, head 2)."""

    stride: int
    count: int

    def __call__(self, i: PositionIds, j: PositionIds) -> Any:
        return (j <= i) & (j % self.stride >= self.stride - self.count)


class Prefix(Pattern):
    """Causal, except that every query also attends to the first `length` positions (prefix LM)."""

    length: int

    def __call__(self, i: PositionIds, j: PositionIds) -> Any:
        return (j <= i) | (j < self.length)


class MemoryWindow(Pattern):
    """A query attends to at most as many earlier positions as the memory has (XLNet's `same_length`)."""

    def with_memory(self, length: PositionIds) -> Pattern:
        return Banded(length + 1)


class And(Pattern):
    left: Pattern
    right: Pattern

    def __call__(self, i: PositionIds, j: PositionIds) -> Any:
        return self.left(i, j) & self.right(i, j)


class Or(Pattern):
    left: Pattern
    right: Pattern

    def __call__(self, i: PositionIds, j: PositionIds) -> Any:
        return self.left(i, j) | self.right(i, j)


class PerHead(Pattern):
    """One pattern per head."""

    patterns: tuple[Pattern, ...]


full = Full()
causal = Causal()
