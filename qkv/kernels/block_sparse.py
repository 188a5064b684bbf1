"""Attention over few keys: local, banded, strided and fixed patterns without a T x T tensor.

A pattern is cut into pieces. In a piece, queries are grouped into blocks that share their keys:

    window    q |0123|4567|    k |..0123|234567|          a block and what lies just before (and after) it
    stride    q |048|159|..    k the same                 one block a remainder
    cells     q |0123|4567|    k |3|  |3|7|               the last cells of every chunk so far

A piece knows the log-sum-exp of its scores, so that pieces are computed apart, a few blocks at a time, and
then weighed into one softmax. The plain reference is dense attention under the pattern's mask.
B batch, H heads, T tokens, D size of a head; n blocks of b queries and m keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.kernels.partial_attention import Kept, attend, attend_back, bias_of, least, precise
from qkv.spec import Banded, ByHead, Chunk, Either, Local, Pattern, Strided, Summary

WIDE = 512  # queries of a block: wide ones read fewer keys twice, narrow ones fewer keys in vain
ROOM = 3 << 24  # bytes of masks and of gradients of keys at a time
Visible = Callable[[Pattern, Tensor, Tensor], Tensor]  # (rule, q (1, n, b), k (B|1, n, m)) -> (B|1, n, b, m)


@dataclass(frozen=True)
class Piece:
    rule: Pattern
    before: tuple[Pattern, ...]  # pieces already counted: what they see is left out here
    form: str  # window, stride or cells
    q: Tensor  # (1, n, b) query indices, each once; past the end of the row: no query
    k: Tensor  # (B|1, n, m) key indices; outside the row: no key
    left: int = 0  # a window begins so many keys before its block

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.q.shape[1], self.q.shape[2], self.k.shape[2]

    def queries(self, x: Tensor) -> Tensor:
        """(B, L, H, D), L being at least n*b -> (B, n, H, b, D), a view."""
        n, b, _ = self.sizes
        if self.form == "stride":  # every n-th token is of one block
            return x[:, : n * b].unflatten(1, (b, n)).permute(0, 2, 3, 1, 4)
        return x[:, : n * b].unflatten(1, (n, b)).transpose(2, 3)

    def keys(self, x: Tensor, start: int, stop: int) -> Tensor:
        """The keys of these blocks out of a pool (B, L, H, D) -> (B * blocks, H, m, D)."""
        if self.form == "stride":
            return flat(self.queries(x)[:, start:stop])
        if self.form == "cells":
            return flat(x[:, None, : self.near(stop)].transpose(2, 3).expand(-1, stop - start, -1, -1, -1))
        (low, high), m, b = self.span(start, stop), self.k.shape[2], self.q.shape[2]
        inside = x[:, max(low, 0) : high]
        short = (max(-low, 0), high - max(low, 0) - inside.shape[1])
        inside = F.pad(inside, (0, 0, 0, 0, *short)) if any(short) else inside
        return flat(inside.unfold(1, m, b).transpose(-1, -2))

    def add_keys(self, into: Tensor, x: Tensor, start: int, stop: int) -> None:
        """The way back of `keys`: adds (B, blocks, H, m, D) to where they came from."""
        if self.form == "stride":
            self.queries(into)[:, start:stop] += x
        elif self.form == "cells":
            into[:, : x.shape[3]] += x.sum(1, dtype=into.dtype).transpose(1, 2)
        else:
            (low, high), m, b = self.span(start, stop), self.k.shape[2], self.q.shape[2]
            sizes = [len(x), high - low, x.shape[2], x.shape[4]]
            x = torch.ops.aten.unfold_backward(x.transpose(-1, -2), sizes, 1, m, b)
            inside = into[:, max(low, 0) : high]
            inside += x[:, max(-low, 0) :][:, : inside.shape[1]]

    def pool(self, x: Tensor) -> Tensor:
        """What `keys` reads: all of x, or the cells of it, copied once."""
        return at(x, self.k)[:, 0] if self.form == "cells" else x

    def basin(self, x: Tensor) -> Tensor:
        """Where gradients of keys gather: x itself, or for cells, which many blocks see, a finer one."""
        if self.form != "cells":
            return x
        return torch.zeros(len(x), self.k.shape[2], *x.shape[2:], dtype=precise(x.dtype), device=x.device)

    def pour(self, basin: Tensor, into: Tensor) -> None:
        """Adds a basin of its own to where the cells lie."""
        if self.form == "cells":
            index = self.k[:, 0, :, None, None].expand(len(into), -1, *into.shape[2:])
            into.scatter_add_(1, index, basin.to(into.dtype))

    def bias(self, seen: Tensor, start: int, stop: int, q: Tensor) -> Tensor:
        """(B|1, n, b, m) -> (B * blocks, 1, b, m) of these blocks, as a kernel adds it."""
        seen = seen[:, start:stop, :, : self.near(stop)].expand(len(q), -1, -1, -1)
        return bias_of(flat(seen)[:, None], q.dtype)

    def near(self, stop: int) -> int:
        """Keys that blocks up to `stop` may see: of cells, those that came so far."""
        m = self.k.shape[2]
        if not isinstance(self.rule, Summary):
            return m
        return min(most_cells(self.rule, stop * self.q.shape[2]), m)

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """The indices of the keys of a window's blocks, from and up to."""
        b, m = self.q.shape[2], self.k.shape[2]
        return start * b - self.left, (stop - 1) * b - self.left + m

    def groups(self, q: Tensor) -> Iterator[tuple[int, int]]:
        """Blocks that are computed together, from and up to."""
        room = len(q) * (self.q.shape[2] + 2 * q.shape[2:].numel()) * self.k.shape[2] * q.element_size()
        each = max(1, ROOM // room)
        each = min(each, -(-self.sizes[0] // 4)) if self.form == "cells" else each  # early ones see fewer
        yield from ((i, min(i + each, self.sizes[0])) for i in range(0, self.sizes[0], each))


def few_keys(pattern: Pattern) -> bool:
    """Is this a pattern that pieces can be made of?"""
    match pattern:
        case Either(one, two):
            return few_keys(one) and few_keys(two)
        case ByHead(rules):
            return all(map(few_keys, rules))
    return isinstance(pattern, Banded | Local | Strided | Chunk | Summary)


def at(x: Tensor, index: Tensor) -> Tensor:
    """(B|1, T, ...) at the indices (B|1, n, m) of each row, or of all -> (B, n, m, ...)."""
    if len(index) == 1:
        return x[:, index[0]]
    rows = torch.arange(len(index), device=index.device)[:, None, None]
    return x.expand(len(index), *x.shape[1:])[rows, index]


def pieces(pattern: Pattern, positions: Tensor) -> list[Piece]:
    """The pieces of a pattern over rows whose tokens have these positions (B|1, T), -1 where none stands."""
    length, device = positions.shape[1], positions.device
    wide = max(16, min(WIDE, length // 8))

    def blocks(count: int, start: int, stop: int, step: int = 1, skip: int = 1) -> Tensor:
        lead = torch.arange(count, device=device)[:, None] * skip
        return (lead + torch.arange(start, stop, device=device) * step)[None]

    match pattern:
        case Banded(width) | Local(width) | Chunk(width):  # a chunk lies among the last `width` tokens
            size = max(width, wide)
            ahead = width if isinstance(pattern, Local) else 0
            count = -(-length // size)
            q, k = blocks(count, 0, size, skip=size), blocks(count, -width, size + ahead, skip=size)
            return [Piece(pattern, (), "window", q, k, left=width)]
        case Strided(stride):
            q = blocks(stride, 0, -(-length // stride), step=stride)
            return [Piece(pattern, (), "stride", q, q)]
        case Summary(stride, cells):  # where they lie depends on where each text begins
            cell = (positions >= 0) & (positions % stride >= stride - cells)
            most = min(most_cells(pattern, length), length)
            q = blocks(-(-length // wide), 0, wide, skip=wide)
            k = cell.int().argsort(dim=1, descending=True, stable=True)[:, None, :most]
            return [Piece(pattern, (), "cells", q, k)]
        case Either(one, two):
            first, second = pieces(one, positions), pieces(two, positions)
            seen = tuple(piece.rule for piece in first)
            return first + [replace(piece, before=piece.before + seen) for piece in second]
    raise TypeError(f"{pattern} has no pieces")


def most_cells(rule: Summary, tokens: int) -> int:
    """No row of so many tokens has more summary cells, however many texts are in it."""
    return -(-tokens * rule.cells // rule.stride) + rule.cells


class Cut(NamedTuple):
    """What every layer asks for, made once for a pattern over the rows of a batch."""

    parts: list[Piece]
    seen: list[Tensor]  # (B|1, n, b, m) of every piece


def cut(pattern: Pattern, visible: Visible, positions: Tensor) -> Cut:
    """Pieces and their masks over rows whose tokens have these positions (B|1, T), -1 where none stands."""
    parts = pieces(pattern, positions)
    return Cut(parts, [shown(part, visible, positions.shape[1]) for part in parts])


def shown(piece: Piece, visible: Visible, length: int) -> Tensor:
    """(B|1, n, b, m) true where a query of a block sees a key of it that no piece before has counted."""
    q, k = piece.q.clamp(max=length - 1), piece.k.clamp(0, length - 1)
    seen = visible(piece.rule, q, k) & ((piece.k >= 0) & (piece.k < length))[:, :, None]
    for rule in piece.before:
        seen = seen & ~visible(rule, q, k)
    return seen


def sparse_attention(
    q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, cuts: Callable[[Pattern], Cut], scale: float,
    drop: float = 0.0,
) -> Tensor:  # fmt: skip
    """softmax(qk' * scale) v over the keys the pattern shows; q, k, v are (B, H, T, D)."""
    if isinstance(pattern, ByHead):
        groups = {rule: [i for i, r in enumerate(pattern.rules) if r == rule] for rule in pattern.rules}
        outs = [
            sparse_attention(q[:, own], k[:, own], v[:, own], rule, cuts, scale, drop)
            for rule, own in groups.items()
        ]
        back = torch.tensor([i for own in groups.values() for i in own], device=q.device).argsort()
        return torch.cat(outs, dim=1)[:, back]
    parts, seen = cuts(pattern)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # (B, T, H, D)
    out: Tensor = Joined.apply(q, k, v, scale, drop, parts, *seen)  # type: ignore[no-untyped-call]
    return out.transpose(1, 2)


class Joined(torch.autograd.Function):
    """Several pieces under one softmax; q, k, v and out are (B, T, H, D)."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, drop: float, parts: list[Piece],
        *seen: Tensor,
    ) -> Tensor:  # fmt: skip
        length, whole = q.shape[1], max(part.q[0].numel() for part in parts)
        q, k, v = (F.pad(x, (0, 0, 0, 0, 0, whole - length)) if whole > length else x for x in (q, k, v))
        out = torch.zeros_like(q, memory_format=torch.contiguous_format)
        lse = torch.full((*q.shape[:3], 1), -torch.inf, dtype=precise(q.dtype), device=q.device)
        kept: list[Kept] = []
        for part, mask in zip(parts, seen, strict=True):
            ks, vs, outs, sums = part.pool(k), part.pool(v), part.queries(out), part.queries(lse)
            for i, j in part.groups(q):
                qs, among = flat(part.queries(q)[:, i:j]), part.bias(mask, i, j, q)
                one, its, more = attend(qs, part.keys(ks, i, j), part.keys(vs, i, j), among, scale, drop)
                one, its = (x.unflatten(0, (len(q), -1)) for x in (one, its[..., None]))
                join(outs[:, i:j], sums[:, i:j], one, its, first=part is parts[0])
                kept.append(more)
        # A query that sees nobody weighs nothing on the way back.
        lse.masked_fill_(lse < least(q.dtype) / 2, torch.inf)
        ctx.save_for_backward(q, k, v, out, lse, *seen, *(x for more in kept for x in more))
        ctx.settings, ctx.each = (length, scale, drop, parts), len(kept[0])
        return out[:, :length]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        length, scale, drop, parts = ctx.settings
        q, k, v, out, lse, *rest = ctx.saved_tensors
        seen, kept = rest[: len(parts)], iter(rest[len(parts) :])
        grad = F.pad(grad, (0, 0, 0, 0, 0, q.shape[1] - length)) if q.shape[1] > length else grad
        dq, dk, dv = (torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
        for part, mask in zip(parts, seen, strict=True):
            ks, vs, into_k, into_v = part.pool(k), part.pool(v), part.basin(dk), part.basin(dv)
            for i, j in part.groups(q):
                up, qs, outs, sums = (flat(part.queries(x)[:, i:j]) for x in (grad, q, out, lse))
                more = tuple(next(kept) for _ in range(ctx.each))
                sides, among = (part.keys(ks, i, j), part.keys(vs, i, j)), part.bias(mask, i, j, q)
                found = attend_back(up, qs, *sides, among, outs, sums[..., 0], more, scale, drop)
                to_q, to_k, to_v = (x.unflatten(0, (len(q), -1)) for x in found)
                part.queries(dq)[:, i:j] += to_q
                part.add_keys(into_k, to_k, i, j)
                part.add_keys(into_v, to_v, i, j)
            part.pour(into_k, dk)
            part.pour(into_v, dv)
        return dq[:, :length], dk[:, :length], dv[:, :length], *(None,) * (3 + len(parts))


def flat(x: Tensor) -> Tensor:
    """(B, n, ...) -> (B*n, ...)."""
    return x.flatten(0, 1)


def join(out: Tensor, lse: Tensor, more: Tensor, its: Tensor, first: bool) -> None:
    """Weighs a further piece into what is there, in place."""
    if first:
        out.copy_(more)
        lse.copy_(its)
        return
    both = torch.logaddexp(lse, its)
    out.copy_(out * (lse - both).exp() + more * (its - both).exp())
    lse.copy_(both)
