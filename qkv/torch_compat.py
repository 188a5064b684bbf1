"""Private functions of torch that qkv calls, with the torch versions on which each was checked.

They are not part of torch's public interface and may change in a new version."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

Gradients = tuple[Tensor, Tensor, Tensor]
aten = torch.ops.aten


# --- attention kernels ---


def flash_attention_cpu(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the output (B, H, T, D) and the log-sum-exp (B, H, T). Checked on 2.11 and 2.13."""
    out, lse = aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, attn_mask=bias, scale=scale
    )
    return out, lse


def flash_attention_cpu_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor,
    out: Tensor,
    lse: Tensor,
    scale: float,
) -> Gradients:
    """Return the gradients of q, k and v. Checked on 2.11 and 2.13."""
    return aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, q, k, v, out, lse, 0.0, False, attn_mask=bias, scale=scale
    )


def efficient_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, dropout: float, scale: float
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Return the output, the log-sum-exp, padded to full tiles, and the seed of dropout.

    CUDA only; checked on 2.11."""
    out, lse, *seed = aten._scaled_dot_product_efficient_attention(
        q, k, v, bias, True, dropout, scale=scale
    )
    return out, lse, tuple(seed)


def efficient_attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, out: Tensor, lse: Tensor,
    seed: tuple[Tensor, ...], dropout: float, scale: float,
) -> Gradients:  # fmt: skip
    """Return the gradients of q, k and v. CUDA only; checked on 2.11."""
    gradients = aten._scaled_dot_product_efficient_attention_backward(
        grad, q, k, v, bias, out, lse, *seed, dropout, [True, True, True, False], scale=scale
    )
    return gradients[:3]


@cache
def find_flash_kernels() -> bool:
    if torch.version.hip is not None or not torch.backends.cuda.is_flash_attention_available():
        return False
    devices = range(torch.cuda.device_count())
    return all(torch.cuda.get_device_capability(device) >= (8, 0) for device in devices)


def has_flash_kernels() -> bool:
    """Return whether the flash kernels can run on all CUDA devices: compute capability 8 or later."""
    return find_flash_kernels()


# As torch.compiler.assume_constant_result, which imports torch._dynamo. Checked on 2.13.
has_flash_kernels._dynamo_marked_constant = True  # type: ignore[attr-defined]


def flash_attention_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, max_length: int, dropout: float, is_causal: bool,
    scale: float,
) -> Tensor:  # fmt: skip
    """Compute attention within packed sequences (tokens, H, D). CUDA only; checked on 2.11."""
    out: Tensor = aten._flash_attention_forward(
        q,
        k,
        v,
        cu_seqlens,
        cu_seqlens,
        max_length,
        max_length,
        dropout,
        is_causal,
        False,
        scale=scale,
    )[0]
    return out


def flash_attention_window(
    q: Tensor, k: Tensor, v: Tensor, window: tuple[int, int], scale: float
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Compute attention to keys at most window[0] before and window[1] after a query, -1 for any distance.

    q, k and v are (B, T, H, D); returns the output, the log-sum-exp (B, H, T) and the seed of dropout.
    CUDA only; checked on 2.11."""
    out, lse, *seed, _ = aten._flash_attention_forward(
        q, k, v, None, None, q.shape[1], k.shape[1], 0.0, window == (-1, 0), False,
        scale=scale, window_size_left=window[0], window_size_right=window[1],
    )  # fmt: skip
    return out, lse, tuple(seed)


def flash_attention_window_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, seed: tuple[Tensor, ...],
    window: tuple[int, int], scale: float,
) -> Gradients:  # fmt: skip
    """Return the gradients of q, k and v. CUDA only; checked on 2.11."""
    return aten._flash_attention_backward(
        grad, q, k, v, out, lse, None, None, q.shape[1], k.shape[1], 0.0, window == (-1, 0), *seed,
        scale=scale, window_size_left=window[0], window_size_right=window[1],
    )  # fmt: skip


def unfold_backward(grad: Tensor, sizes: list[int], dim: int, size: int, step: int) -> Tensor:
    """Return the gradient of Tensor.unfold. Checked on 2.11 and 2.13."""
    return aten.unfold_backward(grad, sizes, dim, size, step)


# --- packed weights of linear layers on a CPU ---


def has_packed_linear() -> bool:
    """Return whether oneDNN's packed linear layer exists. Checked on 2.11 and 2.13."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def pack_linear_weight(weight: Tensor, batch_size: int) -> Tensor:
    """Return a weight in oneDNN's layout, for `packed_linear`. Checked on 2.11 and 2.13."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), batch_size)


def packed_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W' + b with a weight from `pack_linear_weight`. Checked on 2.11 and 2.13."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def pack_linear_fp16(weight: Tensor, bias: Tensor | None) -> Any:
    """Return a half-precision weight for `packed_linear_fp16` (FBGEMM). Checked on 2.11 and 2.13."""
    return torch.ops.quantized.linear_prepack_fp16(weight, bias)


def packed_linear_fp16(x: Tensor, packed: Any) -> Tensor:
    """Return x W' + b in fp32 with half-precision weights. Checked on 2.11 and 2.13."""
    return torch.ops.quantized.linear_dynamic_fp16(x, packed)


# --- compiled modules ---


def get_compiled_call(module: nn.Module) -> Any:
    """Return the compiled call that `module.compile()` set, or None. Checked on 2.11 and 2.13."""
    return module._compiled_call_impl


def set_compiled_call(module: nn.Module, call: Any) -> None:
    """Set or remove (None) the compiled call of a module. Checked on 2.11 and 2.13."""
    module._compiled_call_impl = call


def eager_call(module: nn.Module, *args: Any) -> Any:
    """Call a module eagerly, with its hooks. Checked on 2.11 and 2.13."""
    return module._call_impl(*args)


def has_forward_hooks(module: nn.Module) -> bool:
    """Return whether a module has forward hooks of its own. Checked on 2.11 and 2.13."""
    return bool(module._forward_hooks)


def warm_compile_pool() -> None:
    """Start the compile worker processes of inductor. Checked on 2.11 and 2.13."""
    from torch._inductor.async_compile import AsyncCompile

    AsyncCompile.warm_pool()
