"""Attention that also tells the log-sum-exp of its scores, and its way back under a joint one.

Pieces of one softmax can so be computed apart: out = sum of out_p * exp(lse_p - lse), and every piece finds
its own gradients from the joint `out` and `lse`. The plain reference stands beside CPU's and CUDA's kernels.
B batch, H heads, T queries, S keys, D size of a head."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

CUDA = torch.float32, torch.bfloat16, torch.float16
Kept = tuple[Tensor, ...]  # what dropout needs to be the same on the way back
Gradients = tuple[Tensor, Tensor, Tensor]
aten = torch.ops.aten


def attend(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float, drop: float
) -> tuple[Tensor, Tensor, Kept]:
    """(out (B, H, T, D), lse (B, H, T), kept); `bias` (B, 1, T, S) is of `bias_of`."""
    kernel = kernel_of(q, drop)
    if kernel == "cpu":
        return *aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=bias, scale=scale), ()
    if kernel == "cuda":
        bias = bias.expand(-1, q.shape[1], -1, -1)
        out, lse, *kept = aten._scaled_dot_product_efficient_attention(q, k, v, bias, True, drop, scale=scale)
        return out, lse[..., : q.shape[2]], tuple(kept)
    scores = ((q * scale) @ k.transpose(-1, -2) + bias).to(precise(q.dtype))
    lse = scores.logsumexp(-1)
    shares = (scores - lse[..., None]).exp().to(v.dtype)
    if not drop:
        return shares @ v, lse, ()
    stays = torch.rand_like(shares) >= drop
    return (shares * stays / (1 - drop)) @ v, lse, (stays,)


def attend_back(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, out: Tensor, lse: Tensor, kept: Kept,
    scale: float, drop: float,
) -> Gradients:  # fmt: skip
    """The gradients of q, k and v of a piece, by the joint `out` and `lse`."""
    kernel = kernel_of(q, drop)
    if kernel == "cpu":
        return aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, q, k, v, out, lse, 0.0, False, attn_mask=bias, scale=scale
        )
    if kernel == "cuda":
        bias, ragged = bias.expand(-1, q.shape[1], -1, -1), -q.shape[2] % 32  # it stores whole tiles
        found = aten._scaled_dot_product_efficient_attention_backward(
            grad, q, k, v, bias, out, F.pad(lse, (0, ragged)).contiguous(), *kept, drop,
            [True, True, True, False], scale=scale,
        )  # fmt: skip
        return found[:3]
    scores = ((q * scale) @ k.transpose(-1, -2) + bias).to(precise(q.dtype))
    shares = (scores - lse[..., None]).exp().to(v.dtype)
    up = grad @ v.transpose(-1, -2)
    stays = kept[0] / (1 - drop) if drop else 1.0
    slope = shares * (up * stays - (grad * out).sum(-1, keepdim=True)) * scale
    return slope @ k, slope.transpose(-1, -2) @ q, (shares * stays).transpose(-1, -2) @ grad


def kernel_of(q: Tensor, drop: float) -> str:
    """The kernel that can: CUDA's reads heads in words of 16 bytes, the CPU's has no dropout."""
    if q.is_cuda and q.dtype in CUDA and q.shape[-1] * q.element_size() % 16 == 0:
        return "cuda"
    return "cpu" if q.device.type == "cpu" and not drop else "plain"


def bias_of(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where a key is seen, `least` elsewhere; rows start where a kernel can read words."""
    wide = torch.zeros(*seen.shape[:-1], -(-seen.shape[-1] // 8) * 8, dtype=dtype, device=seen.device)
    return wide[..., : seen.shape[-1]].masked_fill_(~seen, least(dtype))


def least(dtype: torch.dtype) -> float:
    """Far below any score; kernels that count in powers of two can still multiply it."""
    return torch.finfo(dtype).min / 2


def precise(dtype: torch.dtype) -> torch.dtype:
    """What sums of exponentials are kept in."""
    return torch.promote_types(dtype, torch.float32)
