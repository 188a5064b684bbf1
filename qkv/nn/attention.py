"""AttentionKernel (the call of a fast kernel) and Attention (the projections around a kernel).

B batch, H heads, T queries, S keys, D head dimension, W width."""

import math
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from qkv.kernels.attention import dot_product_attention
from qkv.kernels.bias import AttentionBias
from qkv.nn.attention_record import DotProductRecord, RecordAttention
from qkv.nn.cache import Cache
from qkv.nn.relative_position import RelativeXL, RotaryEmbedding
from qkv.nn.scored_attention import AttentionOutput, ScoredAttentionKernel
from qkv.nn.selections import SampleStatistics
from qkv.spec import AttentionSpec, RelativeXLSpec, RotarySpec


class AttentionKernel(nn.Module):
    """softmax(qk' * scale + bias) v by the fastest kernel; q is (B, H, T, D), k and v are (B, G, S, D)."""

    def __init__(self, scale: float, dropout: float) -> None:
        super().__init__()
        self.scale = scale
        self.dropout = dropout

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, bias: AttentionBias, layer_bias: Tensor | None = None
    ) -> AttentionOutput:
        dropout = self.dropout if self.training else 0.0
        return AttentionOutput(
            dot_product_attention(q, k, v, bias, layer_bias, self.scale, dropout)
        )

    def register_record_hook(self, record: RecordAttention) -> list[RemovableHandle]:
        """Call `record` in every forward pass with what the weights are computed from."""

        def record_inputs(
            module: nn.Module, inputs: tuple[Any, ...], output: AttentionOutput
        ) -> None:
            q, k, _, bias, *layer_bias = inputs
            # The module may be a view of the kernel in evaluation mode.
            terms = {"layer_bias": layer_bias[0]} if layer_bias else {}
            record(DotProductRecord(q=q, k=k, scale=self.scale, bias=bias, **terms))

        return [self.register_forward_hook(record_inputs)]


def build_attention_kernel(
    spec: AttentionSpec, scale: float
) -> AttentionKernel | ScoredAttentionKernel:
    """Return the fast kernel for the softmax of dot products, else the general one."""
    if spec.has_fast_kernel:
        return AttentionKernel(scale, spec.dropout)
    return ScoredAttentionKernel(spec, scale)


class Attention(nn.Module):
    """Multi-head attention: projects x to queries and the context to keys and values, attends, and
    projects back."""

    def __init__(self, spec: AttentionSpec, width: int) -> None:
        super().__init__()
        self.head_dim = spec.head_dim
        q_width = spec.heads * spec.head_dim
        kv_width = (spec.kv_heads or spec.heads) * spec.head_dim
        self.q = nn.Linear(width, q_width, bias=spec.bias)
        self.o = nn.Linear(q_width, width, bias=spec.bias)
        self.k = nn.Linear(width, kv_width, bias=spec.bias)
        self.v = nn.Linear(width, kv_width, bias=spec.bias)
        scale = 1 / math.sqrt(spec.head_dim) if spec.scale is None else spec.scale
        scale = 1.0 if spec.score.name == "dot" else scale
        position = spec.relative_position
        self.kernel = build_attention_kernel(spec, scale)
        self.rotary = (
            RotaryEmbedding(position, spec.head_dim) if isinstance(position, RotarySpec) else None
        )
        self.relative = (
            RelativeXL(spec, position, scale) if isinstance(position, RelativeXLSpec) else None
        )

    def forward(
        self, x: Tensor, context: Tensor | None, bias: AttentionBias, cache: Cache | None = None
    ) -> tuple[Tensor, SampleStatistics | None]:
        """Attend to the context; None means that all keys and values are already in the cache.

        Return the output (B, T, W) and, of hard attention, the statistics of its samples (B, T), summed
        over heads."""
        q = self.q(x).unflatten(-1, (-1, self.head_dim))  # (B, T, W) -> (B, T, H, D)
        if context is not None:
            k = self.k(context).unflatten(-1, (-1, self.head_dim))
            v = self.v(context).unflatten(-1, (-1, self.head_dim))
            positions = bias.k_positions if bias.new_k_positions is None else bias.new_k_positions
            if self.rotary is not None:
                q = self.rotary(q, bias.q_positions)
                k = self.rotary(k, positions)
            if cache is not None:
                cache.update({"k": k, "v": v}, positions.expand(len(k), -1))
        if cache is not None:
            k = cache.read("k")
            v = cache.read("v")
        q = q.reshape(len(k), -1, *q.shape[2:])  # beams with shared keys are folded into one row
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # (B, H, T, D)
        layer_bias = None
        if self.relative is not None:
            q, layer_bias = self.relative(q, bias)
        out, samples = self.kernel(q, k, v, bias, layer_bias)
        out = self.o(out.transpose(1, 2).reshape(*x.shape[:2], -1))  # (B, H, T, D) -> (B, T, W)
        if samples is not None:
            samples = SampleStatistics(*(y.sum(1).reshape(x.shape[:2]) for y in samples))
        return out, samples
