"""Attention, softmax(qk' * scale + bias) v, by the fastest kernel that the mask allows.

B batch, H heads, G key-value heads, T queries, S keys, D head dimension."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.kernels.bias import AttentionBias
from qkv.kernels.block_sparse import block_sparse_attention
from qkv.kernels.partial_attention import supports_flash
from qkv.spec import Causal
from qkv.torch_compat import flash_attention_varlen

CUDNN_LOCK = threading.Lock()
CUDNN_USERS: list[bool] = []  # one entry per active `without_cudnn`: the setting before the first


def dot_product_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: AttentionBias, layer_bias: Tensor | None, scale: float,
    dropout: float,
) -> Tensor:  # fmt: skip
    """Compute attention by the fastest kernel.

    q (B, H, T, D), k and v (B, G, S, D), layer_bias (B|1, H|1, T, S) or None -> (B, H, T, D)."""
    k = repeat_heads(k, q.shape[1])
    v = repeat_heads(v, q.shape[1])
    kernel = bias.kernel_name if layer_bias is None else "mask"
    if kernel == "blocks":
        return block_sparse_attention(
            q, k, v, bias.pattern, bias.block_layout, scale, dropout, is_unmasked=bias.is_unmasked
        )
    if kernel == "packed" and bias.cu_seqlens is not None and supports_flash(q):
        is_causal = isinstance(bias.pattern, Causal)
        return varlen_attention(q, k, v, bias.cu_seqlens, is_causal, scale, dropout)
    scores_bias = bias.get_score_bias(layer_bias) if kernel in ("mask", "packed") else None
    is_causal = kernel == "causal"
    return F.scaled_dot_product_attention(q, k, v, scores_bias, dropout, is_causal, scale=scale)


def varlen_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    is_causal: bool,
    scale: float,
    dropout: float,
) -> Tensor:
    """Compute attention within each packed document; the reference is dense attention with a mask."""
    batch, length = q.shape[0], q.shape[2]
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))  # (B*T, H, D)
    out = flash_attention_varlen(q, k, v, cu_seqlens, length, dropout, is_causal, scale)
    return out.unflatten(0, (batch, length)).transpose(1, 2)


@contextmanager
def without_cudnn() -> Iterator[None]:
    """Disable cuDNN's attention kernel, which torch may select for attention with a mask.

    It needs half a second of planning for every new shape, and its gradients are NaN if all scores of
    a row are far below zero (torch 2.11), which occurs in T5 because its scores are not scaled."""
    with CUDNN_LOCK:  # the setting is global: the first thread disables, the last one restores it
        CUDNN_USERS.append(
            CUDNN_USERS[0] if CUDNN_USERS else torch.backends.cuda.cudnn_sdp_enabled()
        )
        torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        with CUDNN_LOCK:
            previous = CUDNN_USERS.pop()
            if not CUDNN_USERS:
                torch.backends.cuda.enable_cudnn_sdp(previous)


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """Repeat key-value heads for grouped-query attention: (B, G, S, D) -> (B, H, S, D)."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)
