"""Slots written in place: every row is filled from column 0 on, so that a token's column is its position.

            columns 0 1 2 3 4 5 .  .
    row 0           a b c d e -         5 filled
    row 1           a b - - - -         2 filled: what lies further right is old, and nobody sees it

Nothing is joined or shifted at a step. A row goes back by being filled less; rows leave and fork by copying.
Buffers grow by doubling. B rows, S columns, T new tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.decode.transfer import sent
from qkv.nn.cache import Slot

LEAST = 64  # columns of the first buffers
BLOCK = 64  # columns of a static shape come in so many at a time
WORD = 8  # columns of any tensor are whole words of 8 bytes if there are so many


class Columns:
    """How far rows are filled, and which of them take part in the step to come: shared by the Slots of a net.

    `static`: shapes change rarely, and what rows differ in is read from the device alone (CUDA graphs)."""

    def __init__(self, device: torch.device, width: int = 1, static: bool = False) -> None:
        self.device, self.width, self.static = device, width, static
        self.began: list[int] = []  # columns of each row when they were last set, as the host knows it
        self.since, self.low, self.high = 0, 0, 0  # written to every row since; the least and the most now
        self.count = torch.zeros(0, dtype=torch.long, device=device)  # the same on the device, with room
        self.room = (0, 0)  # rows and columns of all buffers
        self.rows = slice(0, 0)  # of the step to come
        self.start, self.stop = 0, 0  # its new columns, where they are the same in all rows
        self.index: Tensor | None = None  # (B * T,) where they go otherwise, in the buffers laid flat
        self.shape = (0, 0)  # rows and columns of a static step
        self.mixed = static  # some row has columns that it never wrote, and that others have

    def __len__(self) -> int:
        return len(self.began)

    @property
    def filled(self) -> list[int]:
        return [each + self.since for each in self.began]

    def make_room(self, rows: int, columns: int) -> None:
        """Buffers for at least so many; they follow when they are next written."""
        if rows > self.room[0] or columns > self.room[1]:
            self.room = doubled(self.room[0] or self.width, rows), doubled(self.room[1] or LEAST, columns)
            fresh = self.count.new_zeros(self.room[0])
            fresh[: len(self.count)] = self.count
            self.count = fresh

    def set(self, filled: list[int]) -> None:
        self.began, self.since = filled, 0
        self.low, self.high = min(filled, default=0), max(filled, default=0)
        self.count.zero_()
        self.count[: len(filled)] = sent(filled, self.device)

    def add(self, filled: list[int]) -> None:
        """Rows below those that are there, filled so far."""
        self.make_room(len(self) + len(filled), 0)
        self.set([*self.filled, *filled])

    def begin(self, rows: slice, length: int) -> None:
        """The next forward writes `length` columns of fresh rows."""
        self.rows, self.start, self.stop, self.index = rows, 0, length, None
        self.make_room(rows.stop, length)

    def settle(self, new: int) -> tuple[int, int]:
        """The static shape in which `new` tokens come to every row: rows and columns that are read."""
        self.shape = doubled(self.width, len(self)), up_to(self.high + new, BLOCK)
        self.make_room(*self.shape)
        return self.shape

    def go_on(self, new: int) -> tuple[Tensor, Tensor, bool]:
        """The next forward writes `new` tokens to every row: (their positions, those of all keys, full?)."""
        rows, low, high = len(self), self.low, self.high
        self.make_room(rows, high + new)
        self.rows, self.start, self.stop = slice(0, rows), high, high + new
        if low == high and not self.static:
            self.index = None
            along = torch.arange(self.stop, device=self.device)[None]  # (1, S)
            return along[:, self.start :], along, True
        self.mixed = True
        if self.static:
            self.rows, self.stop = slice(0, self.shape[0]), self.shape[1]
        count = self.count[self.rows, None]
        at = count + torch.arange(new, device=self.device)  # (B, T)
        self.index = (at + torch.arange(len(at), device=self.device)[:, None] * self.room[1]).flatten()
        along = torch.arange(self.stop, device=self.device)
        return at, torch.where(along < count + new, along, -1), False

    def places(self, rows: list[int], count: int) -> Tensor:
        """The first `count` columns of these rows, in the buffers laid flat."""
        along = torch.arange(count, device=self.device)
        return (sent(rows, self.device)[:, None] * self.room[1] + along).flatten()

    def written(self, new: int) -> None:
        """The tokens of the last step stand."""
        self.since, self.low, self.high = self.since + new, self.low + new, self.high + new
        self.count[: len(self)] += new


def doubled(have: int, wanted: int) -> int:
    while have < wanted:
        have *= 2
    return have


def up_to(count: int, step: int) -> int:
    return -(-count // step) * step


class Kept(Slot):
    """A Slot in buffers: what is new goes where its Columns say."""

    def __init__(self, columns: Columns) -> None:
        super().__init__()
        self.columns, self.clean = columns, False

    def __len__(self) -> int:
        return self.columns.start

    def extend(self, tensors: dict[str, Tensor], positions: Tensor) -> None:
        columns = self.columns
        for name, new in tensors.items():
            buffer = self.fitting(name, new)
            if columns.index is None:
                buffer[columns.rows, columns.start : columns.stop] = new
            else:
                buffer.flatten(0, 1).index_copy_(0, columns.index, new.flatten(0, 1))

    def fitting(self, name: str, like: Tensor) -> Tensor:
        """The buffer of a name, as large as the room is; what was never written is a number at least."""
        columns, old = self.columns, self.tensors.get(name)
        if old is None or old.shape[:2] != columns.room:
            make = like.new_zeros if columns.mixed else like.new_empty
            fresh = self.tensors[name] = make((*columns.room, *like.shape[2:]))
            if old is not None:
                fresh[: old.shape[0], : old.shape[1]] = old
        if columns.mixed and not self.clean:
            unwritten = torch.arange(columns.room[1], device=columns.device) >= columns.count[:, None]
            for buffer in self.tensors.values():
                rows, length, *rest = buffer.shape
                buffer.masked_fill_(unwritten[:rows, :length].view(rows, length, *[1] * len(rest)), 0)
            self.clean = True
        return self.tensors[name]

    def joined(self, new: Tensor, rows: int) -> Tensor:
        return new if self.positions is None else self.positions

    def read(self, name: str) -> Tensor:
        buffer = self.fitting(name, self.tensors[name])
        return buffer[self.columns.rows, : self.columns.stop]

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copies what stands at these places of the buffers laid flat to those."""
        for name, buffer in [*self.tensors.items()]:
            flat = self.fitting(name, buffer).flatten(0, 1)
            flat.index_copy_(0, target, flat.index_select(0, source))

    def take(self, rows: Tensor, start: int, stop: int) -> None:
        """Row i becomes as row rows[i] is, in these columns and a few around; words of 8 bytes go fastest."""
        start, stop = start // WORD * WORD, up_to(stop, WORD)
        for name, buffer in [*self.tensors.items()]:
            part = self.fitting(name, buffer)[: len(rows), start:stop].flatten(1).view(torch.long)
            part.copy_(part.index_select(0, rows))
