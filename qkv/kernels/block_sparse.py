"""Block-sparse attention: local, banded, strided and fixed patterns without a T x T tensor.

A pattern is a union of block patterns. Each groups the queries into blocks that share keys:

    window    q |0123|4567|    k |..0123|234567|     a block and the keys just before (and after) it
    stride    q |048|159|..    k the same            one block per remainder
    ends      q |0123|4567|    k |3|  |3|7|          the ends of every chunk so far

A block pattern also computes the log-sum-exp of its scores, so that several block patterns are
computed separately, a few blocks at a time, and merged into one softmax. The reference is dense
attention with the mask.
B batch, H heads, T tokens, D head dimension; n blocks of b queries and m keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.kernels.partial_attention import (
    SavedForBackward,
    accumulate_dtype,
    mask_to_bias,
    merge_partial,
    min_score,
    partial_attention,
    partial_attention_backward,
)
from qkv.kernels.window_flash import supports_window_flash, window_flash_attention
from qkv.spec import Banded, Chunk, ChunkEnds, Local, Or, Pattern, PerHead, Strided
from qkv.torch_compat import unfold_backward

MIN_BLOCK = 16  # queries
MAX_BLOCK = 512  # wide blocks read fewer keys twice, narrow blocks read fewer masked keys
WORKSPACE_BYTES = 3 << 24  # maximum size of masks and key gradients in memory
# (pattern, q (1, n, b), k (B|1, n, m)) -> (B|1, n, b, m)
VisibleFunction = Callable[[Pattern, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class BlockPattern:
    """Query and key indices of the blocks of one pattern."""

    pattern: Pattern
    earlier: tuple[Pattern, ...]  # block patterns computed before, whose keys are excluded here
    layout: str  # window, stride or ends
    q: Tensor  # (1, n, b) query indices, each once; an index past the end of the row is no query
    k: Tensor  # (B|1, n, m) key indices; an index outside of the row is no key
    lookback: int = 0  # a window starts this many keys before its block

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.q.shape[1], self.q.shape[2], self.k.shape[2]

    def query_blocks(self, x: Tensor) -> Tensor:
        """Return a view of the query blocks: (B, L, H, D) with L >= n*b -> (B, n, H, b, D)."""
        n, b, _ = self.sizes
        if self.layout == "stride":  # every n-th token is in one block
            return x[:, : n * b].unflatten(1, (b, n)).permute(0, 2, 3, 1, 4)
        return x[:, : n * b].unflatten(1, (n, b)).transpose(2, 3)

    def key_blocks(self, x: Tensor, start: int, stop: int) -> Tensor:
        """Return the keys of blocks `start` to `stop`, from `gather_keys`: -> (B * blocks, H, m, D)."""
        if self.layout == "stride":
            return flatten_blocks(self.query_blocks(x)[:, start:stop])
        if self.layout == "ends":
            keys = x[:, None, : self.num_visible_keys(stop)].transpose(2, 3)
            return flatten_blocks(keys.expand(-1, stop - start, -1, -1, -1))
        _, b, m = self.sizes
        low, high = self.key_range(start, stop)
        inside = x[:, max(low, 0) : high]
        padding = (max(-low, 0), high - max(low, 0) - inside.shape[1])
        inside = F.pad(inside, (0, 0, 0, 0, *padding)) if any(padding) else inside
        return flatten_blocks(inside.unfold(1, m, b).transpose(-1, -2))

    def scatter_add_keys(self, into: Tensor, x: Tensor, start: int, stop: int) -> None:
        """Add gradients (B, blocks, H, m, D) to the positions of the keys (backward of `key_blocks`)."""
        if self.layout == "stride":
            self.query_blocks(into)[:, start:stop] += x
        elif self.layout == "ends":
            into[:, : x.shape[3]] += x.sum(1, dtype=into.dtype).transpose(1, 2)
        else:
            _, b, m = self.sizes
            low, high = self.key_range(start, stop)
            sizes = [len(x), high - low, x.shape[2], x.shape[4]]
            x = unfold_backward(x.transpose(-1, -2), sizes, 1, m, b)
            inside = into[:, max(low, 0) : high]
            inside += x[:, max(-low, 0) :][:, : inside.shape[1]]

    def gather_keys(self, x: Tensor) -> Tensor:
        """Return the input of `key_blocks`: x, or a copy of the chunk ends."""
        return gather_rows(x, self.k)[:, 0] if self.layout == "ends" else x

    def gradient_buffer(self, x: Tensor) -> Tensor:
        """Return the tensor that accumulates the gradients of keys: x itself, or a buffer of higher
        precision for chunk ends, which many blocks read."""
        if self.layout != "ends":
            return x
        dtype = accumulate_dtype(x.dtype)
        return torch.zeros(len(x), self.k.shape[2], *x.shape[2:], dtype=dtype, device=x.device)

    def flush_gradients(self, buffer: Tensor, into: Tensor) -> None:
        """Add a separate gradient buffer to the positions of the chunk ends."""
        if self.layout == "ends":
            index = self.k[:, 0, :, None, None].expand(len(into), -1, *into.shape[2:])
            into.scatter_add_(1, index, buffer.to(into.dtype))

    def bias(self, visible: Tensor, start: int, stop: int, q: Tensor) -> Tensor:
        """Return the bias of blocks `start` to `stop`: (B|1, n, b, m) -> (B * blocks, 1, b, m)."""
        visible = visible[:, start:stop, :, : self.num_visible_keys(stop)].expand(
            len(q), -1, -1, -1
        )
        return mask_to_bias(flatten_blocks(visible)[:, None], q.dtype)

    def num_visible_keys(self, stop: int) -> int:
        """Return the number of keys that the blocks up to `stop` can attend to."""
        m = self.k.shape[2]
        if not isinstance(self.pattern, ChunkEnds):
            return m
        return min(max_chunk_ends(self.pattern, stop * self.q.shape[2]), m)

    def key_range(self, start: int, stop: int) -> tuple[int, int]:
        """Return the index of the first key of the window blocks, and the index after the last."""
        _, b, m = self.sizes
        return start * b - self.lookback, (stop - 1) * b - self.lookback + m

    def block_groups(self, q: Tensor) -> Iterator[tuple[int, int]]:
        """Yield ranges of blocks that are computed together."""
        n, b, m = self.sizes
        block_bytes = len(q) * (b + 2 * q.shape[2:].numel()) * m * q.element_size()
        count = max(1, WORKSPACE_BYTES // block_bytes)
        if self.layout == "ends":  # several groups, because early blocks attend to fewer keys
            count = min(count, -(-n // 4))
        yield from ((i, min(i + count, n)) for i in range(0, n, count))


def is_block_sparse(pattern: Pattern) -> bool:
    """Return whether block patterns exist for this pattern."""
    match pattern:
        case Or(left, right):
            return is_block_sparse(left) and is_block_sparse(right)
        case PerHead(patterns):
            return all(map(is_block_sparse, patterns))
    return isinstance(pattern, Banded | Local | Strided | Chunk | ChunkEnds)


def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    """Gather (B|1, T, ...) at the indices (B|1, n, m) of each row -> (B, n, m, ...)."""
    if len(index) == 1:
        return x[:, index[0]]
    rows = torch.arange(len(index), device=index.device)[:, None, None]
    return x.expand(len(index), *x.shape[1:])[rows, index]


def block_patterns(pattern: Pattern, positions: Tensor) -> list[BlockPattern]:
    """Return the block patterns of a pattern for rows with these positions (B|1, T), -1 for padding."""
    length = positions.shape[1]
    device = positions.device
    block_size = max(MIN_BLOCK, min(MAX_BLOCK, length // 8))

    def indices(count: int, start: int, stop: int, step: int = 1, skip: int = 1) -> Tensor:
        first = torch.arange(count, device=device)[:, None] * skip
        return (first + torch.arange(start, stop, device=device) * step)[None]

    match pattern:
        case Banded(window) | Local(window) | Chunk(window):  # a chunk is within the last tokens
            size = max(window, block_size)
            lookahead = window if isinstance(pattern, Local) else 0
            count = -(-length // size)
            q = indices(count, 0, size, skip=size)
            k = indices(count, -window, size + lookahead, skip=size)
            return [BlockPattern(pattern, (), "window", q, k, lookback=window)]
        case Strided(stride):
            q = indices(stride, 0, -(-length // stride), step=stride)
            return [BlockPattern(pattern, (), "stride", q, q)]
        case ChunkEnds(stride, count):  # the indices depend on the start of each document
            is_end = (positions >= 0) & (positions % stride >= stride - count)
            most = min(max_chunk_ends(pattern, length), length)
            q = indices(-(-length // block_size), 0, block_size, skip=block_size)
            k = is_end.int().argsort(dim=1, descending=True, stable=True)[:, None, :most]
            return [BlockPattern(pattern, (), "ends", q, k)]
        case Or(left, right):
            first = block_patterns(left, positions)
            second = block_patterns(right, positions)
            earlier = tuple(block.pattern for block in first)
            return first + [replace(block, earlier=block.earlier + earlier) for block in second]
    raise TypeError(f"{pattern} has no block patterns")


def max_chunk_ends(pattern: ChunkEnds, tokens: int) -> int:
    """Return an upper bound of the number of chunk ends in a row, for any number of documents."""
    return -(-tokens * pattern.count // pattern.stride) + pattern.count


class BlockLayout(NamedTuple):
    """Blocks and masks of a pattern, computed once per batch and shared by layers."""

    blocks: list[BlockPattern]
    visible: list[Tensor]  # (B|1, n, b, m) for each block pattern


def build_block_layout(
    pattern: Pattern, visible: VisibleFunction, positions: Tensor
) -> BlockLayout:
    """Return block patterns and masks for rows with these positions (B|1, T), -1 for padding."""
    blocks = block_patterns(pattern, positions)
    return BlockLayout(blocks, [visible_in_blocks(b, visible, positions.shape[1]) for b in blocks])


def visible_in_blocks(block: BlockPattern, visible: VisibleFunction, length: int) -> Tensor:
    """Return the mask (B|1, n, b, m): true for keys that are attended to here and in no earlier block
    pattern."""
    q = block.q.clamp(max=length - 1)
    k = block.k.clamp(0, length - 1)
    mask = visible(block.pattern, q, k) & ((block.k >= 0) & (block.k < length))[:, :, None]
    for pattern in block.earlier:
        mask = mask & ~visible(pattern, q, k)
    return mask


def block_sparse_attention(
    q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, layouts: Callable[[Pattern], BlockLayout],
    scale: float, dropout: float = 0.0, is_unmasked: bool = False,
) -> Tensor:  # fmt: skip
    """Compute softmax(qk' * scale) v over the keys of the pattern; q, k and v are (B, H, T, D).

    `is_unmasked`: the pattern alone decides what a token attends to."""
    if isinstance(pattern, PerHead):
        groups = {
            p: [i for i, other in enumerate(pattern.patterns) if other == p]
            for p in pattern.patterns
        }
        outs = [
            block_sparse_attention(
                q[:, heads], k[:, heads], v[:, heads], p, layouts, scale, dropout, is_unmasked
            )
            for p, heads in groups.items()
        ]
        order = torch.tensor(
            [i for heads in groups.values() for i in heads], device=q.device
        ).argsort()
        return torch.cat(outs, dim=1)[:, order]
    if is_unmasked and supports_window_flash(q, pattern, dropout):
        return window_flash_attention(q, k, v, pattern, scale)
    blocks, visible = layouts(pattern)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # (B, T, H, D)
    out: Tensor = BlockSparseAttention.apply(q, k, v, scale, dropout, blocks, *visible)  # type: ignore[no-untyped-call]
    return out.transpose(1, 2)


class BlockSparseAttention(torch.autograd.Function):
    """Attention over several block patterns with one softmax; q, k, v and out are (B, T, H, D)."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, dropout: float,
        blocks: list[BlockPattern], *visible: Tensor,
    ) -> Tensor:  # fmt: skip
        length = q.shape[1]
        padded = max(block.q[0].numel() for block in blocks)
        if padded > length:
            q, k, v = (F.pad(x, (0, 0, 0, 0, 0, padded - length)) for x in (q, k, v))
        out = torch.zeros_like(q, memory_format=torch.contiguous_format)
        dtype = accumulate_dtype(q.dtype)
        lse = torch.full((*q.shape[:3], 1), -torch.inf, dtype=dtype, device=q.device)
        saved: list[SavedForBackward] = []
        for block, mask in zip(blocks, visible, strict=True):
            keys, values = block.gather_keys(k), block.gather_keys(v)
            out_blocks, lse_blocks = block.query_blocks(out), block.query_blocks(lse)
            for i, j in block.block_groups(q):
                partial, partial_lse, to_save = partial_attention(
                    flatten_blocks(block.query_blocks(q)[:, i:j]), block.key_blocks(keys, i, j),
                    block.key_blocks(values, i, j), block.bias(mask, i, j, q), scale, dropout,
                )  # fmt: skip
                partial = partial.unflatten(0, (len(q), -1))
                partial_lse = partial_lse[..., None].unflatten(0, (len(q), -1))
                is_first = block is blocks[0]
                merge_partial(
                    out_blocks[:, i:j], lse_blocks[:, i:j], partial, partial_lse, is_first
                )
                saved.append(to_save)
        # A query without keys has no gradient.
        lse.masked_fill_(lse < min_score(q.dtype) / 2, torch.inf)
        ctx.save_for_backward(q, k, v, out, lse, *visible, *(x for each in saved for x in each))
        ctx.settings = (length, scale, dropout, blocks)
        ctx.num_saved = len(saved[0])
        return out[:, :length]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        length: int
        blocks: list[BlockPattern]
        length, scale, dropout, blocks = ctx.settings
        q, k, v, out, lse, *rest = ctx.saved_tensors
        visible = rest[: len(blocks)]
        saved = iter(rest[len(blocks) :])
        if q.shape[1] > length:
            grad = F.pad(grad, (0, 0, 0, 0, 0, q.shape[1] - length))
        dq, dk, dv = (torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
        for block, mask in zip(blocks, visible, strict=True):
            keys, values = block.gather_keys(k), block.gather_keys(v)
            dk_buffer, dv_buffer = block.gradient_buffer(dk), block.gradient_buffer(dv)
            for i, j in block.block_groups(q):
                grad_block, q_block, out_block, lse_block = (
                    flatten_blocks(block.query_blocks(x)[:, i:j]) for x in (grad, q, out, lse)
                )
                gradients = partial_attention_backward(
                    grad_block, q_block, block.key_blocks(keys, i, j), block.key_blocks(values, i, j),
                    block.bias(mask, i, j, q), out_block, lse_block[..., 0],
                    tuple(next(saved) for _ in range(ctx.num_saved)), scale, dropout,
                )  # fmt: skip
                dq_block, dk_block, dv_block = (x.unflatten(0, (len(q), -1)) for x in gradients)
                block.query_blocks(dq)[:, i:j] += dq_block
                block.scatter_add_keys(dk_buffer, dk_block, i, j)
                block.scatter_add_keys(dv_buffer, dv_block, i, j)
            block.flush_gradients(dk_buffer, dk)
            block.flush_gradients(dv_buffer, dv)
        return dq[:, :length], dk[:, :length], dv[:, :length], *(None,) * (3 + len(blocks))


def flatten_blocks(x: Tensor) -> Tensor:
    """(B, n, ...) -> (B*n, ...)."""
    return x.flatten(0, 1)
