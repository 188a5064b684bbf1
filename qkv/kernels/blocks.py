"""Attention over few keys: local, banded, strided and fixed patterns without a T x T tensor.

A pattern is cut into pieces. In a piece, queries are grouped into blocks that share their keys:

    banded    q |0123|4567|    k |..0123|234567|          a block and what lies just before it
    strided   q |048|159|..    k the same                 one block a remainder
    summary   q |0123456789|   k |3|7|                    the last cells of every chunk

Scores of all pieces are laid side by side and share one softmax. The plain reference is dense attention under
the pattern's mask. B batch, H heads, T tokens, D size of a head; n blocks of b queries and m keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.spec import Banded, ByHead, Chunk, Either, Local, Pattern, Strided, Summary

Visible = Callable[[Pattern, Tensor, Tensor], Tensor]  # (rule, q (1, n, b), k (B|1, n, m)) -> (B|1, n, b, m)


@dataclass(frozen=True)
class Piece:
    rule: Pattern
    before: tuple[Pattern, ...]  # pieces already counted: what they see is left out here
    q: Tensor  # (1, n, b) query indices, each once; past the end of the row: no query
    k: Tensor  # (B|1, n, m) key indices; outside the row: no key


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

    def blocks(count: int, start: int, stop: int, step: int = 1, skip: int = 1) -> Tensor:
        lead = torch.arange(count, device=device)[:, None] * skip
        return (lead + torch.arange(start, stop, device=device) * step)[None]

    match pattern:
        case Banded(width) | Local(width) | Chunk(width):  # a chunk lies among the last `width` tokens
            size = max(width, 16)
            ahead = width if isinstance(pattern, Local) else 0
            count = -(-length // size)
            q, k = blocks(count, 0, size, skip=size), blocks(count, -width, size + ahead, skip=size)
        case Strided(stride):
            q = k = blocks(stride, 0, -(-length // stride), step=stride)
        case Summary(stride, cells):  # where they lie depends on where each text begins
            cell = (positions >= 0) & (positions % stride >= stride - cells)
            most = min(-(-length * cells // stride) + cells, length)
            q, k = (
                blocks(1, 0, length),
                cell.int().argsort(dim=1, descending=True, stable=True)[:, None, :most],
            )
        case Either(one, two):
            first, second = pieces(one, positions), pieces(two, positions)
            seen = tuple(piece.rule for piece in first)
            return first + [Piece(piece.rule, piece.before + seen, piece.q, piece.k) for piece in second]
        case _:
            raise TypeError(f"{pattern} has no pieces")
    return [Piece(pattern, (), q, k)]


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
    parts = pieces(pattern, positions)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # (B, T, H, D)
    out = (
        _one(q, k, v, parts[0], visible, scale, drop)
        if len(parts) == 1
        else _joined(q, k, v, parts, visible, scale, drop)
    )
    return out.transpose(1, 2)


def _one(
    q: Tensor, k: Tensor, v: Tensor, piece: Piece, visible: Visible, scale: float, drop: float
) -> Tensor:
    """A pattern of one piece is plain attention within blocks."""
    batch, length = q.shape[:2]
    qs, ks, vs = (_pick(x, i).flatten(0, 1) for x, i in ((q, piece.q), (k, piece.k), (v, piece.k)))
    seen = _seen(piece, visible, length).expand(batch, -1, -1, -1).flatten(0, 1)[:, None]  # (B*n, 1, b, m)
    bias = torch.zeros_like(seen, dtype=q.dtype).masked_fill(~seen, torch.finfo(q.dtype).min)
    out = F.scaled_dot_product_attention(qs, ks, vs, attn_mask=bias, scale=scale, dropout_p=drop)
    return _unpick(out.unflatten(0, (batch, -1)), piece, length)


def _joined(
    q: Tensor, k: Tensor, v: Tensor, parts: list[Piece], visible: Visible, scale: float, drop: float
) -> Tensor:
    """Scores of several pieces side by side under one softmax."""
    length, scores = q.shape[1], []
    for piece in parts:
        qs, ks = _pick(q, piece.q), _pick(k, piece.k)  # (B, n, H, b, D), (B, n, H, m, D)
        seen = _seen(piece, visible, length)[:, :, None]  # (B|1, n, 1, b, m)
        score = (qs * scale @ ks.transpose(-1, -2)).masked_fill(~seen, torch.finfo(q.dtype).min)
        scores.append(_unpick(score, piece, length))  # (B, T, H, m)
    weights = F.dropout(torch.cat(scores, dim=-1).softmax(-1), drop)
    out = torch.zeros((), dtype=q.dtype, device=q.device)
    for piece, share in zip(parts, weights.split([score.shape[-1] for score in scores], dim=-1), strict=True):
        out = out + _unpick(_pick(share, piece.q) @ _pick(v, piece.k), piece, length)
    return out


def _pick(x: Tensor, index: Tensor) -> Tensor:
    """(B, T, H, D) at index (B|1, n, m) -> (B, n, H, m, D)."""
    return at(x, index.clamp(0, x.shape[1] - 1)).transpose(2, 3)


def _unpick(x: Tensor, piece: Piece, length: int) -> Tensor:
    """(B, n, H, b, D) of the blocks of queries -> (B, T, H, D)."""
    flat = piece.q.flatten()
    places = torch.zeros(length + 1, dtype=torch.long, device=flat.device)
    places[flat.clamp(max=length)] = torch.arange(len(flat), device=flat.device)
    return x.transpose(2, 3).flatten(1, 2)[:, places[:length]]


def _seen(piece: Piece, visible: Visible, length: int) -> Tensor:
    q, k = piece.q.clamp(max=length - 1), piece.k.clamp(0, length - 1)
    seen = visible(piece.rule, q, k) & ((piece.k >= 0) & (piece.k < length))[:, :, None]
    for rule in piece.before:
        seen = seen & ~visible(rule, q, k)
    return seen
