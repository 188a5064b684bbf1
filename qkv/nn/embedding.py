"""The small parts: norms, activations, sinusoids and embeddings. They know no attention.

B batch, T tokens of a row, W width."""

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.batch import Rows
from qkv.spec import Embed, Learned, Norm, Sinusoid, Stack

tanh_gelu = partial(F.gelu, approximate="tanh")
ACTS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: x, "relu": F.relu, "relu2": lambda x: F.relu(x) ** 2, "tanh": torch.tanh,
    "sigmoid": torch.sigmoid, "gelu": F.gelu, "gelu_python": F.gelu, "gelu_new": tanh_gelu,
    "gelu_fast": tanh_gelu, "gelu_pytorch_tanh": tanh_gelu,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x), "silu": F.silu, "swish": F.silu, "mish": F.mish,
    "unit": partial(F.normalize, dim=-1),  # a vector's, not a number's: its length becomes one
}  # fmt: skip


def activation(name: str) -> Callable[[Tensor], Tensor]:
    if name not in ACTS:
        raise ValueError(f"activation {name!r}: expected one of {', '.join(ACTS)}")
    return ACTS[name]


def make_norm(norm: Norm | None, width: int) -> nn.Module:
    """The norm, or an Identity where there is none."""
    if norm is None:
        return nn.Identity()
    make = nn.RMSNorm if norm.kind == "rms" else partial(nn.LayerNorm, bias=norm.bias)
    return make(width, eps=norm.eps)


def exact(device: torch.device) -> torch.dtype:
    """Angles want more digits than weights have."""
    return torch.float32 if device.type == "mps" else torch.float64


def waves(positions: Tensor, width: int, layout: str = "halves", base: float = 10000.0) -> Tensor:
    """sin and cos of each position at falling frequencies: first all sines, then all cosines, or in pairs."""
    steps = torch.arange(0, width, 2, device=positions.device, dtype=exact(positions.device))
    rates = base ** (-steps / (width - 2 if layout == "ends" else width))
    angles = positions[..., None] * rates  # (..., W/2)
    both = [angles.sin(), angles.cos()]
    laid = torch.stack(both, dim=-1).flatten(-2) if layout == "pairs" else torch.cat(both, dim=-1)
    return laid[..., :width]


class Adaptive(nn.Module):
    """Token vectors from one table a band of frequency, rarer bands narrower, each projected to one width."""

    def __init__(self, embed: Embed, width: int) -> None:
        super().__init__()
        first = embed.width or width
        self.edges = (0, *(embed.cutoffs or ()), embed.vocab)
        bands = [high - low for low, high in pairwise(self.edges)] if embed.divide > 1 else [embed.vocab]
        self.sizes = [(count, first // embed.divide**i) for i, count in enumerate(bands)]
        self.tables = nn.ModuleList(nn.Embedding(count, size) for count, size in self.sizes)
        sizes = [size for _, size in self.sizes] if embed.divide > 1 or first != width else []
        self.projects = nn.ModuleList(nn.Linear(size, width, bias=False) for size in sizes)
        self.scale = math.sqrt(width)

    def forward(self, ids: Tensor) -> Tensor:
        out, low = torch.zeros((), device=ids.device), 0
        for i, (count, _) in enumerate(self.sizes):
            x = self.tables[i]((ids - low).clamp(0, count - 1))
            x = self.projects[i](x) if len(self.projects) else x
            out = torch.where((ids >= low)[..., None], x, out.to(x.dtype))  # a later band overwrites
            low += count
        return out * self.scale


class Embedding(nn.Module):
    """What enters the first layer: tokens (or patches), positions and types, then norm and projection."""

    def __init__(self, stack: Stack) -> None:
        super().__init__()
        embed, width = stack.embed, stack.embed.width or stack.width
        self.embed, adaptive = embed, embed.cutoffs is not None
        if embed.patches:
            size = embed.patches.size
            self.first = nn.Parameter(torch.empty(width))
            self.patches = nn.Conv2d(embed.patches.channels, width, size, stride=size, bias=False)
        elif adaptive:
            self.tokens: nn.Module = Adaptive(embed, stack.width)
        else:
            self.tokens = nn.Embedding(embed.vocab, width, padding_idx=embed.pad)
        if isinstance(embed.positions, Learned):
            self.positions = nn.Embedding(embed.positions.count, width)
        kinds = 0 if embed.types == "tokens" else embed.types
        self.types = nn.Embedding(kinds, width) if kinds else None
        self.norm, self.drop = make_norm(embed.norm, width), nn.Dropout(embed.drop)
        self.project = nn.Linear(width, stack.width) if embed.width and not adaptive else nn.Identity()
        if embed.query:
            self.query = nn.Parameter(torch.empty(1, 1, width))

    def forward(self, rows: Rows) -> Tensor:
        embed = self.embed
        if embed.patches:
            grid = self.patches(rows.images).flatten(2).transpose(1, 2)  # (B, C, H, W) -> (B, cells, W)
            x = torch.cat([self.first.expand(len(grid), 1, -1), grid], dim=1)
        else:
            x = self.tokens(rows.ids) if rows.embeds is None else rows.embeds
            x = x * embed.scale if rows.embeds is None or embed.scales_given else x
        if embed.types == "tokens" and rows.types is not None:
            x = x + self.tokens(rows.types) * embed.scale
        if self.types is not None:
            x = x + (self.types(rows.types) if rows.types is not None else self.types.weight[0])
        if embed.positions is not None:
            at = rows.positions + embed.positions.offset
            if isinstance(embed.positions, Sinusoid):
                x = x + waves(at, x.shape[-1], embed.positions.layout).to(x.dtype)
            else:
                x = x + self.positions(at)
        return self.project(self.drop(self.norm(x)))
