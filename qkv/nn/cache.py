"""Slot: what one attention remembers, tensors with a time axis and the position of every seat.

positions  [[ 0, 1, 2],      a row of three tokens
            [-1, 0, 1]]      a row of two: -1 is an empty seat
tensors    k (B, S, H, D), v (B, S, H, D), or the hidden states (B, S, W) of a recurrence"""

from collections.abc import Callable

import torch
from torch import Tensor


class Slot:
    def __init__(self, tensors: dict[str, Tensor] | None = None, positions: Tensor | None = None) -> None:
        self.tensors = tensors or {}
        self.positions, self.full = positions, False  # full: the host knows that a token stands in every seat

    def __len__(self) -> int:
        return 0 if self.positions is None else self.positions.shape[1]

    def extend(self, tensors: dict[str, Tensor], positions: Tensor) -> None:
        """Appends along time; `positions` is (B, T), -1 where no token stands."""
        if self.positions is not None:
            tensors = {name: torch.cat([self.tensors[name], new], dim=1) for name, new in tensors.items()}
            positions = torch.cat([self.positions, positions], dim=1)
        self.tensors, self.positions = tensors, positions

    def joined(self, new: Tensor, rows: int) -> Tensor:
        """The positions of all keys, once the new ones (B|1, T) are among them."""
        return new if self.positions is None else torch.cat([self.positions, new.expand(rows, -1)], dim=1)

    def read(self, name: str) -> Tensor:
        return self.tensors[name]

    def select(self, rows: Tensor) -> None:
        """Keeps these rows, in this order: rows leave, beams fork."""
        self._each(lambda x: x[rows])

    def keep(self, count: int) -> None:
        """Keeps the last `count` seats."""
        start = max(len(self) - count, 0)
        self._each(lambda x: x[:, start:])

    def admit(self, other: "Slot") -> None:
        """Joins the rows of another Slot below these; the shorter is padded with empty seats on the left."""
        if self.positions is None or other.positions is None:
            full = other if self.positions is None else self
            self.tensors, self.positions = dict(full.tensors), full.positions
            return
        length = max(len(self), len(other))
        self.tensors = {name: _join(x, other.tensors[name], length, 0) for name, x in self.tensors.items()}
        self.positions = _join(self.positions, other.positions, length, -1)

    def cut(self, lengths: Tensor) -> None:
        """Rolls every row back to its first `lengths` tokens."""
        assert self.positions is not None
        seats = (self.positions >= 0).cumsum(1)
        self.positions = self.positions.masked_fill(seats > lengths[:, None], -1)

    def next(self) -> Tensor:
        """The position that each row's next token takes: (B, 1)."""
        assert self.positions is not None
        return self.positions.amax(dim=1, keepdim=True) + 1

    def _each(self, pick: Callable[[Tensor], Tensor]) -> None:
        assert self.positions is not None
        self.tensors = {name: pick(tensor) for name, tensor in self.tensors.items()}
        self.positions = pick(self.positions)


def _join(above: Tensor, below: Tensor, length: int, fill: int) -> Tensor:
    gaps = [x.new_full((len(x), length - x.shape[1], *x.shape[2:]), fill) for x in (above, below)]
    return torch.cat([torch.cat([gap, x], dim=1) for gap, x in zip(gaps, (above, below), strict=True)])
