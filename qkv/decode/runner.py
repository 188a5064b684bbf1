"""Reader: rows of ids go through a network, some tokens at a time, and what it has read is kept in Slots.

The rows of one prompt, its beams, stand together: `width` of them. An encoder reads their source once, and
its keys are kept once. B rows, P prompts, T new tokens, V words, W width of the states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.batch import Batch, Rows
from qkv.decode.cache import Columns, Kept
from qkv.decode.cuda_graphs import Graphs
from qkv.decode.transfer import sent
from qkv.nn.transformer import Memory, Tower, Transformer
from qkv.spec import Both, ByHead, Either, Everyone, Learned, Local, Pattern, Prefix

Prompts = Sequence[Sequence[int]]
Sources = Sequence[Sequence[int] | Tensor | None]
Moves = list[tuple[int, int]]  # of prompts: from this place to that


class Read(NamedTuple):
    logits: Tensor  # (N, V), or (B, T, V) after a step of several tokens
    hidden: Tensor  # (N, T, W)


class Reads(Protocol):
    """What a pool asks of a reader."""

    width: int
    device: torch.device

    def enter(self, prompts: Prompts, sources: Sources) -> Read: ...
    def repeat(self, places: list[int]) -> None: ...
    def step(self, ids: Tensor) -> Read: ...
    def select(self, parents: Tensor, ids: Tensor, alike: int) -> None: ...
    def leave(self, moves: Moves, count: int) -> None: ...


class Reader:
    """Keys and values in Slots; rows may join at any time, and are of any length."""

    def __init__(self, net: Transformer, width: int = 1, static: bool = False) -> None:
        self.device = device = next(net.parameters()).device
        self.net, self.width, self.static, self.graphs = net, width, static, Graphs()
        self.columns, self.sources = Columns(device, width, static), Columns(device, 1, static)
        self.memory: list[Any] = [Memory(Kept(self.columns), Kept(self.sources)) for _ in net.tower.order]
        layers = net.tower.stack.layers
        self.crosses = any(layer.cross for layer in layers)
        self.pair = net.encoder is not None and net.decoder is not None
        self.ahead = any(looks_ahead(layer.attend.pattern) for layer in layers)
        self.room = room_of(net.tower)
        self.sparing = device.type == "cpu"
        self.last = torch.zeros(0, 1, dtype=torch.long, device=device)  # (B, 1) what rows have read last

    def enter(self, prompts: Prompts, sources: Sources) -> Read:
        """Reads prompts below the rows that are there: the scores of what follows (P, V), and all states.

        They are filled up on the right, where no token of theirs looks."""
        device, width, first = self.device, self.width, len(self.columns)
        ids, lengths = laid(prompts, device)
        size, length = ids.shape
        along = torch.arange(length, device=device)
        seat = along < lengths[:, None] if self.ahead and len({*map(len, prompts)}) > 1 else None
        rows = Rows(ids=ids, positions=along[None], seat=seat, reach=length - 1)
        last = torch.arange(size, device=device) * length + lengths - 1
        self.columns.begin(slice(first, first + size * width, width), length)
        attend, cross = self.memory[0]
        attend.positions = cross.positions = None  # nothing is remembered of these rows
        out = self.net(self.first_batch(rows, sources, last), self.memory)
        self.columns.set([*self.columns.filled, *(len(each) for each in prompts for _ in range(width))])
        forks = [first + i for i in range(size * width) if i % width]
        self.copy([row - (row - first) % width for row in forks], forks)
        return Read(out["logits"], out["hidden"])

    def first_batch(self, rows: Rows, sources: Sources, last: Tensor) -> Batch:
        """With what an encoder reads, or with states that were given."""
        if not self.crosses or sources[0] is None:
            return Batch(rows=rows, read=last)
        device, first, given = (
            self.device,
            len(self.sources),
            [each for each in sources if each is not None],
        )
        counts = [len(each) for each in given]
        self.sources.begin(slice(first, first + len(counts)), max(counts))
        self.sources.set([*self.sources.filled, *counts])
        mask = torch.arange(max(counts), device=device) < sent(counts, device)[:, None]
        if self.pair:
            source = Rows.of(laid([[*each] for each in given], device)[0], mask=mask)
            return Batch(rows=source, target=rows, read=last)
        states = [each for each in given if isinstance(each, Tensor)]
        source = Rows.of(embeds=torch.nn.utils.rnn.pad_sequence(states, True).to(device), mask=mask)
        return Batch(rows=rows, source=source, read=last)

    def step(self, ids: Tensor) -> Read:
        """Reads the next tokens (B, T) of all rows; the scores after each of them: (B, V), or (B, T, V)."""
        count, new = ids.shape
        if self.static:
            shape = new, self.columns.settle(new), self.sources.settle(0)
            padded = F.pad(ids, (0, 0, 0, self.columns.shape[0] - count))
            logits, hidden = self.graphs(self.forward, padded, (self.columns.room, self.sources.room), shape)
        else:
            logits, hidden = self.forward(ids)
        self.columns.written(new)
        self.last = ids[:, -1:]
        return Read(logits[:count, 0] if new == 1 else logits[:count], hidden[:count])

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Of tokens (B, T) scores and states; whatever rows differ in is read from the device."""
        positions, keys, full = self.columns.go_on(ids.shape[1])
        if self.room is not None:  # drafts may go over the end
            positions = positions.clamp(max=self.room - 1)
        attend, cross = self.memory[0]
        attend.positions, attend.full = keys, full
        if self.sources:
            _, cross.positions, cross.full = self.sources.go_on(0)
        rows = Rows(ids=ids, positions=positions, counted=False, even=False)
        out = self.net(Batch(target=rows) if self.pair else Batch(rows=rows), self.memory)
        return out["logits"], out["hidden"]

    def repeat(self, places: list[int]) -> None:
        """What these prompts have read, once more below all rows."""
        first, filled = len(self.columns), self.columns.filled
        rows = of_places(places, self.width)
        self.columns.add([filled[row] for row in rows])
        self.copy(rows, [*range(first, first + len(rows))])
        if self.sources:
            first, filled = len(self.sources), self.sources.filled
            self.sources.add([filled[place] for place in places])
            self.copy_sources(places, [*range(first, first + len(places))])

    def copy(self, source: list[int], target: list[int]) -> None:
        """What the rows `source` have read, over the rows `target`."""
        if source:
            stop = self.columns.high
            places = self.columns.places(source, stop), self.columns.places(target, stop)
            for layer in self.memory:
                layer.attend.move(*places)

    def copy_sources(self, source: list[int], target: list[int]) -> None:
        """The same of what the encoder has read, prompt by prompt."""
        if source:
            stop = self.sources.high
            places = self.sources.places(source, stop), self.sources.places(target, stop)
            for layer in self.memory:
                layer.cross.move(*places)

    def select(self, parents: Tensor, ids: Tensor, alike: int) -> None:
        """Row i goes on from row parents[i] (B,); in their first columns, `alike` of them, they are the same.

        A CPU copies only what differs of what both have read; a GPU has copied all before it could tell what
        that is. Rows have said the ids (B, L), and the last that they have read may not be among them."""
        if not self.sparing:
            for layer in self.memory:
                layer.attend.take(parents, alike, self.columns.high)
            return
        columns, wide = self.columns, self.columns.room[1]
        filled = columns.count[: len(parents), None]
        ids = F.pad(ids, (0, 1)).scatter(1, filled - 1, self.last)
        apart = (ids != ids[parents]).cumsum(1) > 0  # from the first id on that is another
        along = torch.arange(ids.shape[1], device=self.device)
        row, column = (apart & (along < filled)).nonzero().unbind(1)
        if len(row):
            for layer in self.memory:
                layer.attend.move(parents[row] * wide + column, row * wide + column)

    def leave(self, moves: Moves, count: int) -> None:
        """Prompts come to stand in the places of others, `count` of them remain."""
        old, new = [place for place, _ in moves], [place for _, place in moves]
        rows, there = of_places(old, self.width), of_places(new, self.width)
        self.copy(rows, there)
        self.columns.set(held(self.columns.filled, rows, there, count * self.width))
        if self.sources:
            self.copy_sources(old, new)
            self.sources.set(held(self.sources.filled, old, new, count))

    def cut(self, lengths: list[int]) -> None:
        """Rows go back to their first tokens."""
        self.columns.set(lengths)


def room_of(tower: Tower) -> int | None:
    """How many positions there are; None: any number."""
    positions = tower.stack.embed.positions
    return positions.count - positions.offset if isinstance(positions, Learned) else None


def looks_ahead(pattern: Pattern) -> bool:
    """May a token see what comes after it?"""
    match pattern:
        case Everyone() | Local() | Prefix():
            return True
        case Both(one, two):
            return looks_ahead(one) and looks_ahead(two)
        case Either(one, two):
            return looks_ahead(one) or looks_ahead(two)
        case ByHead(rules):
            return any(map(looks_ahead, rules))
    return False


def laid(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids one row below the other (P, T), the shorter filled with 0 on the right, and their lengths."""
    longest = max(map(len, rows))
    ids = sent([[*row, *[0] * (longest - len(row))] for row in rows], device)
    return ids, sent([len(row) for row in rows], device)


def of_places(places: list[int], width: int) -> list[int]:
    """The rows of the prompts at these places."""
    return [place * width + k for place in places for k in range(width)]


def held(values: list[int], old: list[int], new: list[int], count: int) -> list[int]:
    """The first `count` values, after those of the `old` places have come to the `new` ones."""
    out = list(values)
    for source, target in zip(old, new, strict=True):
        out[target] = values[source]
    return out[:count]
