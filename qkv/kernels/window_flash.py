"""Local, banded, strided and chunked attention by the flash kernel, which has a window.

A pattern is one part, or two parts without a common key. A part cuts a text into rows of tokens that
attend to each other, causally or within a window:

    banded    |01234567|        one row
    strided   |04|15|26|37|     a row per remainder
    chunk     |0123|4567|       a row per chunk

Nothing is masked by a tensor, so that rows with padding or packed documents need `block_sparse`, whose
reference is that of this module, too.
B batch, H heads, T tokens, D head dimension; R rows of t tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.kernels.partial_attention import accumulate_dtype, merge_partial, supports_flash
from qkv.spec import Banded, Chunk, Local, Or, Pattern, Strided
from qkv.torch_compat import flash_attention_window, flash_attention_window_backward

MAX_ROWS = 2**16 - 1  # of one call: a dimension of the grid of a CUDA kernel
UNLIMITED = -1


@dataclass(frozen=True)
class FlashPart:
    """A part of a pattern. `window`: the largest distances to earlier and to later tokens of a row."""

    stride: int = 1  # every `stride`-th token is in the same row
    chunk: int = 0  # tokens of a row; 0: all
    window: tuple[int, int] = (UNLIMITED, 0)
    skip: int = 0  # the last tokens, including its own, that a query does not attend to

    @property
    def divisor(self) -> int:
        """The number of tokens of a text is a multiple of it."""
        return self.stride * (self.chunk or 1)

    def count_rows(self, length: int) -> int:
        return -(-length // self.chunk) if self.chunk else self.stride

    def fold(self, x: Tensor) -> Tensor:
        """Return a view of the rows: (B, T, ...) -> (B, R, t, ...)."""
        if self.chunk:
            return x.unflatten(1, (-1, self.chunk))
        return x.unflatten(1, (-1, self.stride)).transpose(1, 2)

    def select_queries(self, x: Tensor) -> Tensor:
        """Return the tokens that have a key: (B, T, ...) -> (B, R, t - skip, ...)."""
        return self.fold(x)[:, :, self.skip :]

    def select_keys(self, x: Tensor) -> Tensor:
        """Return the tokens that are keys: (B, T, ...) -> (B, R, t - skip, ...)."""
        rows = self.fold(x)
        return rows[:, :, : rows.shape[2] - self.skip]


def list_flash_parts(pattern: Pattern) -> tuple[FlashPart, ...]:
    """Return the parts of a pattern, empty if the kernel cannot compute it."""
    match pattern:
        case Banded(window):
            return (FlashPart(window=(window - 1, 0)),)
        case Local(window):
            return (FlashPart(window=(window, window)),)
        case Strided(stride):
            return (FlashPart(stride=stride),)
        case Chunk(stride):
            return (FlashPart(chunk=stride),)
        case Or(Banded(window), Strided(stride)) | Or(Strided(stride), Banded(window)):
            num_near = -(-window // stride)  # every stride-th token that is within the window
            return (FlashPart(window=(window - 1, 0)), FlashPart(stride=stride, skip=num_near))
    return ()


def supports_window_flash(q: Tensor, pattern: Pattern, dropout: float) -> bool:
    """Return whether the kernel can compute a pattern for queries (B, H, T, D)."""
    if dropout or not supports_flash(q):
        return False
    parts = list_flash_parts(pattern)
    rows = [part.count_rows(q.shape[2]) for part in parts]
    return bool(parts) and max(rows) * len(q) <= MAX_ROWS


def window_flash_attention(
    q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, scale: float
) -> Tensor:
    """Compute softmax(qk' * scale) v over the keys of the pattern; q, k and v are (B, H, T, D)."""
    parts = list_flash_parts(pattern)
    length = q.shape[2]
    # Padding comes last; no token attends to it, because patterns with later keys get none.
    padding = -length % max(part.divisor for part in parts)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    if padding:
        q, k, v = (F.pad(x, (0, 0, 0, 0, 0, padding)) for x in (q, k, v))
    out: Tensor = WindowFlashAttention.apply(q, k, v, scale, parts)  # type: ignore[no-untyped-call]
    return out[:, :length].transpose(1, 2)


class WindowFlashAttention(torch.autograd.Function):
    """Attention over the parts of a pattern with one softmax; q, k, v and out are (B, T, H, D)."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, parts: tuple[FlashPart, ...]
    ) -> Tensor:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        lse = torch.empty(*q.shape[:3], 1, dtype=accumulate_dtype(q.dtype), device=q.device)
        seeds = []
        for part in parts:
            queries, keys, values = (
                part.select_queries(q).flatten(0, 1),
                part.select_keys(k).flatten(0, 1),
                part.select_keys(v).flatten(0, 1),
            )
            if not queries.shape[1]:  # no token is far enough from another
                continue
            partial, partial_lse, seed = flash_attention_window(
                queries, keys, values, part.window, scale
            )
            seeds.append(seed)
            merge_partial(
                part.select_queries(out),
                part.select_queries(lse),
                partial.unflatten(0, (len(q), -1)),
                partial_lse.transpose(1, 2)[..., None].unflatten(0, (len(q), -1)),
                first=part is parts[0],
            )
        ctx.save_for_backward(q, k, v, out, lse, *(x for seed in seeds for x in seed))
        ctx.settings = (scale, parts)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        scale: float
        parts: tuple[FlashPart, ...]
        scale, parts = ctx.settings
        q, k, v, out, lse, *saved = ctx.saved_tensors
        dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
        for part in parts:
            query_side = [part.select_queries(x).flatten(0, 1) for x in (grad, q, out, lse)]
            if not query_side[0].shape[1]:
                continue
            keys, values = (part.select_keys(x).flatten(0, 1) for x in (k, v))
            seed, saved = (saved[0], saved[1]), saved[2:]
            gradients = flash_attention_window_backward(
                query_side[0], query_side[1], keys, values, query_side[2],
                query_side[3][..., 0].transpose(1, 2).contiguous(), seed, part.window, scale,
            )  # fmt: skip
            places = (part.select_queries(dq), part.select_keys(dk), part.select_keys(dv))
            for place, gradient in zip(places, gradients, strict=True):
                values_of_rows = gradient.unflatten(0, (len(q), -1))
                if part is parts[0]:
                    place.copy_(values_of_rows)
                else:
                    place += values_of_rows
        return dq, dk, dv, None, None
