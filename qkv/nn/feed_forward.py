"""What follows attention in a block: a dense feed, a gated one, or Switch's experts."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.nn.embedding import activation
from qkv.spec import Dense, Experts


class Feed(nn.Module):
    def __init__(self, dense: Dense, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, dense.width, bias=dense.bias)
        self.gate = nn.Linear(width, dense.width, bias=dense.bias) if dense.gated else None
        self.down = nn.Linear(dense.width, width, bias=dense.bias)
        self.act, self.drop = activation(dense.act), nn.Dropout(dense.drop)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        y = self.act(self.up(x)) if self.gate is None else self.act(self.gate(x)) * self.up(x)
        return self.down(self.drop(y)), None


class Switch(nn.Module):
    """One expert a token, by the router's word; what overflows its capacity passes by on the residual.

    Capacity is counted along each row, in order. Shapes do not depend on the routing."""

    def __init__(self, experts: Experts, width: int) -> None:
        super().__init__()
        self.capacity, self.jitter = experts.capacity, experts.jitter
        self.router = nn.Linear(width, experts.count, bias=experts.router_bias)
        self.experts = nn.ModuleList(Feed(experts.each, width) for _ in range(experts.count))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        wide = torch.promote_types(
            x.dtype, torch.float32
        )  # the router is the one part that must not be coarse
        seen = x.to(wide)
        if self.training and self.jitter:
            seen = seen * torch.empty_like(seen).uniform_(1 - self.jitter, 1 + self.jitter)
        bias = None if self.router.bias is None else self.router.bias.to(wide)
        logits = F.linear(seen, self.router.weight.to(wide), bias)  # (B, T, E)
        share, chosen = logits.softmax(-1).to(x.dtype).max(-1)  # (B, T)
        place = F.one_hot(chosen, len(self.experts)).cumsum(1).gather(-1, chosen[..., None])[..., 0] - 1
        room = min(self.capacity, x.shape[1])
        kept = place < room
        cell = torch.where(kept, chosen * room + place, len(self.experts) * room)  # the last cell: no expert
        token = torch.arange(x.shape[1], device=x.device).expand_as(cell)
        table = cell.new_zeros(len(x), len(self.experts) * room + 1).scatter(1, cell, token)  # cell -> token
        sent = x.gather(1, table[:, :-1, None].expand(-1, -1, x.shape[-1])).chunk(len(self.experts), dim=1)
        done = torch.cat([expert(rows)[0] for expert, rows in zip(self.experts, sent, strict=True)], dim=1)
        back = done.gather(1, cell.clamp(max=done.shape[1] - 1)[..., None].expand_as(x))
        return back * (share * kept)[..., None], logits


def balance_loss(logits: Tensor) -> Tensor:
    """Load balance (Switch, eq. 4): experts x sum of (share of tokens x share of probability)."""
    shares, count = logits.softmax(-1), logits.shape[-1]
    sent = F.one_hot(shares.argmax(-1), count).to(shares.dtype).mean(-2)
    return (sent * shares.mean(-2)).mean() * count**2


def z_loss(logits: Tensor) -> Tensor:
    """Keeps the router's logits small (ST-MoE, eq. 5)."""
    return logits.logsumexp(-1).square().mean()
