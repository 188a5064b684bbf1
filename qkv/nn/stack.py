"""Block, Tower and the two networks made of towers: Transformer (encode, decode) and Pair (CLIP).

    x -> before -> inner -> drop -> + -> after        every step of a block; the unused norm is an Identity
    |_______________________________|

B batch, T tokens, M remembered tokens, W width."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from qkv.nn.attention import Attention, Where
from qkv.nn.batch import Batch, Rows
from qkv.nn.feed import Feed, Switch
from qkv.nn.heads import make_head
from qkv.nn.memory import Slot
from qkv.nn.parts import Embedding, make_norm
from qkv.nn.relate import AlibiBias, BucketBias
from qkv.spec import XL, Alibi, Buckets, Dense, Layer, Pattern, Spec, Stack, Two, everyone


class Memory(NamedTuple):
    """What one block remembers."""

    attend: Slot
    cross: Slot


class Source(NamedTuple):
    """What cross-attention reads: the encoder's states and their rows."""

    states: Tensor | None
    rows: Rows


class Block(nn.Module):
    def __init__(self, layer: Layer, width: int) -> None:
        super().__init__()
        self.attend = Attention(layer.attend, width)
        self.before_attend = make_norm(None if layer.bare else layer.before, width)
        self.after_attend = make_norm(layer.after, width)
        self.cross = Attention(layer.cross, width) if layer.cross else None
        self.before_cross = make_norm(layer.before if layer.cross else None, width)
        self.after_cross = make_norm(layer.after if layer.cross else None, width)
        self.feed = Feed(layer.feed, width) if isinstance(layer.feed, Dense) else Switch(layer.feed, width)
        self.before_feed, self.after_feed = make_norm(layer.before, width), make_norm(layer.after, width)
        self.drop = nn.Dropout(layer.drop)

    def forward(
        self,
        x: Tensor,
        where: Where,
        seen: Tensor | None = None,
        cross: tuple[Tensor | None, Where] | None = None,
        memory: Memory | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """`seen` is what the keys are made of, where that is not x itself (a recurrence, a query stream)."""
        y = self.before_attend(x)
        context = y if seen is None else self.before_attend(seen)
        slot = memory.attend if memory and seen is None else None
        x = self.after_attend(x + self.drop(self.attend(y, context, where, slot)))
        if self.cross is not None and cross is not None:
            y = self.cross(self.before_cross(x), cross[0], cross[1], memory.cross if memory else None)
            x = self.after_cross(x + self.drop(y))
        y, aux = self.feed(self.before_feed(x))
        return self.after_feed(x + self.drop(y)), aux


class Tower(nn.Module):
    """A stack: embedding, blocks, final norm."""

    def __init__(self, stack: Stack) -> None:
        super().__init__()
        self.stack, self.order = stack, stack.order or tuple(range(len(stack.layers)))
        self.embed = Embedding(stack)
        self.bias: BucketBias | AlibiBias | None = None
        if isinstance(stack.distance, Buckets):
            self.bias = BucketBias(stack.distance)
        elif isinstance(stack.distance, Alibi):
            self.bias = AlibiBias(stack.distance)
        self.layers = nn.ModuleList(Block(layer, stack.width) for layer in stack.layers)
        self.norm = make_norm(stack.final, stack.width)
        self.drop = nn.Dropout(stack.drop)
        first = stack.layers[0].attend.relate
        if isinstance(first, XL) and first.shared:
            for block in self.layers[1:]:
                block.attend.relative.u, block.attend.relative.v = self.layers[0].attend.relative.biases()

    def forward(
        self, rows: Rows, batch: Batch, source: Source | None = None, memory: list[Memory] | None = None
    ) -> dict[str, Tensor]:
        recalls = self.stack.recall is not None
        if recalls and memory is None:
            memory = self.memory(rows.size, batch.memory)
        past = memory[0].attend if memory else Slot()
        if len(past) and rows.counted:
            rows = replace(rows, positions=rows.positions + past.next(), even=False)
        x = self.embed(rows, rows.positions)
        patterns = {layer.attend.pattern for layer in self.stack.layers}
        wheres = {pattern: self.where(pattern, rows, batch, past, x) for pattern in patterns}
        cross = self.cross(rows, source, memory, x)
        if batch.targets is not None:
            x = torch.cat([x, self.embed.query.expand(len(x), batch.targets.shape[1], -1)], dim=1)
        hiddens, routes, kept = [x], [], []
        for depth, stored in enumerate(self.order):
            mine, seen = memory[depth] if memory else None, None
            if recalls and mine:
                mine.attend.extend({"hidden": x[:, : rows.length]}, seats(rows).expand(len(x), -1))
                seen = mine.attend.read("hidden")
                kept.append(self.remember(seen, rows.length))
            where = wheres[self.stack.layers[stored].attend.pattern]
            x, route = self.layers[stored](x, where, seen, cross, mine)
            hiddens.append(x)
            routes.append(route)
        hiddens[-1] = x = self.drop(self.norm(x))
        out = {"hidden": x if batch.targets is None else x[:, rows.length :]}
        if "hiddens" in batch.keep:
            out["hiddens"] = torch.stack(hiddens)
        if "router" in batch.keep:
            out["router"] = torch.stack([route for route in routes if route is not None])
        if kept:
            out["memory"] = torch.stack(kept)
        return out

    def where(self, pattern: Pattern, rows: Rows, batch: Batch, past: Slot, x: Tensor) -> Where:
        """Who sees whom in self-attention: remembered tokens first, then the row itself."""
        q, k, document, types = rows.positions, seats(rows), rows.document, rows.types
        if past.positions is not None:
            k = torch.cat([past.positions, k.expand(len(x), -1)], dim=1)
        before, allowed = len(past), batch.allowed
        texts = None if document is None else (document, padded(document, before, -1))
        kinds = None if types is None else (types, padded(types, before, 0))
        if allowed is not None:  # what is remembered may be seen by all
            allowed = torch.cat([allowed.new_ones(*allowed.shape[:2], before), allowed], dim=2)
        if batch.targets is not None:  # a query stream sits where its targets sit
            q, texts, kinds = on(q.expand(len(x), -1), batch.targets), beside(texts, batch), beside(kinds, batch)
        full = past.positions is None and rows.seat is None
        return Where(
            pattern=pattern.given(before), q=q, k=k.clamp(min=0), seat=None if full else k >= 0, allowed=allowed,
            documents=texts, types=kinds, distance=self.bias(q, k).to(x.dtype) if self.bias else None, dtype=x.dtype,
            same=past.positions is None and rows.even and batch.targets is None, reach=rows.reach + before,
        )  # fmt: skip

    def cross(
        self, rows: Rows, source: Source | None, memory: list[Memory] | None, x: Tensor
    ) -> tuple[Tensor | None, Where] | None:
        """The decoder sees every token of its source, given now or remembered."""
        if memory and len(memory[0].cross):
            k, states, document = memory[0].cross.positions, None, None
        elif source:
            k, states, document = seats(source.rows), source.states, source.rows.document
        else:
            return None
        assert k is not None
        texts = (rows.document, document) if rows.document is not None and document is not None else None
        full = states is not None and source is not None and source.rows.seat is None
        seat = None if full else k >= 0
        where = Where(pattern=everyone, q=rows.positions, k=k, seat=seat, documents=texts, same=True, dtype=x.dtype)
        return states, where

    def memory(self, size: int, given: Tensor | None = None) -> list[Memory]:
        """Empty Slots for `size` rows; those of a recurrence hold the states given, or zeros where it begins so."""
        recall, like = self.stack.recall, self.layers[0].attend.q.weight
        if recall and recall.zeros and given is None:
            given = like.new_zeros(len(self.order), size, recall.length or 0, self.stack.width)
        if given is None or not given.shape[2]:
            return [Memory(Slot(), Slot()) for _ in self.order]
        positions = torch.arange(given.shape[2], device=given.device).expand(size, -1)
        return [Memory(Slot({"hidden": states}, positions), Slot()) for states in given]

    def remember(self, seen: Tensor, fresh: int) -> Tensor:
        """What the next segment is given: the last states, of this segment only the first `reuse`."""
        recall = self.stack.recall
        assert recall is not None
        if recall.reuse:
            seen = seen[:, : seen.shape[1] - fresh + recall.reuse]
        endless = not recall.length and not recall.zeros
        return (seen if endless else seen[:, max(seen.shape[1] - (recall.length or 0), 0) :]).detach()


def seats(rows: Rows) -> Tensor:
    """Positions, -1 where no token stands."""
    return rows.positions if rows.seat is None else rows.positions.masked_fill(~rows.seat, -1)


def padded(x: Tensor, count: int, fill: int) -> Tensor:
    return torch.cat([x.new_full((len(x), count), fill), x], dim=1)


def on(x: Tensor, targets: Tensor) -> Tensor:
    """(B, T) -> (B, T + P): a value for every token, then for every target."""
    return torch.cat([x, x.gather(1, targets)], dim=1)


def beside(pair: tuple[Tensor, Tensor] | None, batch: Batch) -> tuple[Tensor, Tensor] | None:
    assert batch.targets is not None
    return None if pair is None else (on(pair[0], batch.targets), pair[1])


class Transformer(nn.Module):
    """An encoder, a decoder, or both, and the heads on the last of them."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec = spec
        self.encoder = Tower(spec.encoder) if spec.encoder else None
        self.decoder = Tower(spec.decoder) if spec.decoder else None
        if self.encoder and self.decoder and spec.shared:
            self.decoder.embed.tokens = self.encoder.embed.tokens
        last = spec.decoder or spec.encoder
        assert last is not None
        self.heads = nn.ModuleDict({head.name: make_head(head, last.width) for head in spec.heads})
        for head in self.heads.values():
            head.tie({"encoder": self.encoder, "decoder": self.decoder})

    def forward(self, batch: Batch, memory: list[Memory] | None = None) -> dict[str, Tensor]:
        out: dict[str, Tensor] = {}
        source = Source(batch.source, batch.source_rows) if batch.source_rows is not None else None
        rows = batch.rows
        if self.encoder is not None and rows is not None and (self.decoder is None or source is None):
            alone = self.decoder is None
            out = self.encoder(rows, batch, source if alone else None, memory if alone else None)
            if not alone:
                source = Source(out["hidden"], rows)
                out = {"encoded" if name == "hidden" else f"encoded_{name}": x for name, x in out.items()}
        if self.decoder is not None:
            target = batch.target if batch.target is not None else rows
            assert target is not None
            out |= self.decoder(target, batch, source, memory)
        for head in self.heads.values():
            out |= head(out, batch)
        return out

    def memory(self, size: int) -> list[Memory]:
        """Slots for decoding `size` rows one token at a time."""
        tower = self.decoder or self.encoder
        assert tower is not None
        return tower.memory(size)


class Pair(nn.Module):
    """Two towers that meet in one space: scores of every image with every text (CLIP)."""

    def __init__(self, spec: Two) -> None:
        super().__init__()
        self.spec = spec
        self.text = Transformer(spec.text) if spec.text else None
        self.image = Transformer(spec.image) if spec.image else None
        self.temperature = nn.Parameter(torch.empty(())) if spec.temperature is not None else None

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        out: dict[str, Tensor] = {}
        if self.text is not None and batch.rows is not None:
            out |= self.text(batch)
        if self.image is not None and batch.image is not None:
            out |= self.image(replace(batch, rows=batch.image))
        if self.temperature is not None:
            vectors = {name: out[name] / out[name].norm(dim=-1, keepdim=True) for name in ("text", "image") if name in out}
            out |= vectors
            if len(vectors) == 2:
                out["logits"] = self.temperature.exp() * vectors["image"] @ vectors["text"].T
        return out


def make_net(spec: Spec | Two) -> Transformer | Pair:
    return Pair(spec) if isinstance(spec, Two) else Transformer(spec)
