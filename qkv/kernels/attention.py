"""softmax(qk' * scale + bias) v by the kernel that the mask asks for. Knows no parameters.

B batch, H heads, G heads of keys, T queries, S keys, D size of a head."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.kernels.bias import Where
from qkv.kernels.block_sparse import sparse_attention
from qkv.spec import Causal

LOCK = threading.Lock()
USERS: list[bool] = []  # who does without cuDNN, each with what was before all of them


def mix(
    q: Tensor, k: Tensor, v: Tensor, where: Where, extra: Tensor | None, scale: float, drop: float
) -> Tensor:
    """q (B, H, T, D), k and v (B, G, S, D), extra (B|1, H|1, T, S) or none -> (B, H, T, D)."""
    k, v = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
    kernel = where.kernel if extra is None else "mask"
    if kernel == "blocks":
        return sparse_attention(q, k, v, where.pattern, where.cut, scale, drop)
    if kernel == "packed" and where.edges is not None and can_pack(q):
        return packed_attention(q, k, v, where.edges, isinstance(where.pattern, Causal), scale, drop)
    bias = where.bias(extra) if kernel in ("mask", "packed") else None
    return F.scaled_dot_product_attention(q, k, v, bias, drop, kernel == "causal", scale=scale)


def can_pack(q: Tensor) -> bool:
    """The kernel for texts one after another is CUDA's, in half precision."""
    return (
        q.is_cuda
        and q.dtype in (torch.float16, torch.bfloat16)
        and q.shape[-1] % 8 == 0
        and q.shape[-1] <= 256
    )


def packed_attention(
    q: Tensor, k: Tensor, v: Tensor, edges: Tensor, causal: bool, scale: float, drop: float
) -> Tensor:
    """Texts one after another, each among itself; its plain reference is dense attention under their mask."""
    batch, length = q.shape[0], q.shape[2]
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))  # (B*T, H, D)
    out: Tensor = torch.ops.aten._flash_attention_forward(
        q, k, v, edges, edges, length, length, drop, causal, False, scale=scale
    )[0]
    return out.unflatten(0, (batch, length)).transpose(1, 2)


@contextmanager
def without_cudnn() -> Iterator[None]:
    """Leaves out cuDNN's kernel, which torch may choose under a mask: it spends half a second on every shape
    that it has not seen, and its gradients are NaN where all scores of a row are far below zero (torch 2.11;
    T5, which does not scale them, has such rows)."""
    with LOCK:  # the switch is the process's: the first thread turns it off, the last one on again
        USERS.append(USERS[0] if USERS else torch.backends.cuda.cudnn_sdp_enabled())
        torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        with LOCK:
            before = USERS.pop()
            if not USERS:
                torch.backends.cuda.enable_cudnn_sdp(before)


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """Grouped heads: each key head serves several query heads."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)
