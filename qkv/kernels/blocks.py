"""Attention over few keys: local, banded, strided and fixed patterns without a T x T tensor.

A pattern is cut into pieces. In a piece, queries are grouped into blocks that share their keys:

    banded    q |0123|4567|    k |..0123|234567|          a block and what lies just before it
    strided   q |048|159|..    k the same                 one block a remainder
    summary   q |0123456789|   k |3|7|                     the last cells of every chunk

Scores of all pieces are laid side by side and share one softmax. The plain reference is dense attention under
the pattern's mask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.spec import Banded, ByHead, Chunk, Either, Local, Pattern, Strided, Summary

Visible = Callable[[Pattern, Tensor, Tensor], Tensor]  # (rule, q index (n, b), k index (n, m)) -> (B|1, n, b, m)


@dataclass(frozen=True)
class Piece:
    rule: Pattern
    before: tuple[Pattern, ...]  # pieces already counted: what they see is left out here
    q: Tensor  # (n, b) query indices, each once; past the end of the row: no query
    k: Tensor  # (n, m) key indices; outside the row: no key


def few_keys(pattern: Pattern) -> bool:
    """Is this a pattern that pieces can be made of?"""
    parts = _parts(pattern)
    return len(parts) > 0 and all(isinstance(p, Banded | Local | Strided | Chunk | Summary) for p in parts)


def absolute(pattern: Pattern) -> bool:
    """Does the rule depend on where a row begins, and not on distance alone?"""
    return any(isinstance(part, Chunk | Summary) for part in _parts(pattern))


def _parts(pattern: Pattern) -> list[Pattern]:
    match pattern:
        case Either(one, two):
            return _parts(one) + _parts(two)
        case ByHead(rules):
            return [part for rule in rules for part in _parts(rule)]
    return [pattern]


def pieces(pattern: Pattern, length: int, device: torch.device) -> list[Piece]:
    """The pieces of a pattern over a row of `length`."""

    def blocks(count: int, start: int, stop: int, step: int = 1, skip: int = 1) -> Tensor:
        lead = torch.arange(count, device=device)[:, None] * skip
        return lead + torch.arange(start, stop, device=device) * step

    match pattern:
        case Banded(width) | Local(width):
            size = max(width, 16)
            ahead = width if isinstance(pattern, Local) else 0
            count = -(-length // size)
            q, k = blocks(count, 0, size, skip=size), blocks(count, -width, size + ahead, skip=size)
        case Strided(stride):
            q = k = blocks(stride, 0, -(-length // stride), step=stride)
        case Chunk(stride):
            q = k = blocks(-(-length // stride), 0, stride, skip=stride)
        case Summary(stride, cells):
            q = blocks(1, 0, length)
            k = blocks(-(-length // stride), stride - cells, stride, skip=stride).reshape(1, -1)
        case Either(one, two):
            first, second = pieces(one, length, device), pieces(two, length, device)
            seen = tuple(p.rule for p in first)
            return first + [Piece(p.rule, p.before + seen, p.q, p.k) for p in second]
        case _:
            raise TypeError(f"{pattern} has no pieces")
    return [Piece(pattern, (), q, k)]


def sparse_attention(
    q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, visible: Visible, scale: float, drop: float = 0.0
) -> Tensor:
    """softmax(qk' * scale) v over the keys the pattern shows; q, k, v are (B, H, T, D)."""
    if isinstance(pattern, ByHead):
        groups = {rule: [i for i, r in enumerate(pattern.rules) if r == rule] for rule in pattern.rules}
        outs = [
            sparse_attention(q[:, own], k[:, own], v[:, own], rule, visible, scale, drop)
            for rule, own in groups.items()
        ]
        back = torch.tensor([i for own in groups.values() for i in own], device=q.device).argsort()
        return torch.cat(outs, dim=1)[:, back]
    length = q.shape[2]
    parts = pieces(pattern, length, q.device)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # (B, T, H, D)
    if len(parts) == 1:
        return _one(q, k, v, parts[0], visible, scale, drop)
    scores, places = [], []
    for piece in parts:
        qs, ks = _pick(q, piece.q), _pick(k, piece.k)  # (B, n, H, b, D), (B, n, H, m, D)
        seen = _seen(piece, visible, length)[:, :, None]  # (B|1, n, 1, b, m)
        score = (qs * scale @ ks.transpose(-1, -2)).masked_fill(~seen, torch.finfo(q.dtype).min)
        place = _places(piece.q, length)
        scores.append(score.transpose(2, 3).flatten(1, 2)[:, place])  # (B, T, H, m)
        places.append(place)
    weights = F.dropout(torch.cat(scores, dim=-1).softmax(-1), drop)
    out = torch.zeros_like(q[..., : v.shape[-1]])
    at = 0
    for piece, place in zip(parts, places, strict=True):
        n, b = piece.q.shape
        share = weights[..., at : at + piece.k.shape[1]]  # (B, T, H, m)
        block = share[:, piece.q.clamp(max=length - 1)].transpose(2, 3)  # (B, n, H, b, m)
        part = block @ _pick(v, piece.k)  # (B, n, H, b, D)
        out = out + part.transpose(2, 3).flatten(1, 2)[:, place]
        at += piece.k.shape[1]
    return out.transpose(1, 2)


def _one(
    q: Tensor, k: Tensor, v: Tensor, piece: Piece, visible: Visible, scale: float, drop: float
) -> Tensor:
    """A pattern of one piece is plain attention within blocks."""
    batch, length = q.shape[:2]
    qs, ks, vs = (_pick(x, i).flatten(0, 1) for x, i in ((q, piece.q), (k, piece.k), (v, piece.k)))
    seen = _seen(piece, visible, length)
    seen = seen.expand(batch, -1, -1, -1).flatten(0, 1)[:, None]  # (B*n, 1, b, m)
    bias = torch.zeros_like(seen, dtype=q.dtype).masked_fill(~seen, torch.finfo(q.dtype).min)
    out = F.scaled_dot_product_attention(qs, ks, vs, attn_mask=bias, scale=scale, dropout_p=drop)
    out = out.unflatten(0, (batch, -1)).transpose(2, 3).flatten(1, 2)  # (B, n*b, H, D)
    return out[:, _places(piece.q, length)].transpose(1, 2)


def _pick(x: Tensor, index: Tensor) -> Tensor:
    """(B, T, H, D) at index (n, m) -> (B, n, H, m, D)."""
    return x[:, index.clamp(0, x.shape[1] - 1)].transpose(2, 3)


def _seen(piece: Piece, visible: Visible, length: int) -> Tensor:
    q, k = piece.q.clamp(max=length - 1), piece.k.clamp(0, length - 1)
    seen = visible(piece.rule, q, k) & ((piece.k >= 0) & (piece.k < length))[None, :, None]
    for rule in piece.before:
        seen = seen & ~visible(rule, q, k)
    return seen


def _places(index: Tensor, length: int) -> Tensor:
    """Where each query of the row stands in the blocks, flattened."""
    flat = index.flatten()
    places = torch.zeros(length + 1, dtype=torch.long, device=index.device)
    places[flat.clamp(max=length)] = torch.arange(len(flat), device=index.device)
    return places[:length]
