"""Attention over a part of the keys, with the log-sum-exp of its scores.

The parts of one softmax are computed separately and combined: out = sum of out_p * exp(lse_p - lse).
The gradients of each part are computed from the combined `out` and `lse`. The module has a CPU
kernel, a CUDA kernel and a reference implementation.
B batch, H heads, T queries, S keys, D head dimension."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.torch_compat import (
    Gradients,
    efficient_attention,
    efficient_attention_backward,
    flash_attention_cpu,
    flash_attention_cpu_backward,
    has_flash_kernels,
)

MAX_FLASH_HEAD_DIM = 256
CUDA_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SavedForBackward = tuple[Tensor, ...]  # reproduces dropout in the backward pass


def partial_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float, dropout: float
) -> tuple[Tensor, Tensor, SavedForBackward]:
    """Return out (B, H, T, D), lse (B, H, T) and tensors to save; `mask_to_bias` makes the bias
    (B, 1, T, S)."""
    kernel = choose_kernel(q, dropout)
    if kernel == "cpu":
        return *flash_attention_cpu(q, k, v, bias, scale), ()
    if kernel == "cuda":
        bias = bias.expand(-1, q.shape[1], -1, -1)
        out, lse, seed = efficient_attention(q, k, v, bias, dropout, scale)
        return out, lse[..., : q.shape[2]], seed
    scores = ((q * scale) @ k.transpose(-1, -2) + bias).to(accumulate_dtype(q.dtype))
    lse = scores.logsumexp(-1)
    weights = (scores - lse[..., None]).exp().to(v.dtype)
    if not dropout:
        return weights @ v, lse, ()
    keep = torch.rand_like(weights) >= dropout
    return (weights * keep / (1 - dropout)) @ v, lse, (keep,)


def partial_attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, out: Tensor, lse: Tensor,
    saved: SavedForBackward, scale: float, dropout: float,
) -> Gradients:  # fmt: skip
    """Return the gradients of q, k and v of one part, given the combined `out` and `lse`."""
    kernel = choose_kernel(q, dropout)
    if kernel == "cpu":
        return flash_attention_cpu_backward(grad, q, k, v, bias, out, lse, scale)
    if kernel == "cuda":
        bias = bias.expand(-1, q.shape[1], -1, -1)
        # The kernel reads full tiles of 32 queries, and ignores rows with an infinite log-sum-exp.
        padded_lse = F.pad(lse, (0, -q.shape[2] % 32), value=torch.inf).contiguous()
        # In half precision, it reads the output as one of the layout (B, T, H, D), whatever its strides.
        out = out.transpose(1, 2).contiguous().transpose(1, 2)
        return efficient_attention_backward(
            grad, q, k, v, bias, out, padded_lse, saved, dropout, scale
        )
    scores = ((q * scale) @ k.transpose(-1, -2) + bias).to(accumulate_dtype(q.dtype))
    weights = (scores - lse[..., None]).exp().to(v.dtype)
    grad_weights = grad @ v.transpose(-1, -2)
    keep = saved[0] / (1 - dropout) if dropout else 1.0
    grad_scores = weights * (grad_weights * keep - (grad * out).sum(-1, keepdim=True)) * scale
    grad_v = (weights * keep).transpose(-1, -2) @ grad
    return grad_scores @ k, grad_scores.transpose(-1, -2) @ q, grad_v


def choose_kernel(q: Tensor, dropout: float) -> str:
    """Return the name of the kernel: CUDA's reads heads in words of 16 bytes, the CPU's has no
    dropout."""
    if q.is_cuda and q.dtype in CUDA_DTYPES and q.shape[-1] * q.element_size() % 16 == 0:
        return "cuda"
    return "cpu" if q.device.type == "cpu" and not dropout else "plain"


def merge_partial(
    out: Tensor, lse: Tensor, partial: Tensor, partial_lse: Tensor, first: bool
) -> None:
    """Merge the output of another block pattern into `out` and `lse`, in place."""
    if first:
        out.copy_(partial)
        lse.copy_(partial_lse)
        return
    combined = torch.logaddexp(lse, partial_lse)
    out.copy_(out * (lse - combined).exp() + partial * (partial_lse - combined).exp())
    lse.copy_(combined)


def supports_flash(q: Tensor) -> bool:
    """Return whether the flash kernels of CUDA can read queries (..., D): in half precision."""
    is_half = q.dtype in (torch.float16, torch.bfloat16)
    has_head_dim = q.shape[-1] % 8 == 0 and q.shape[-1] <= MAX_FLASH_HEAD_DIM
    return q.is_cuda and is_half and has_head_dim and has_flash_kernels()


def mask_to_bias(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 0 for visible keys and `min_score` elsewhere, with rows aligned to 8 elements."""
    keys = visible.shape[-1]
    bias = torch.zeros(*visible.shape[:-1], -(-keys // 8) * 8, dtype=dtype, device=visible.device)
    return bias[..., :keys].masked_fill_(~visible, min_score(dtype))


def min_score(dtype: torch.dtype) -> float:
    """Return the score of a masked key: far below any other score, and finite if a kernel doubles it."""
    return torch.finfo(dtype).min / 2


def accumulate_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for sums of exponentials: at least fp32."""
    return torch.promote_types(dtype, torch.float32)
