"""Distance between query and key: T5's buckets and ALiBi once a stack, rotary and XL in every layer."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.kernels.bias import Where
from qkv.nn.embedding import exact, waves
from qkv.spec import XL, Alibi, Attend, Buckets, Everyone, Local, Rotary


class BucketBias(nn.Module):
    """A learned number for each head and bucket of distances: near ones apart, far ones in growing bins."""

    def __init__(self, buckets: Buckets) -> None:
        super().__init__()
        self.buckets, self.table = buckets, nn.Embedding(buckets.count, buckets.heads)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        ahead, count = k[:, None, :] - q[:, :, None], self.buckets.count  # (B, T, S)
        start, far = torch.zeros_like(ahead), (-ahead).clamp(min=0)
        if self.buckets.both_ways:
            count //= 2
            start, far = torch.where(ahead > 0, count, 0), ahead.abs()
        near = count // 2
        grow = torch.log(far.clamp(min=1).float() / near) / math.log(self.buckets.reach / near)
        bucket = start + torch.where(
            far < near, far, (near + (grow * (count - near)).long()).clamp(max=count - 1)
        )
        return F.embedding(bucket, self.table.weight).permute(0, 3, 1, 2)  # (B, H, T, S)


class AlibiBias(nn.Module):
    """Scores fall with distance, at a slope of its own for each head (Press et al. 2021)."""

    def __init__(self, alibi: Alibi) -> None:
        super().__init__()
        self.heads, self.even = alibi.heads, 2 ** math.floor(math.log2(alibi.heads))

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        far = (k[:, None, :] - q[:, :, None]).abs()[:, None]  # (B, 1, T, S)
        head = torch.arange(1, self.heads + 1, device=q.device, dtype=exact(q.device))
        falls = torch.where(head <= self.even, head, head - self.even - 0.5)  # past a power of 2: between
        return -far * torch.exp2(-8 / self.even * falls)[:, None, None]


Two = tuple[Tensor, Tensor]
DISTANCES: dict[type, type[nn.Module]] = {Buckets: BucketBias, Alibi: AlibiBias}


class Rotate(nn.Module):
    """Turns pairs of features by an angle that grows with position (RoPE)."""

    def __init__(self, rotary: Rotary, size: int) -> None:
        super().__init__()
        self.rotary, self.size = rotary, size

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        steps = torch.arange(0, self.size, 2, device=x.device, dtype=exact(x.device))
        rates = scaled(self.rotary.base ** (-steps / self.size), dict(self.rotary.scaling))
        angles = (positions[..., None] * rates)[..., None, :]  # (B|1, T, 1, D/2)
        sin, cos = angles.sin().to(x.dtype), angles.cos().to(x.dtype)
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def scaled(rates: Tensor, scaling: dict[str, Any]) -> Tensor:
    """Radians a position, for each pair of features, stretched for longer texts."""
    slow, kind = rates / scaling.get("factor", 1), scaling.get("rope_type")
    if kind == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        turns = scaling["original_max_position_embeddings"] * rates / (2 * math.pi)
        return slow.lerp(rates, ((turns - low) / (high - low)).clamp(0, 1))
    return slow if kind == "linear" else rates


class Relative(nn.Module):
    """(q + u)k' + (q + v)r' [+ (q + s)e']: content, distance and segment (Transformer-XL, XLNet)."""

    def __init__(self, attend: Attend, xl: XL, scale: float) -> None:
        super().__init__()
        self.xl, self.scale, shape = xl, scale, (attend.heads, attend.head_dim)
        self.both = isinstance(attend.pattern, Everyone | Local)
        self.r = nn.Linear(xl.width, attend.heads * attend.head_dim, bias=False)
        self.drop = nn.Dropout(xl.drop)
        self.u, self.v = nn.Parameter(torch.empty(shape)), nn.Parameter(torch.empty(shape))
        if xl.segments:
            self.s, self.e = nn.Parameter(torch.empty(shape)), nn.Parameter(torch.empty(2, *shape))

    def forward(self, q: Tensor, where: Where) -> Two:
        """q with its content bias, and what distance and segment add to the scores: (B, H, T, S)."""
        length, reach = q.shape[2], where.k.shape[1] - 1 if where.even else where.reach
        low = -reach if self.both else 0
        far = torch.arange(reach, low - 1, -1, device=q.device)
        if self.xl.clamp > 0:
            far = far.clamp(-self.xl.clamp, self.xl.clamp)
        table = self.drop(waves(far, self.xl.width).to(q.dtype))
        r = self.r(table).unflatten(-1, self.u.shape).permute(1, 2, 0)  # (n, W) -> (H, D, n)
        extra = (q + self.v[:, None]) @ r  # (B, H, T, n)
        if where.even:  # query t and key s are at n - 1 ... 0: column s + T - 1 - t
            extra = F.pad(extra, (1, 0)).flatten(2)[..., length:].unflatten(2, (length, -1))[..., : reach + 1]
        else:
            index = reach - (where.q[:, :, None] - where.k[:, None, :]).clamp(low, reach)  # (B|1, T, S)
            extra = extra.gather(-1, index[:, None].expand(*extra.shape[:3], -1))
        if self.xl.segments and where.types is not None:
            other = where.types[0][:, :, None] != where.types[1][:, None, :]  # (B, T, S)
            e = torch.einsum("bhtd,shd->bhts", q + self.s[:, None], self.e)
            extra = extra + torch.where(other[:, None], e[..., 1:], e[..., :1])
        return q + self.u[:, None], extra * self.scale
