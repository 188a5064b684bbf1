"""The feed-forward sublayer: dense, gated, or a mixture of experts.

B batch, T tokens, W width, E experts."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.nn.embedding import get_activation
from qkv.spec import FeedForwardSpec, MixtureOfExpertsSpec


class FeedForward(nn.Module):
    """down(activation(up(x))), or down(activation(gate(x)) * up(x))."""

    def __init__(self, spec: FeedForwardSpec, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, spec.width, bias=spec.bias)
        self.gate = nn.Linear(width, spec.width, bias=spec.bias) if spec.is_gated else None
        self.down = nn.Linear(spec.width, width, bias=spec.bias)
        self.activation = get_activation(spec.activation)
        self.dropout = nn.Dropout(spec.dropout)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        y = self.up(x)
        y = self.activation(y) if self.gate is None else self.activation(self.gate(x)) * y
        return self.down(self.dropout(y)), None


class MixtureOfExperts(nn.Module):
    """Switch routing: one expert per token; tokens over the capacity of an expert skip the sublayer.

    The capacity applies to the tokens of each row, in order. Shapes do not depend on the routing."""

    def __init__(self, spec: MixtureOfExpertsSpec, width: int) -> None:
        super().__init__()
        self.capacity = spec.capacity
        self.router_jitter = spec.router_jitter
        self.router = nn.Linear(width, spec.num_experts, bias=spec.router_bias)
        self.experts = nn.ModuleList(
            FeedForward(spec.expert, width) for _ in range(spec.num_experts)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the output (B, T, W) and the router logits (B, T, E)."""
        dtype = torch.promote_types(x.dtype, torch.float32)  # the router needs full precision
        router_input = x.to(dtype)
        if self.training and self.router_jitter:
            low, high = 1 - self.router_jitter, 1 + self.router_jitter
            router_input = router_input * torch.empty_like(router_input).uniform_(low, high)
        bias = None if self.router.bias is None else self.router.bias.to(dtype)
        logits = F.linear(router_input, self.router.weight.to(dtype), bias)  # (B, T, E)
        prob, expert = logits.softmax(-1).to(x.dtype).max(-1)  # (B, T)
        num_experts = len(self.experts)
        counts = F.one_hot(expert, num_experts).cumsum(1)
        rank = (
            counts.gather(-1, expert[..., None])[..., 0] - 1
        )  # index of a token among the tokens of its expert
        capacity = min(self.capacity, x.shape[1])
        has_capacity = rank < capacity
        slot = torch.where(
            has_capacity, expert * capacity + rank, num_experts * capacity
        )  # the last slot means no expert
        token = torch.arange(x.shape[1], device=x.device).expand_as(slot)
        token_of_slot = slot.new_zeros(len(x), num_experts * capacity + 1).scatter(1, slot, token)
        index = token_of_slot[:, :-1, None].expand(-1, -1, x.shape[-1])
        inputs = x.gather(1, index).chunk(num_experts, dim=1)
        outputs = [module(rows)[0] for module, rows in zip(self.experts, inputs, strict=True)]
        routed = torch.cat(outputs, dim=1)
        out = routed.gather(1, slot.clamp(max=routed.shape[1] - 1)[..., None].expand_as(x))
        return out * (prob * has_capacity)[..., None], logits


def load_balancing_loss(logits: Tensor) -> Tensor:
    """Return the load balancing loss (Switch, eq. 4): experts x sum of token fraction x probability
    fraction."""
    probs = logits.softmax(-1)
    count = logits.shape[-1]
    fraction = F.one_hot(probs.argmax(-1), count).to(probs.dtype).mean(-2)
    return (fraction * probs.mean(-2)).mean() * count**2


def router_z_loss(logits: Tensor) -> Tensor:
    """Return the router z-loss, which keeps the router logits small (ST-MoE, eq. 5)."""
    return logits.logsumexp(-1).square().mean()
