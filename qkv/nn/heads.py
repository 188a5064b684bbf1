"""Heads: what is read off the last states. One class serves nearly all; two have mathematics of their own."""

from itertools import pairwise
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.batch import Batch, Rows
from qkv.kernels.vocab_linear import Wide
from qkv.nn.embedding import Adaptive, activation, make_norm
from qkv.spec import AdaptiveHead, BeamSpan, Head


class Reader(nn.Module):
    """take states -> drop -> dense, act, norm -> drop -> project."""

    def __init__(self, head: Head, width: int, tokens: nn.Module) -> None:
        super().__init__()
        self.head, inner = head, head.dense or width
        self.dense = nn.Linear(width, inner, bias=head.dense_bias) if head.dense else nn.Identity()
        self.act, self.norm = activation(head.act), make_norm(head.norm, inner)
        self.drop, self.mid_drop = nn.Dropout(head.drop), nn.Dropout(head.mid_drop)
        self.out = Wide(inner, head.size, bias=bool(head.bias)) if head.size else nn.Identity()
        if head.bias == "fixed":
            self.out.bias.requires_grad_(False)
        if head.tied:
            self.out.weight = tokens.weight

    def forward(self, out: dict[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        x = self.drop(take(self.head, out, batch))
        x = self.out(self.mid_drop(self.norm(self.act(self.dense(x)))) * self.head.scale)
        if len(self.head.out) == 1:
            return {self.head.out[0]: x.squeeze(-1) if self.head.flat else x}
        return dict(zip(self.head.out, x.unbind(-1), strict=True))


def take(head: Head, out: dict[str, Tensor], batch: Batch) -> Tensor:
    """The states a head reads: (B, T, W) for all of them, else (B, W)."""
    hidden, rows = out["hidden"], batch.rows if batch.target is None else batch.target
    if head.take in out or head.take == "all":
        return out.get(head.take, hidden if batch.read is None else hidden.flatten(0, 1)[batch.read])
    if head.take == "rest":
        return hidden[:, 1:].mean(1)
    seat = seats(rows, hidden)
    if head.take == "mean":
        return (hidden * seat[..., None]).sum(1) / seat.sum(1, keepdim=True)
    if head.take == "first":
        return pick(hidden, seat.int().argmax(1))
    if head.take == "choice" and batch.choice is not None:
        return pick(hidden, batch.choice)
    if head.take in ("last", "choice"):
        return pick(hidden, last(seat))
    source: Any = batch.rows
    if head.take == "top":  # the largest id ends the text (CLIP as first published)
        return pick(hidden, source.ids.argmax(1))
    ends = source.ids == head.end
    return pick(hidden, ends.int().argmax(1) if head.take == "first end" else last(ends))


def seats(rows: Rows | None, like: Tensor) -> Tensor:
    """(B, T) true where a token stands."""
    if rows is None or rows.seat is None:
        return torch.ones(like.shape[:2], dtype=torch.bool, device=like.device)
    return rows.seat


def pick(hidden: Tensor, index: Tensor) -> Tensor:
    """(B, T, W) at index (B,) -> (B, W)."""
    return hidden.gather(1, index[:, None, None].expand(-1, 1, hidden.shape[-1]))[:, 0]


def last(flags: Tensor) -> Tensor:
    """The index of the last true flag of each row."""
    return (flags * torch.arange(1, flags.shape[1] + 1, device=flags.device)).argmax(1)


class AdaptiveSoftmax(nn.Module):
    """Log-probabilities of all words: the first band scores its words and the bands, each band its words."""

    def __init__(self, head: AdaptiveHead, width: int, tokens: nn.Module) -> None:
        super().__init__()
        assert isinstance(tokens, Adaptive)
        self.edges, bands, sizes = tokens.edges, len(tokens.edges) - 1, tokens.sizes
        self.tables = nn.ModuleList(nn.Linear(size, count) for count, size in sizes)
        own = [min(i, len(sizes) - 1) for i in range(bands)] if len(tokens.projects) else []
        self.projects = nn.ModuleList(nn.Linear(sizes[i][1], width, bias=False) for i in own)
        self.clusters = nn.Linear(sizes[0][1], bands - 1) if bands > 1 else None
        if head.tied:
            for mine, theirs in zip(self.tables, tokens.tables, strict=True):
                mine.weight = theirs.weight
        for band, mine in enumerate(self.projects):
            if head.tied_projects[band]:
                mine.weight = tokens.projects[own[band]].weight

    def forward(self, out: dict[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        parts: list[Tensor] = []
        hidden = x = out["hidden"] if batch.read is None else out["hidden"].flatten(0, 1)[batch.read]
        for i, (low, high) in enumerate(pairwise(self.edges)):
            table: Any = self.tables[min(i, len(self.tables) - 1)]
            words = slice(low, high) if len(self.tables) == 1 else slice(None)
            x = hidden @ cast(Tensor, self.projects[i].weight) if len(self.projects) else x
            scores = F.linear(x, table.weight[words], table.bias[words])
            if i == 0 and self.clusters is not None:
                scores = torch.cat([scores, self.clusters(x)], dim=-1)
            band = parts[0][..., self.edges[1] + i - 1, None] if i else 0.0
            parts.append(scores.log_softmax(-1) + band)
        return {"logits": torch.cat([parts[0][..., : self.edges[1]], *parts[1:]], dim=-1)}


class SpanBeam(nn.Module):
    """XLNet's answer head: start (B, T), end (B, starts, T) for the best starts, and answerable (B,)."""

    def __init__(self, head: BeamSpan, width: int, tokens: nn.Module) -> None:
        super().__init__()
        self.starts, self.start = head.starts, nn.Linear(width, 1)
        self.end_dense, self.end_out = nn.Linear(2 * width, width), nn.Linear(width, 1)
        self.end_norm = nn.LayerNorm(width, eps=head.eps)
        self.answer_dense, self.answer_out = nn.Linear(2 * width, width), nn.Linear(width, 1, bias=False)

    def forward(self, out: dict[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        x, start = out["hidden"], self.start(out["hidden"])[..., 0]  # (B, T, W), (B, T)
        seat = seats(batch.rows, x)
        shares = start.masked_fill(~seat, torch.finfo(x.dtype).min).softmax(-1)
        best = shares.topk(min(self.starts, x.shape[1]), dim=-1).indices  # (B, K)
        chosen = x.gather(1, best[..., None].expand(-1, -1, x.shape[-1]))[:, :, None]  # (B, K, 1, W)
        chosen = chosen.expand(-1, -1, x.shape[1], -1)
        both = torch.cat([x[:, None].expand_as(chosen), chosen], dim=-1)  # (B, K, T, 2W)
        end = self.end_out(self.end_norm(torch.tanh(self.end_dense(both))))[..., 0]
        first = torch.einsum("bt,btw->bw", shares, x)
        answer = self.answer_dense(torch.cat([first, pick(x, last(seat))], dim=-1))
        return {"start": start, "end": end, "logits": self.answer_out(torch.tanh(answer))[:, 0]}


HEADS = {Head: Reader, AdaptiveHead: AdaptiveSoftmax, BeamSpan: SpanBeam}
