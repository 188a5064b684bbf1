"""Heads: what is read off the last states. One class serves nearly all; two have mathematics of their own."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.nn.batch import Batch, Rows
from qkv.nn.parts import Act, Adaptive, make_norm
from qkv.spec import AdaptiveHead, BeamSpan, Head

Towers = Mapping[str, nn.Module | None]


class Reader(nn.Module):
    """take states -> drop -> dense, act, norm -> drop -> project."""

    def __init__(self, head: Head, width: int) -> None:
        super().__init__()
        self.head, inner = head, head.dense or width
        self.dense = nn.Linear(width, inner, bias=head.dense_bias) if head.dense else nn.Identity()
        self.act, self.norm = Act(head.act), make_norm(head.norm, inner)
        self.drop, self.mid_drop = nn.Dropout(head.drop), nn.Dropout(head.mid_drop)
        self.out = nn.Linear(inner, head.size, bias=bool(head.bias)) if head.size else nn.Identity()
        if head.bias == "fixed" and isinstance(self.out, nn.Linear):
            self.out.bias.requires_grad_(False)

    def tie(self, towers: Towers) -> None:
        if self.head.tied:
            self.out.weight = towers[self.head.tied].embed.tokens.weight  # type: ignore[union-attr]

    def forward(self, out: dict[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        x = self.drop(take(self.head, out, batch))
        x = self.out(self.mid_drop(self.norm(self.act(self.dense(x)))) * self.head.scale)
        if len(self.head.out) == 1:
            return {self.head.out[0]: x.squeeze(-1) if self.head.flat else x}
        return dict(zip(self.head.out, x.unbind(-1), strict=True))


def take(head: Head, out: dict[str, Tensor], batch: Batch) -> Tensor:
    """The states a head reads: (B, T, W) for all of them, else (B, W)."""
    if head.take in out:
        return out[head.take]
    hidden, rows = out["hidden"], batch.target if batch.target is not None else batch.rows
    if head.take == "all":
        return hidden
    if head.take == "first":
        return hidden[:, 0] if rows is None or rows.seat is None else pick(hidden, rows.seat.int().argmax(1))
    if head.take == "rest":
        return hidden[:, 1:].mean(1)
    assert rows is not None
    if head.take == "mean":
        if rows.seat is None:
            return hidden.mean(1)
        seat = rows.seat[..., None].to(hidden.dtype)
        return (hidden * seat).sum(1) / seat.sum(1)
    if head.take == "choice" and batch.choice is not None:
        return pick(hidden, batch.choice)
    if head.take in ("last", "choice"):
        return hidden[:, -1] if rows.seat is None else pick(hidden, last(rows.seat))
    source = batch.rows or rows
    assert source.ids is not None
    if head.take == "top":  # the largest id ends the text (CLIP as first published)
        return pick(hidden, source.ids.argmax(1))
    ends = source.ids == head.end
    return pick(hidden, ends.int().argmax(1) if head.take == "first end" else last(ends))


def pick(hidden: Tensor, index: Tensor) -> Tensor:
    """(B, T, W) at index (B,) -> (B, W)."""
    return hidden.gather(1, index[:, None, None].expand(-1, 1, hidden.shape[-1]))[:, 0]


def last(flags: Tensor) -> Tensor:
    """The index of the last true flag of each row."""
    return (flags * torch.arange(1, flags.shape[1] + 1, device=flags.device)).argmax(1)


class AdaptiveSoftmax(nn.Module):
    """Log-probabilities of all words: the head scores frequent words and bands, each band scores its words."""

    def __init__(self, head: AdaptiveHead, width: int) -> None:
        super().__init__()
        self.head = head
        shape = Adaptive(head.embed, width)  # the same bands as the embedding's
        self.edges, inner = shape.edges, head.embed.width
        sizes = [table.weight.shape for table in shape.tables]
        self.tables = nn.ModuleList(nn.Linear(size, count) for count, size in sizes)
        bands = len(self.edges) - 1
        widths = [sizes[min(i, len(sizes) - 1)][1] for i in range(bands)] if len(shape.projects) else []
        self.projects = nn.ModuleList(nn.Linear(size, width, bias=False) for size in widths)
        self.clusters = nn.Linear(inner, bands - 1) if bands > 1 and inner else None

    def tie(self, towers: Towers) -> None:
        tokens = towers["decoder"].embed.tokens  # type: ignore[union-attr]
        if self.head.tied:
            for mine, theirs in zip(self.tables, tokens.tables, strict=True):
                mine.weight = theirs.weight
        for i, tied in enumerate(self.head.tied_projects[: len(self.projects)]):
            if tied:
                self.projects[i].weight = tokens.projects[min(i, len(tokens.projects) - 1)].weight

    def forward(self, out: dict[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        x, parts = out["hidden"], []
        for i, (low, high) in enumerate(pairwise(self.edges)):
            own = self.tables[min(i, len(self.tables) - 1)]
            rows = slice(low, high) if len(self.tables) == 1 else slice(None)
            y = x @ self.projects[i].weight if len(self.projects) else x
            scores = F.linear(y, own.weight[rows], own.bias[rows])
            if i == 0 and self.clusters is not None:
                scores = torch.cat([scores, self.clusters(y)], dim=-1)
            scores = scores.log_softmax(-1)
            parts.append(scores if i == 0 else scores + parts[0][..., high0 + i - 1 : high0 + i])
            high0 = self.edges[1]
        parts[0] = parts[0][..., : self.edges[1]]
        return {"logits": torch.cat(parts, dim=-1)}


class SpanBeam(nn.Module):
    """XLNet's answer head: start (B, T), end (B, starts, T) for the best starts, and answerable (B,)."""

    def __init__(self, head: BeamSpan, width: int) -> None:
        super().__init__()
        self.head = head
        self.start = nn.Linear(width, 1)
        self.end_dense, self.end_out = nn.Linear(2 * width, width), nn.Linear(width, 1)
        self.end_norm = nn.LayerNorm(width, eps=head.eps)
        self.answer_dense, self.answer_out = nn.Linear(2 * width, width), nn.Linear(width, 1, bias=False)

    def tie(self, towers: Towers) -> None: ...

    def forward(self, out: dict[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        x, rows = out["hidden"], batch.rows
        assert isinstance(rows, Rows)
        start = self.start(x)[..., 0]  # (B, T)
        shares = (start if rows.seat is None else start.masked_fill(~rows.seat, torch.finfo(x.dtype).min)).softmax(-1)
        best = shares.topk(min(self.head.starts, x.shape[1]), dim=-1).indices  # (B, K)
        chosen = x.gather(1, best[..., None].expand(-1, -1, x.shape[-1]))[:, :, None].expand(-1, -1, x.shape[1], -1)
        both = torch.cat([x[:, None].expand_as(chosen), chosen], dim=-1)  # (B, K, T, 2W)
        end = self.end_out(self.end_norm(torch.tanh(self.end_dense(both))))[..., 0]
        first = torch.einsum("bt,btw->bw", shares, x)
        final = x[:, -1] if rows.seat is None else pick(x, last(rows.seat))
        answer = self.answer_out(torch.tanh(self.answer_dense(torch.cat([first, final], dim=-1))))
        return {"start": start, "end": end, "logits": answer[:, 0]}


def make_head(head: Head | AdaptiveHead | BeamSpan, width: int) -> Reader | AdaptiveSoftmax | SpanBeam:
    if isinstance(head, AdaptiveHead):
        return AdaptiveSoftmax(head, width)
    return SpanBeam(head, width) if isinstance(head, BeamSpan) else Reader(head, width)
