"""Mix (the kernel call) and Attention (the projections around it).

B batch, H heads, T queries, S keys, D size of a head."""

import math

from torch import Tensor, nn

from qkv.kernels.attention import mix, repeat_heads
from qkv.kernels.bias import Where
from qkv.nn.cache import Slot
from qkv.nn.relative_position import Relative, Rotate
from qkv.spec import XL, Attend, Rotary


class Mix(nn.Module):
    """softmax(qk' * scale + bias) v by the fastest kernel; q is (B, H, T, D), k and v (B, G, S, D)."""

    def __init__(self, scale: float, drop: float) -> None:
        super().__init__()
        self.scale, self.drop = scale, drop

    def forward(self, q: Tensor, k: Tensor, v: Tensor, where: Where, extra: Tensor | None = None) -> Tensor:
        return mix(q, k, v, where, extra, self.scale, self.drop if self.training else 0.0)

    def weights(self, q: Tensor, k: Tensor, where: Where, extra: Tensor | None = None) -> Tensor:
        """What the kernel does not show: (B, H, T, S)."""
        scores = (q * self.scale) @ repeat_heads(k, q.shape[1]).transpose(-1, -2)
        bias = where.bias(extra)
        return (scores if bias is None else scores + bias).softmax(-1)


class Attention(nn.Module):
    """Projections to queries (of x), keys and values (of the context), and back."""

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
            new = where.k if where.new is None else where.new
            if self.rotate is not None:
                q, k = self.rotate(q, where.q), self.rotate(k, new)
            if slot is not None:
                slot.extend({"k": k, "v": v}, new.expand(len(k), -1))
        if slot is not None:
            k, v = slot.read("k"), slot.read("v")
        q = q.reshape(len(k), -1, *q.shape[2:])  # rows that share their keys, as beams do a source, are one
        q, k, v, extra = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), None  # (B, H, T, D)
        if self.relative is not None:
            q, extra = self.relative(q, where)
        out = self.mix(q, k, v, where, extra)
        return self.o(out.transpose(1, 2).reshape(*x.shape[:2], -1))  # (B, H, T, D) -> (B, T, W)
