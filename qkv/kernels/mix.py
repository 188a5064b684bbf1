"""softmax(qk' * scale + bias) v by the kernel that the mask asks for. Knows no parameters.

B batch, H heads, G heads of keys, T queries, S keys, D size of a head."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from qkv.kernels.blocks import sparse_attention
from qkv.kernels.where import Where


def mix(
    q: Tensor, k: Tensor, v: Tensor, where: Where, extra: Tensor | None, scale: float, drop: float
) -> Tensor:
    """q (B, H, T, D), k and v (B, G, S, D), extra (B|1, H|1, T, S) or none -> (B, H, T, D)."""
    k, v = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
    kernel = where.kernel if extra is None else "mask"
    if kernel == "blocks":
        return sparse_attention(q, k, v, where.pattern, where.cut, scale, drop)
    bias = where.bias(extra) if kernel == "mask" else None
    return F.scaled_dot_product_attention(q, k, v, bias, drop, kernel == "causal", scale=scale)


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """Grouped heads: each key head serves several query heads."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)
