"""Where (who sees whom), Mix (the kernel call) and Attention (the projections around it).

B batch, H heads, T queries, S keys, D size of a head."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.kernels.blocks import at, few_keys, sparse_attention
from qkv.nn.memory import Slot
from qkv.nn.relate import Relative, Rotate
from qkv.spec import XL, Attend, ByHead, Causal, Everyone, Pattern, Rotary


@dataclass(frozen=True, kw_only=True)
class Where:
    """Who sees whom, made once for every pattern of a stack: pattern & seat & same document & allowed."""

    pattern: Pattern
    q: Tensor  # (B|1, T) positions of the queries
    k: Tensor  # (B|1, S) positions of the keys, -1 where no token stands
    full: bool = False  # a token stands everywhere
    documents: tuple[Tensor, Tensor] | None = None  # of the queries and of the keys; -1: of every text
    allowed: Tensor | None = None  # (B, T, S)
    distance: Tensor | None = None  # (B|1, H, T, S) added to the scores
    same: bool = False  # queries and keys are the same even row, nothing remembered
    reach: int = 0  # no two positions are further apart
    types: tuple[Tensor, Tensor] | None = None  # of the queries and of the keys
    dtype: torch.dtype = torch.float32

    @property
    def kernel(self) -> str:
        """Settled on the host: what this needs of a kernel."""
        open_ = self.distance is None and self.allowed is None and self.same
        plain = open_ and self.full and self.documents is None
        if plain and isinstance(self.pattern, Causal | Everyone):
            return "causal" if isinstance(self.pattern, Causal) else "all"
        return "blocks" if open_ and self.q.shape[1] >= 256 and few_keys(self.pattern) else "mask"

    def visible(self, rule: Pattern, q: Tensor, k: Tensor) -> Tensor:
        """(B|1, n, b, m): may the queries at indices q (1, n, b) see the keys at indices k (B|1, n, m)?"""
        keys = at(self.k, k)[..., None, :]
        seen: Tensor = rule(at(self.q, q)[..., :, None], keys)
        if not self.full:
            seen = seen & (keys >= 0)
        if self.documents is not None:
            mine, theirs = at(self.documents[0], q)[..., :, None], at(self.documents[1], k)[..., None, :]
            seen = seen & ((mine == theirs) | (theirs < 0))
        return seen

    @cached_property
    def mask(self) -> Tensor | None:
        """(B|1, H|1, T, S) true where a query may see a key; None: everywhere."""
        if self.full and self.documents is None and self.allowed is None and isinstance(self.pattern, Everyone):
            return None
        rules = self.pattern.rules if isinstance(self.pattern, ByHead) else (self.pattern,)
        q, k = (torch.arange(x.shape[1], device=x.device)[None, None] for x in (self.q, self.k))
        mask = torch.cat([self.visible(rule, q, k) for rule in rules], dim=1)
        return mask if self.allowed is None else mask & self.allowed[:, None]

    @cached_property
    def base(self) -> Tensor | None:
        """What is added to the scores of every layer."""
        return self.fill(self.distance)

    def bias(self, extra: Tensor | None) -> Tensor | None:
        """What is added to the scores of one layer, which may add something of its own."""
        if extra is None:
            return self.base
        return self.fill(extra if self.distance is None else extra + self.distance)

    def fill(self, scores: Tensor | None) -> Tensor | None:
        """A query that sees nobody sees all alike, and never becomes NaN."""
        if self.mask is None:
            return scores
        scores = torch.zeros((), dtype=self.dtype, device=self.mask.device) if scores is None else scores
        return scores.masked_fill(~self.mask, torch.finfo(self.dtype).min)


class Mix(nn.Module):
    """softmax(qk' * scale + bias) v by the fastest kernel that can; q is (B, H, T, D), k and v (B, G, S, D)."""

    def __init__(self, scale: float, drop: float) -> None:
        super().__init__()
        self.scale, self.drop = scale, drop

    def forward(self, q: Tensor, k: Tensor, v: Tensor, where: Where, extra: Tensor | None = None) -> Tensor:
        k, v = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
        drop = self.drop if self.training else 0.0
        kernel = where.kernel if extra is None else "mask"
        if kernel == "blocks":
            return sparse_attention(q, k, v, where.pattern, where.visible, self.scale, drop, where.k)
        bias = where.bias(extra) if kernel == "mask" else None
        causal = kernel == "causal"
        return F.scaled_dot_product_attention(q, k, v, bias, drop, causal, scale=self.scale)

    def weights(self, q: Tensor, k: Tensor, where: Where, extra: Tensor | None = None) -> Tensor:
        """What the kernel does not show: (B, H, T, S)."""
        scores = (q * self.scale) @ repeat_heads(k, q.shape[1]).transpose(-1, -2)
        bias = where.bias(extra)
        return (scores if bias is None else scores + bias).softmax(-1)


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """Grouped heads: each key head serves several query heads."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


class Attention(nn.Module):
    """Projections to queries, keys and values, and back. Queries come from x, keys and values from context."""

    def __init__(self, attend: Attend, width: int) -> None:
        super().__init__()
        self.head_dim, relate = attend.head_dim, attend.relate
        inner, keys = attend.heads * attend.head_dim, (attend.kv_heads or attend.heads) * attend.head_dim
        self.q, self.o = nn.Linear(width, inner, bias=attend.bias), nn.Linear(inner, width, bias=attend.bias)
        self.k, self.v = nn.Linear(width, keys, bias=attend.bias), nn.Linear(width, keys, bias=attend.bias)
        scale = 1 / math.sqrt(attend.head_dim) if attend.scale is None else attend.scale
        self.mix = Mix(scale, attend.drop)
        self.rotate = Rotate(relate, attend.head_dim) if isinstance(relate, Rotary) else None
        self.relative = Relative(attend, relate, scale) if isinstance(relate, XL) else None

    def forward(self, x: Tensor, context: Tensor | None, where: Where, slot: Slot | None = None) -> Tensor:
        """No context: all keys are remembered already."""
        q = self.q(x).unflatten(-1, (-1, self.head_dim))  # (B, T, W) -> (B, T, H, D)
        if context is not None:
            k, v = (project(context).unflatten(-1, (-1, self.head_dim)) for project in (self.k, self.v))
            new = where.k[:, where.k.shape[1] - k.shape[1] :]
            if self.rotate is not None:
                q, k = self.rotate(q, where.q), self.rotate(k, new)
            if slot is not None:
                slot.extend({"k": k, "v": v}, new.expand(len(k), -1))
        if slot is not None:
            k, v = slot.read("k"), slot.read("v")
        q, k, v, extra = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), None  # (B, H, T, D)
        if self.relative is not None:
            q, extra = self.relative(q, where.q, where.k, where.reach, where.types)
        out = self.mix(q, k, v, where, extra)
        return self.o(out.transpose(1, 2).flatten(2))  # (B, H, T, D) -> (B, T, H*D) -> (B, T, W)
