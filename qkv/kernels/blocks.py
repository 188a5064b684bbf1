"""Attention over few keys: local, banded, strided and fixed patterns without a T x T tensor.

A pattern is cut into pieces. In a piece, queries are grouped into blocks that share their keys:

    banded    q |0123|4567|    k |..0123|234567|          a block and what lies just before it
    strided   q |048|159|..    k the same                 one block a remainder
    summary   q |0123456789|   k |3|7|                    the last cells of every chunk

Scores of all pieces are laid side by side and share one softmax. The plain reference is dense attention under
the pattern's mask. B batch, H heads, T tokens, D size of a head; n blocks of b queries and m keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from qkv.spec import Banded, ByHead, Chunk, Either, Local, Pattern, Strided, Summary

WIDE = 512  # queries of a block that share the cells of a fixed pattern
SCORES = 1 << 27  # bytes of them at a time; beyond, heads go one after another
Visible = Callable[[Pattern, Tensor, Tensor], Tensor]  # (rule, q (1, n, b), k (B|1, n, m)) -> (B|1, n, b, m)


@dataclass(frozen=True)
class Piece:
    rule: Pattern
    before: tuple[Pattern, ...]  # pieces already counted: what they see is left out here
    q: Tensor  # (1, n, b) query indices, each once; past the end of the row: no query
    k: Tensor  # (B|1, n, m) key indices; outside the row: no key
    form: str  # how blocks are cut without an index: "window", "stride", or "all" queries and picked keys


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


def pieces(pattern: Pattern, positions: Tensor, least: int = 16) -> list[Piece]:
    """The pieces of a pattern over rows whose tokens have these positions (B|1, T), -1 where none stands.

    Blocks of a window have `least` queries: wide ones copy fewer keys, narrow ones make fewer scores."""
    length, device = positions.shape[1], positions.device

    def blocks(count: int, start: int, stop: int, step: int = 1, skip: int = 1) -> Tensor:
        lead = torch.arange(count, device=device)[:, None] * skip
        return (lead + torch.arange(start, stop, device=device) * step)[None]

    match pattern:
        case Banded(width) | Local(width) | Chunk(width):  # a chunk lies among the last `width` tokens
            size = max(width, least)
            ahead = width if isinstance(pattern, Local) else 0
            count = -(-length // size)
            q, k = blocks(count, 0, size, skip=size), blocks(count, -width, size + ahead, skip=size)
            form = "window"
        case Strided(stride):
            q = k = blocks(stride, 0, -(-length // stride), step=stride)
            form = "stride"
        case Summary(stride, cells):  # where they lie depends on where each text begins
            cell = (positions >= 0) & (positions % stride >= stride - cells)
            most = min(-(-length * cells // stride) + cells, length)
            q, form = blocks(1, 0, length), "all"
            k = cell.int().argsort(dim=1, descending=True, stable=True)[:, None, :most]
        case Either(one, two):
            first, second = pieces(one, positions), pieces(two, positions)
            seen = tuple(piece.rule for piece in first)
            return first + [replace(piece, before=piece.before + seen) for piece in second]
        case _:
            raise TypeError(f"{pattern} has no pieces")
    return [Piece(pattern, (), q, k, form)]


def sparse_attention(
    q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, visible: Visible, scale: float, drop: float = 0.0,
    positions: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """softmax(qk' * scale) v over the keys the pattern shows; q, k, v are (B, H, T, D)."""
    positions = torch.arange(q.shape[2], device=q.device)[None] if positions is None else positions
    if isinstance(pattern, ByHead):
        groups = {rule: [i for i, r in enumerate(pattern.rules) if r == rule] for rule in pattern.rules}
        outs = [
            sparse_attention(q[:, own], k[:, own], v[:, own], rule, visible, scale, drop, positions)
            for rule, own in groups.items()
        ]
        back = torch.tensor([i for own in groups.values() for i in own], device=q.device).argsort()
        return torch.cat(outs, dim=1)[:, back]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # (B, T, H, D)
    match pattern:
        case Either(Chunk() | Banded() as near, Summary() as far) | Either(
            Summary() as far, Banded() as near
        ):
            return _beside(q, k, v, near, far, positions, visible, scale, drop).transpose(1, 2)
    parts = pieces(pattern, positions)
    if len(parts) == 1:
        parts = pieces(
            pattern, positions, max(16, min(WIDE, q.shape[1] // 8))
        )  # a fused kernel keeps no scores
        return _one(q, k, v, parts[0], visible, scale, drop).transpose(1, 2)
    seen = [_seen(piece, visible, q.shape[1])[:, :, None] for piece in parts]  # (B|1, n, 1, b, m)
    room = (
        q.shape[0] * q.shape[1] * sum(piece.k.shape[2] for piece in parts) * q.element_size()
    )  # for one head
    group = max(1, SCORES // room)
    if group >= q.shape[2]:
        return _joined(q, k, v, parts, seen, scale, drop).transpose(1, 2)
    sides = zip(
        *(x.split(group, dim=2) for x in (q, k, v)), strict=True
    )  # few heads at a time, made anew backwards
    again = partial(checkpoint, _joined, use_reentrant=False, preserve_rng_state=drop > 0)
    outs = [again(*side, parts, seen, scale, drop) for side in sides]
    return torch.cat(outs, dim=2).transpose(1, 2)


def _one(
    q: Tensor, k: Tensor, v: Tensor, piece: Piece, visible: Visible, scale: float, drop: float
) -> Tensor:
    """A pattern of one piece is plain attention within blocks."""
    batch, length = q.shape[:2]
    qs, ks, vs = (x.flatten(0, 1) for x in (_queries(q, piece), _keys(k, piece), _keys(v, piece)))
    seen = _seen(piece, visible, length).expand(batch, -1, -1, -1).flatten(0, 1)[:, None]  # (B*n, 1, b, m)
    bias = torch.zeros_like(seen, dtype=q.dtype).masked_fill(~seen, torch.finfo(q.dtype).min)
    out = F.scaled_dot_product_attention(qs, ks, vs, attn_mask=bias, scale=scale, dropout_p=drop)
    return _row(out.unflatten(0, (batch, -1)), piece, length)


def _beside(
    q: Tensor, k: Tensor, v: Tensor, near: Chunk | Banded, far: Summary, positions: Tensor, visible: Visible,
    scale: float, drop: float,
) -> Tensor:  # fmt: skip
    """A window and cells that all see: wide blocks, whose keys are the window's, then cells outside it."""
    (batch, length), whole = q.shape[:2], near | far
    width = near.stride if isinstance(near, Chunk) else near.width
    wide = replace(pieces(Banded(width), positions, max(16, min(WIDE, length // 8)))[0], rule=whole)
    n, b = wide.q.shape[1:]
    start = wide.q[0, :, 0]
    cells = pieces(far, positions)[0].k.expand(-1, n, -1)  # (B|1, n, m)
    outside = (cells < start[:, None] - width) | (cells >= start[:, None] + b)
    queries = wide.q.clamp(max=length - 1)
    shown = [_seen(wide, visible, length), visible(far, queries, cells) & outside[:, :, None]]
    size = max(len(part) for part in shown)
    seen = torch.cat([part.expand(size, -1, -1, -1) for part in shown], dim=-1)  # (B|1, n, b, m)
    seen = seen.expand(batch, -1, -1, -1).flatten(0, 1)[:, None]
    bias = torch.zeros_like(seen, dtype=q.dtype).masked_fill(~seen, torch.finfo(q.dtype).min)
    ks, vs = (torch.cat([_keys(x, wide), at(x, cells).transpose(2, 3)], dim=3).flatten(0, 1) for x in (k, v))
    out = F.scaled_dot_product_attention(
        _queries(q, wide).flatten(0, 1), ks, vs, attn_mask=bias, scale=scale, dropout_p=drop
    )
    return _row(out.unflatten(0, (batch, -1)), wide, length)


def _joined(
    q: Tensor, k: Tensor, v: Tensor, parts: list[Piece], seen: list[Tensor], scale: float, drop: float
) -> Tensor:
    """Scores of several pieces side by side under one softmax."""
    length, scores, least = q.shape[1], [], torch.finfo(q.dtype).min
    for piece, shown in zip(parts, seen, strict=True):
        score = _queries(q * scale, piece) @ _keys(k, piece).transpose(-1, -2)  # (B, n, H, b, m)
        scores.append(_row(score.masked_fill(~shown, least), piece, length))  # (B, T, H, m)
    weights = torch.cat(scores, dim=-1).softmax(-1)
    weights = F.dropout(weights, drop) if drop else weights
    shares = weights.split([score.shape[-1] for score in scores], dim=-1)
    outs = [_queries(share, piece) @ _keys(v, piece) for piece, share in zip(parts, shares, strict=True)]
    rows = [_row(out, piece, length) for piece, out in zip(parts, outs, strict=True)]
    return sum(rows[1:], rows[0])


def _queries(x: Tensor, piece: Piece) -> Tensor:
    """(B, T, H, D) -> (B, n, H, b, D)."""
    n, b = piece.q.shape[1:]
    x = F.pad(x, (0, 0, 0, 0, 0, n * b - x.shape[1]))
    if piece.form == "stride":  # every n-th token is of one block
        return x.unflatten(1, (b, n)).permute(0, 2, 3, 1, 4)
    return x.unflatten(1, (n, b)).transpose(2, 3)


def _keys(x: Tensor, piece: Piece) -> Tensor:
    """(B, T, H, D) -> (B, n, H, m, D)."""
    if piece.form == "stride":
        return _queries(x, piece)
    if piece.form == "all":
        return at(x, piece.k).transpose(2, 3)
    n, b, m = *piece.q.shape[1:], piece.k.shape[2]
    left = (m - b) // 2 if isinstance(piece.rule, Local) else m - b
    x = F.pad(x, (0, 0, 0, 0, left, (n - 1) * b + m - left - x.shape[1]))
    return x.unfold(1, m, b).transpose(-1, -2)


def _row(x: Tensor, piece: Piece, length: int) -> Tensor:
    """(B, n, H, b, D) -> (B, T, H, D)."""
    x = x.permute(0, 3, 1, 2, 4) if piece.form == "stride" else x.transpose(2, 3)
    return x.flatten(1, 2)[:, :length]


def _seen(piece: Piece, visible: Visible, length: int) -> Tensor:
    q, k = piece.q.clamp(max=length - 1), piece.k.clamp(0, length - 1)
    seen = visible(piece.rule, q, k) & ((piece.k >= 0) & (piece.k < length))[:, :, None]
    for rule in piece.before:
        seen = seen & ~visible(rule, q, k)
    return seen
