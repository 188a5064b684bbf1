"""Block, Tower and the two networks made of towers: Transformer (encoder, decoder) and Pair (CLIP).

    x -> before -> inner -> drop -> + -> after        every step of a block; the unused norm is an Identity
    |_______________________________|

B batch, T tokens, M remembered tokens, W width."""

from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.batch import Batch, Rows
from qkv.kernels.bias import Where
from qkv.nn.attention import Attention
from qkv.nn.cache import Slot
from qkv.nn.embedding import Embedding, make_norm
from qkv.nn.feed_forward import Feed, Switch
from qkv.nn.heads import HEADS
from qkv.nn.relative_position import DISTANCES
from qkv.spec import Dense, Layer, Pattern, Spec, Stack, Two, everyone


class Memory(NamedTuple):
    """What one block remembers."""

    attend: Slot
    cross: Slot


Cross = tuple[Tensor | None, Where]


class Block(nn.Module):
    def __init__(self, layer: Layer, width: int) -> None:
        super().__init__()
        self.attend = Attention(layer.attend, width)
        self.cross = Attention(layer.cross, width) if layer.cross else None
        self.feed = Feed(layer.feed, width) if isinstance(layer.feed, Dense) else Switch(layer.feed, width)
        self.before_attend, self.after_attend = around(layer, width, bare=layer.bare)
        self.before_cross, self.after_cross = around(layer, width, bare=layer.cross is None)
        self.before_feed, self.after_feed = around(layer, width)
        self.drop = nn.Dropout(layer.drop)
        self.attend_drop = nn.Dropout(layer.drop if layer.attend_drop is None else layer.attend_drop)

    def forward(
        self, x: Tensor, where: Where, seen: Tensor | None, cross: Cross | None, memory: Memory | None
    ) -> tuple[Tensor, Tensor | None]:
        """`seen` is what the keys are made of, where that is not x itself (a recurrence, a query stream)."""
        y = self.before_attend(x)
        context = y if seen is None else self.before_attend(seen)
        slot = memory.attend if memory and seen is None else None
        x = self.after_attend(x + self.attend_drop(self.attend(y, context, where, slot)))
        if self.cross is not None and cross is not None:
            y = self.cross(self.before_cross(x), *cross, memory.cross if memory else None)
            x = self.after_cross(x + self.drop(y))
        y, route = self.feed(self.before_feed(x))
        return self.after_feed(x + self.drop(y)), route


def around(layer: Layer, width: int, bare: bool = False) -> tuple[nn.Module, nn.Module]:
    """The norms before and after a step, of which one at least is an Identity."""
    norms = {} if bare else {layer.place: layer.norm}
    return make_norm(norms.get("before"), width), make_norm(norms.get("after"), width)


class Tower(nn.Module):
    """A stack: embedding, blocks, final norm."""

    def __init__(self, stack: Stack) -> None:
        super().__init__()
        self.stack, self.order = stack, stack.order or tuple(range(len(stack.layers)))
        self.embed = Embedding(stack)
        self.bias = DISTANCES[type(stack.distance)](stack.distance) if stack.distance else None
        blocks = [Block(layer, stack.width) for layer in stack.layers]
        self.layers, first = nn.ModuleList(blocks), blocks[0].attend.relative
        self.norm, self.drop = make_norm(stack.final, stack.width), nn.Dropout(stack.drop)
        for other in (block.attend.relative for block in blocks):
            if first is not None and other is not None and first.xl.shared:
                other.u, other.v = first.u, first.v

    def forward(
        self, rows: Rows, batch: Batch, source: Rows | None = None, memory: list[Memory] | None = None
    ) -> dict[str, Tensor]:
        recalls, given = self.stack.recall is not None, memory is not None
        memory = self.memory(rows.size, batch.memory) if recalls and memory is None else memory
        past = memory[0].attend if memory else Slot()
        if len(past) and rows.counted:
            even = rows.even and not given and rows.seat is None and rows.document is None
            rows = replace(rows, positions=rows.positions + past.next(), even=even)
        x = self.embed(rows)
        patterns = {layer.attend.pattern for layer in self.stack.layers}
        wheres = {pattern: self.where(pattern, rows, batch, past, x) for pattern in patterns}
        cross = self.cross(rows, source, memory, x)
        if batch.targets is not None:
            x = torch.cat([x, self.embed.query.expand(len(x), batch.targets.shape[1], -1)], dim=1)
        hiddens, routes, kept = [x], [], []
        for depth, stored in enumerate(self.order):
            mine, seen = memory[depth] if memory else None, None
            if recalls and mine:
                mine.attend.extend({"hidden": x[:, : rows.length]}, rows.seats.expand(len(x), -1))
                seen = mine.attend.read("hidden")
                kept.append(self.remember(seen, rows.length))
            where = wheres[self.stack.layers[stored].attend.pattern]
            x, route = self.layers[stored](x, where, seen, cross, mine)
            hiddens.append(x)
            routes += [] if route is None else [route]
        hiddens[-1] = x = self.drop(self.norm(x))
        out = {"hidden": x if batch.targets is None else x[:, rows.length :]}
        more = {"hiddens": hiddens if "hiddens" in batch.keep else [], "memory": kept}
        more["router"] = routes if "router" in batch.keep else []
        return out | {name: torch.stack(found) for name, found in more.items() if found}

    def where(self, pattern: Pattern, rows: Rows, batch: Batch, past: Slot, x: Tensor) -> Where:
        """Who sees whom in self-attention: remembered tokens first, then the row itself."""
        q, new, before, allowed = rows.positions, rows.seats, len(past), batch.allowed
        k, full = past.joined(new, len(x)), rows.seat is None and (past.positions is None or past.full)
        if allowed is not None:  # what is remembered may be seen by all
            allowed = torch.cat([allowed.new_ones(*allowed.shape[:2], before), allowed], dim=2)

        def pair(of: Tensor | None, remembered: int) -> tuple[Tensor, Tensor] | None:
            if of is None:
                return None
            keys = torch.cat([of.new_full((len(of), before), remembered), of], dim=1)
            return (of if batch.targets is None else beside(of, batch.targets)), keys

        texts, kinds, alone = pair(rows.document, -1), pair(rows.types, 0), batch.targets is None
        q = q if batch.targets is None else beside(q.expand(len(x), -1), batch.targets)
        return Where(
            pattern=pattern.given(before), q=q, k=k, full=full, new=new,
            types=kinds, allowed=allowed, documents=texts,
            distance=self.bias(q, k).to(x.dtype) if self.bias else None,
            even=rows.even and alone, same=past.positions is None and rows.even and alone, dtype=x.dtype,
            edges=rows.edges if past.positions is None and alone else None, reach=rows.reach + before,
        )  # fmt: skip

    def cross(self, rows: Rows, source: Rows | None, memory: list[Memory] | None, x: Tensor) -> Cross | None:
        """The decoder sees every token of its source, given now or remembered."""
        where = Where(pattern=everyone, q=rows.positions, k=rows.positions, same=True, dtype=x.dtype)
        past = memory[0].cross if memory else Slot()
        if past.positions is not None:  # rows may share a source: no query has a position of its own
            return None, replace(where, q=where.q[:1, :1], k=past.positions, full=past.full)
        if source is None:
            return None
        both = None if rows.document is None or source.document is None else (rows.document, source.document)
        return source.embeds, replace(where, k=source.seats, full=source.seat is None, documents=both)

    def memory(self, size: int, given: Tensor | None = None) -> list[Memory]:
        """Empty Slots for `size` rows; those of a recurrence hold the states given, or zeros."""
        recall = self.stack.recall
        if recall and recall.zeros and given is None:
            like = next(self.embed.parameters())
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


def beside(x: Tensor, targets: Tensor) -> Tensor:
    """(B, T) -> (B, T + P): a value for every token, then for every target of the query stream."""
    return torch.cat([x, x.gather(1, targets)], dim=1)


class Transformer(nn.Module):
    """An encoder, a decoder, or both, and the heads on the last of them."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec = spec
        self.encoder = Tower(spec.encoder) if spec.encoder else None
        self.decoder = Tower(spec.decoder) if spec.decoder else None
        if self.encoder and self.decoder and spec.shared:
            self.decoder.embed.tokens = self.encoder.embed.tokens
        width, embed = self.tower.stack.width, self.tower.embed
        tokens = nn.Identity() if self.tower.stack.embed.patches else embed.tokens
        self.heads = nn.ModuleDict({head.name: HEADS[type(head)](head, width, tokens) for head in spec.heads})

    @property
    def tower(self) -> Tower:
        """The one that heads read."""
        tower = self.decoder or self.encoder
        assert tower is not None
        return tower

    def forward(self, batch: Batch, memory: list[Memory] | None = None) -> dict[str, Tensor]:
        out = dict(batch.labels)
        source, rows = batch.source, batch.rows
        if self.encoder is not None and self.decoder is not None and source is None and rows is not None:
            out |= {f"encoded_{name}": x for name, x in self.encoder(rows, batch).items()}
            out["encoded"] = out.pop("encoded_hidden")
            source = replace(rows, embeds=out["encoded"])
        out |= self.tower(batch.target or rows, batch, source, memory)
        for head in self.heads.values():
            out |= head(out, batch)
        return out

    def memory(self, size: int) -> list[Memory]:
        """Slots for decoding `size` rows one token at a time."""
        return self.tower.memory(size)


class Pair(nn.Module):
    """Two towers that meet in one space: scores of every image with every text (CLIP)."""

    def __init__(self, spec: Two) -> None:
        super().__init__()
        self.spec = spec
        self.text = Transformer(spec.text) if spec.text else None
        self.image = Transformer(spec.image) if spec.image else None
        self.temperature = nn.Parameter(torch.empty(())) if spec.temperature is not None else None

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        out = self.text(batch) if self.text is not None and batch.rows is not None else dict(batch.labels)
        if self.image is not None and batch.image is not None:
            out |= self.image(replace(batch, rows=batch.image))
        if self.temperature is not None:
            out |= {name: F.normalize(out[name], dim=-1) for name in ("text", "image") if name in out}
            if "text" in out and "image" in out:
                out["scaled"] = self.temperature.exp() * out["image"]
                out["logits"] = out["scaled"] @ out["text"].T
        return out


def make_net(spec: Spec | Two) -> Transformer | Pair:
    return Pair(spec) if isinstance(spec, Two) else Transformer(spec)
