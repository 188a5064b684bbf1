"""Readers: rows of ids go through a network, some tokens at a time, and what it has read is kept.

The rows of one prompt, its beams, stand together: `width` of them. An encoder reads their source once, and
its keys are kept once. B rows, P prompts, T new tokens, V words, W width of the states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from qkv.batch import Batch, Rows
from qkv.decode.slots import BLOCK, Columns, Kept
from qkv.nn.stack import Memory, Transformer
from qkv.spec import Both, ByHead, Either, Everyone, Learned, Local, Pattern, Prefix

Prompts = Sequence[Sequence[int]]
Sources = Sequence[Sequence[int] | Tensor | None]


class Read(NamedTuple):
    logits: Tensor  # (N, V), or (B, T, V) after a step of several tokens
    hidden: Tensor  # (N, T, W)


class Reads(Protocol):
    """What a pool asks of a reader."""

    joins: bool  # may rows join others that have begun?
    width: int
    device: torch.device

    def enter(self, prompts: Prompts, sources: Sources) -> Read: ...
    def repeat(self, places: list[int]) -> None: ...
    def step(self, ids: Tensor) -> Read: ...
    def select(self, parents: list[int], ids: Tensor) -> None: ...
    def leave(self, moves: list[tuple[int, int]], count: int) -> None: ...


class Reader:
    """Keys and values in Slots; rows may join at any time, and are of any length."""

    joins = True

    def __init__(self, net: Transformer, width: int = 1, static: bool = False) -> None:
        self.device = device = next(net.parameters()).device
        self.net, self.width = net, width
        self.columns, self.sources = Columns(device, width, static), Columns(device, 1, static)
        crosses = any(layer.cross for layer in net.tower.stack.layers)
        self.memory: list[Any] = [Memory(Kept(self.columns), Kept(self.sources)) for _ in net.tower.order]
        self.crosses, self.pair = crosses, net.encoder is not None and net.decoder is not None
        self.room = room_of(net)
        self.last = torch.zeros(0, 1, dtype=torch.long, device=device)  # (B, 1) what rows have read last
        self.ahead = any(looks_ahead(layer.attend.pattern) for layer in net.tower.stack.layers)

    def enter(self, prompts: Prompts, sources: Sources) -> Read:
        """Reads prompts below the rows that are there: the scores of what follows (P, V), and all states."""
        device, width, first = self.device, self.width, len(self.columns.filled)
        ids, lengths = laid(prompts, device)
        size, length = ids.shape
        self.columns.begin(slice(first, first + size * width, width), length)
        attend, cross = self.memory[0]
        attend.positions = cross.positions = None
        stands = torch.arange(length, device=device) < lengths[:, None]
        rows = Rows(
            ids=ids, positions=torch.arange(length, device=device)[None], reach=length - 1,
            seat=stands if self.ahead and len({*map(len, prompts)}) > 1 else None,
        )  # fmt: skip
        last = torch.arange(size, device=device) * length + lengths - 1
        out = self.net(self.first_batch(rows, sources, last), self.memory)
        self.columns.set([*self.columns.filled, *(len(each) for each in prompts for _ in range(width))])
        if width > 1:
            target = [first + i for i in range(size * width) if i % width]
            self.copy([i - (i - first) % width for i in target], target)
        return Read(out["logits"], out["hidden"])

    def first_batch(self, rows: Rows, sources: Sources, last: Tensor) -> Batch:
        if not self.crosses or sources[0] is None:
            return Batch(rows=rows, read=last)
        device, first = self.device, len(self.sources.filled)
        counts = [len(each) for each in sources if each is not None]
        self.sources.begin(slice(first, first + len(counts)), max(counts))
        self.sources.set([*self.sources.filled, *counts])
        mask = torch.arange(max(counts)) < torch.tensor(counts)[:, None]
        if self.pair:
            given = Rows.of(laid(sources, device)[0], mask=mask.to(device))  # type: ignore[arg-type]
            return Batch(rows=given, target=rows, read=last)
        states = torch.nn.utils.rnn.pad_sequence([*sources], batch_first=True)  # type: ignore[list-item]
        source = Rows.of(embeds=states.to(device), mask=mask.to(device))
        return Batch(rows=rows, source=source, read=last)

    def step(self, ids: Tensor) -> Read:
        """Reads the next tokens (B, T) of all rows; the scores after each of them: (B, V), or (B, T, V)."""
        new, static = ids.shape[1], self.columns.static
        wide = rounded(max(self.columns.filled) + new) if static else 0
        positions, keys, full = self.columns.go_on(new, wide)
        positions = (
            positions if self.room is None else positions.clamp(max=self.room - 1)
        )  # drafts may go over
        attend, cross = self.memory[0]
        attend.positions, attend.full = keys, full
        if self.sources.filled:
            wide = rounded(max(self.sources.filled)) if static else 0
            _, cross.positions, cross.full = self.sources.go_on(0, wide)
        if static:
            ids = torch.nn.functional.pad(ids, (0, 0, 0, len(positions) - len(ids)))
        rows = Rows(ids=ids, positions=positions, counted=False, even=False)
        out = self.net(Batch(target=rows) if self.pair else Batch(rows=rows), self.memory)
        self.columns.written(new)
        self.last = ids[: len(self.columns.filled), -1:]
        count = len(self.columns.filled)
        logits = out["logits"][:count]
        return Read(logits[:, 0] if new == 1 else logits, out["hidden"][:count])

    def repeat(self, places: list[int]) -> None:
        """What these prompts have read, once more below all rows."""
        width, first = self.width, len(self.columns.filled)
        rows = [place * width + k for place in places for k in range(width)]
        self.columns.make_room(first + len(rows), 0)
        self.columns.set([*self.columns.filled, *(self.columns.filled[row] for row in rows)])
        self.copy(rows, [*range(first, first + len(rows))])
        if self.sources.filled:
            first = len(self.sources.filled)
            self.sources.make_room(first + len(places), 0)
            self.sources.set([*self.sources.filled, *(self.sources.filled[place] for place in places)])
            self.copy_sources(places, [*range(first, first + len(places))])

    def copy(self, source: list[int], target: list[int]) -> None:
        """What the rows `source` have read, over the rows `target`."""
        if source:
            stop = max(self.columns.filled)
            places = self.columns.places(source, stop), self.columns.places(target, stop)
            for layer in self.memory:
                layer.attend.move(*places)

    def copy_sources(self, source: list[int], target: list[int]) -> None:
        """The same of what the encoder has read, prompt by prompt."""
        if source:
            stop = max(self.sources.filled)
            places = self.sources.places(source, stop), self.sources.places(target, stop)
            for layer in self.memory:
                layer.cross.move(*places)

    def select(self, parents: list[int], ids: Tensor) -> None:
        """Row i goes on from row parents[i]; of what both have read, only what differs is copied.

        Rows have said the ids (B, L), and the last that they have read may not be among them."""
        columns, of = self.columns, torch.tensor(parents, device=self.device)
        filled = columns.count[: len(of), None]
        ids = torch.nn.functional.pad(ids, (0, 1)).scatter(1, filled - 1, self.last)
        apart = (ids != ids[of]).cumsum(1) > 0  # from the first id on that is another
        along = torch.arange(ids.shape[1], device=self.device)
        row, column = (apart & (along < filled)).nonzero().unbind(1)
        if len(row):
            for layer in self.memory:
                layer.attend.move(of[row] * columns.room[1] + column, row * columns.room[1] + column)

    def leave(self, moves: list[tuple[int, int]], count: int) -> None:
        """Prompts come to stand in place of others, `count` of them remain."""
        width = self.width
        old, new = ([place * width + k for place in some for k in range(width)] for some in split(moves))
        self.copy(old, new)
        self.columns.set(held(self.columns.filled, old, new, count * width))
        if self.sources.filled:
            old, new = split(moves)
            self.copy_sources(old, new)
            self.sources.set(held(self.sources.filled, old, new, count))

    def cut(self, lengths: list[int]) -> None:
        """Rows go back to their first tokens."""
        self.columns.set(lengths)


class Recurrence:
    """The states of a recurrence (Transformer-XL, XLNet): rows begin together, with prompts of one length."""

    joins = False

    def __init__(self, net: Transformer, width: int = 1) -> None:
        self.net, self.width = net, width
        self.device = next(net.parameters()).device
        self.states: Tensor | None = None  # (layers, B, M, W)
        self.said: Tensor | None = None  # (B, L) all ids so far
        self.asks = net.tower.stack.embed.query  # a second stream predicts, of a token that nobody sees
        recall = net.tower.stack.recall
        assert recall is not None
        # XLNet's states look both ways, so the last token is read once more with what follows it;
        # a net that keeps no states reads all again.
        self.again = None if recall.zeros and not recall.length else 1 if self.asks else 0

    def enter(self, prompts: Prompts, sources: Sources) -> Read:
        self.said = torch.tensor([[*each] for each in prompts], device=self.device)
        found = self.read(self.said)
        self.select([place for place in range(len(prompts)) for _ in range(self.width)], self.said)
        return found

    def step(self, ids: Tensor) -> Read:
        assert self.said is not None
        self.said = torch.cat([self.said, ids], dim=1)
        return self.read(self.said if self.again is None else self.said[:, -1 - self.again :])

    def read(self, ids: Tensor) -> Read:
        if not self.asks:
            out = self.net(Batch(rows=Rows.of(ids), memory=self.states, read=last_of(ids)))
            self.states = out["memory"]
            return Read(out["logits"], out["hidden"])
        size, length = len(ids), ids.shape[1] + 1
        unseen = torch.arange(length, device=ids.device) == length - 1
        allowed = torch.cat([~unseen | torch.eye(length, dtype=torch.bool, device=ids.device), ~unseen[None]])
        out = self.net(
            Batch(
                rows=Rows.of(torch.nn.functional.pad(ids, (0, 1))), memory=self.states,
                allowed=allowed.expand(size, -1, -1),
                targets=torch.full((size, 1), length - 1, device=ids.device),
            )
        )  # fmt: skip
        self.states = out["memory"][:, :, :-2]
        return Read(out["logits"][:, -1], out["hidden"])

    def repeat(self, places: list[int]) -> None:
        assert self.said is not None
        rows = [place * self.width + k for place in places for k in range(self.width)]
        self.select([*range(len(self.said)), *rows], self.said)

    def select(self, parents: list[int], ids: Tensor) -> None:
        index = torch.tensor(parents, device=self.device)
        assert self.states is not None
        assert self.said is not None
        self.states, self.said = self.states[:, index], self.said[index]

    def leave(self, moves: list[tuple[int, int]], count: int) -> None:
        assert self.said is not None
        places = held([*range(len(self.said) // self.width)], *split(moves), count)
        self.select([place * self.width + k for place in places for k in range(self.width)], self.said)


def room_of(net: Transformer) -> int | None:
    """How many positions the net has; None: any number."""
    positions = net.tower.stack.embed.positions
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
    ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=device)
    return ids, torch.tensor([len(row) for row in rows], device=device)


def last_of(ids: Tensor) -> Tensor:
    """The indices of the last tokens, in all rows laid flat."""
    size, length = ids.shape
    return torch.arange(1, size + 1, device=ids.device) * length - 1


def rounded(count: int) -> int:
    return -(-count // BLOCK) * BLOCK


def split(moves: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    return [old for old, _ in moves], [new for _, new in moves]


def held(values: list[int], old: list[int], new: list[int], count: int) -> list[int]:
    """The first `count` values, after those of the `old` places have come to the `new` ones."""
    out = list(values)
    for source, target in zip(old, new, strict=True):
        out[target] = values[source]
    return out[:count]
