"""Relative positions: T5's buckets and ALiBi as a bias for the whole stack, rotary positions and
those of Transformer-XL in every layer.

B batch, H heads, T queries, S keys, D head dimension, W width."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.kernels.bias import AttentionBias
from qkv.nn.embedding import angle_dtype, sinusoids
from qkv.spec import (
    AlibiSpec,
    AttentionSpec,
    Full,
    Local,
    RelativeBucketsSpec,
    RelativeXLSpec,
    RotarySpec,
)


class RelativeBucketBias(nn.Module):
    """T5's relative position bias: small distances have one bucket each, larger distances share
    logarithmic buckets."""

    def __init__(self, spec: RelativeBucketsSpec) -> None:
        super().__init__()
        self.spec = spec
        self.table = nn.Embedding(spec.num_buckets, spec.heads)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """Positions q (B, T) and k (B, S) -> (B, H, T, S)."""
        offset = k[:, None, :] - q[:, :, None]  # (B, T, S)
        num_buckets = self.spec.num_buckets
        first_bucket = torch.zeros_like(offset)
        distance = (-offset).clamp(min=0)
        if self.spec.is_bidirectional:
            num_buckets //= 2
            first_bucket = torch.where(offset > 0, num_buckets, 0)
            distance = offset.abs()
        exact = num_buckets // 2  # smaller distances have one bucket each
        log_ratio = math.log(self.spec.max_distance / exact)
        growth = torch.log(distance.clamp(min=1).float() / exact) / log_ratio
        far = (exact + (growth * (num_buckets - exact)).long()).clamp(max=num_buckets - 1)
        bucket = first_bucket + torch.where(distance < exact, distance, far)
        return F.embedding(bucket, self.table.weight).permute(0, 3, 1, 2)  # (B, H, T, S)


class AlibiBias(nn.Module):
    """ALiBi: scores decrease linearly with distance, with one slope per head (Press et al. 2021)."""

    def __init__(self, spec: AlibiSpec) -> None:
        super().__init__()
        self.heads = spec.heads
        self.power_of_two = 2 ** math.floor(math.log2(spec.heads))

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """Positions q (B, T) and k (B, S) -> (B, H, T, S)."""
        distance = (k[:, None, :] - q[:, :, None]).abs()[:, None]  # (B, 1, T, S)
        head = torch.arange(1, self.heads + 1, device=q.device, dtype=angle_dtype(q.device))
        # Heads beyond a power of two have slopes between those of the others.
        exponent = torch.where(head <= self.power_of_two, head, head - self.power_of_two - 0.5)
        return -distance * torch.exp2(-8 / self.power_of_two * exponent)[:, None, None]


TensorPair = tuple[Tensor, Tensor]
POSITION_BIASES: dict[type, type[nn.Module]] = {
    RelativeBucketsSpec: RelativeBucketBias,
    AlibiSpec: AlibiBias,
}


class RotaryEmbedding(nn.Module):
    """RoPE: rotates pairs of features by an angle that is proportional to the position."""

    def __init__(self, spec: RotarySpec, head_dim: int) -> None:
        super().__init__()
        self.spec = spec
        self.head_dim = head_dim

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        steps = torch.arange(0, self.head_dim, 2, device=x.device, dtype=angle_dtype(x.device))
        frequencies = self.spec.theta ** (-steps / self.head_dim)
        frequencies = scale_frequencies(frequencies, dict(self.spec.scaling))
        angles = (positions[..., None] * frequencies)[..., None, :]  # (B|1, T, 1, D/2)
        sin, cos = angles.sin().to(x.dtype), angles.cos().to(x.dtype)
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def scale_frequencies(frequencies: Tensor, scaling: dict[str, Any]) -> Tensor:
    """Return frequencies scaled for longer contexts, according to `rope_type`."""
    scaled = frequencies / scaling.get("factor", 1)
    rope_type = scaling.get("rope_type")
    if rope_type == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        turns = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
        return scaled.lerp(frequencies, ((turns - low) / (high - low)).clamp(0, 1))
    return scaled if rope_type == "linear" else frequencies


class RelativeXL(nn.Module):
    """(q + u)k' + (q + v)r' [+ (q + s)e']: content, distance and segment terms (Transformer-XL, XLNet)."""

    def __init__(self, attention: AttentionSpec, spec: RelativeXLSpec, scale: float) -> None:
        super().__init__()
        shape = (attention.heads, attention.head_dim)
        self.spec = spec
        self.scale = scale
        self.is_bidirectional = isinstance(attention.pattern, Full | Local)
        self.r = nn.Linear(spec.width, attention.heads * attention.head_dim, bias=False)
        self.dropout = nn.Dropout(spec.dropout)
        self.u = nn.Parameter(torch.empty(shape))
        self.v = nn.Parameter(torch.empty(shape))
        if spec.segment_bias:
            self.s = nn.Parameter(torch.empty(shape))
            self.e = nn.Parameter(torch.empty(2, *shape))

    def forward(self, q: Tensor, bias: AttentionBias) -> TensorPair:
        """Return q with the content bias u, and the bias (B, H, T, S) of distances and segments."""
        length = q.shape[2]
        max_distance = bias.k_positions.shape[1] - 1 if bias.contiguous else bias.max_distance
        min_distance = -max_distance if self.is_bidirectional else 0
        distances = torch.arange(max_distance, min_distance - 1, -1, device=q.device)
        if self.spec.clamp_length > 0:
            distances = distances.clamp(-self.spec.clamp_length, self.spec.clamp_length)
        table = self.dropout(sinusoids(distances, self.spec.width).to(q.dtype))
        r = self.r(table).unflatten(-1, self.u.shape).permute(1, 2, 0)  # (n, W) -> (H, D, n)
        scores = (q + self.v[:, None]) @ r  # (B, H, T, n)
        if bias.contiguous:  # shift: query t and key s are in column s + T - 1 - t
            shifted = F.pad(scores, (1, 0)).flatten(2)[..., length:].unflatten(2, (length, -1))
            scores = shifted[..., : max_distance + 1]
        else:
            distance = bias.q_positions[:, :, None] - bias.k_positions[:, None, :]  # (B|1, T, S)
            index = max_distance - distance.clamp(min_distance, max_distance)
            scores = scores.gather(-1, index[:, None].expand(*scores.shape[:3], -1))
        if self.spec.segment_bias and bias.token_type_ids is not None:
            q_types, k_types = bias.token_type_ids
            is_other = q_types[:, :, None] != k_types[:, None, :]  # (B, T, S)
            e = torch.einsum("bhtd,shd->bhts", q + self.s[:, None], self.e)
            scores = scores + torch.where(is_other[:, None], e[..., 1:], e[..., :1])
        return q + self.u[:, None], scores * self.scale
