"""The small parts: norms, activations, sinusoids and embeddings. They know no attention.

B batch, T tokens of a row, W width."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.nn.batch import Rows
from qkv.spec import Embed, Learned, Norm, Sinusoid, Stack

ACTS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: x,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "gelu_python": F.gelu,
    "gelu_fast": partial(F.gelu, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": F.silu,
    "swish": F.silu,
    "mish": F.mish,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu2": lambda x: F.relu(x) ** 2,
}


class Act(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        if name not in ACTS:
            raise ValueError(f"activation {name!r}: expected one of {', '.join(ACTS)}")
        self.name, self.apply_to = name, ACTS[name]

    def forward(self, x: Tensor) -> Tensor:
        return self.apply_to(x)

    def extra_repr(self) -> str:
        return self.name


def make_norm(norm: Norm | None, width: int) -> nn.Module:
    """The norm, or an Identity where there is none."""
    if norm is None:
        return nn.Identity()
    if norm.kind == "rms":
        return nn.RMSNorm(width, eps=norm.eps)
    return nn.LayerNorm(width, eps=norm.eps, bias=norm.bias)


def waves(positions: Tensor, width: int, layout: str = "halves", base: float = 10000.0) -> Tensor:
    """sin and cos of each position at falling frequencies: first all sines, then all cosines, or in pairs."""
    exact = torch.float32 if positions.device.type == "mps" else torch.float64
    steps = torch.arange(0, width, 2, device=positions.device, dtype=exact)
    rates = base ** (-steps / (width - 2 if layout == "ends" else width))
    angles = positions.to(exact)[..., None] * rates  # (..., W/2)
    if layout == "pairs":
        return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[..., :width]
    return torch.cat([angles.sin(), angles.cos()], dim=-1)[..., :width]


class Positions(nn.Module):
    """A vector for every position: looked up, or computed."""

    def __init__(self, kind: Learned | Sinusoid, width: int) -> None:
        super().__init__()
        self.kind, self.width = kind, width
        if isinstance(kind, Learned):
            self.weight = nn.Parameter(torch.empty(kind.count, width))

    def forward(self, positions: Tensor, like: Tensor) -> Tensor:
        if isinstance(self.kind, Learned):
            return F.embedding(positions + self.kind.offset, self.weight)
        return waves(positions + self.kind.offset, self.width, self.kind.layout).to(like.dtype)


class Adaptive(nn.Module):
    """Token vectors from one table a band of frequency, rarer bands narrower, each projected to one width."""

    def __init__(self, embed: Embed, width: int) -> None:
        super().__init__()
        assert embed.width is not None and embed.cutoffs is not None
        self.edges = (0, *embed.cutoffs, embed.vocab)
        bands = [hi - lo for lo, hi in pairwise(self.edges)] if embed.divide > 1 else [embed.vocab]
        sizes = [embed.width // embed.divide**i for i in range(len(bands))]
        self.tables = nn.ModuleList(nn.Embedding(n, size) for n, size in zip(bands, sizes, strict=True))
        plain = embed.divide == 1 and embed.width == width
        self.projects = nn.ModuleList([] if plain else [nn.Linear(size, width, bias=False) for size in sizes])
        self.scale = math.sqrt(width)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor | None = None
        low = 0
        for i, table in enumerate(self.tables):
            high = low + table.weight.shape[0]
            x = table((ids - low).clamp(0, high - low - 1))
            x = self.projects[i](x) if len(self.projects) else x
            out = x if out is None else torch.where(((ids >= low) & (ids < high))[..., None], x, out)
            low = high
        assert out is not None
        return out * self.scale


class Embedding(nn.Module):
    """What enters the first layer: tokens (or patches), positions and types, then norm and projection."""

    def __init__(self, stack: Stack) -> None:
        super().__init__()
        embed, width = stack.embed, stack.embed.width or stack.width
        self.embed = embed
        if embed.patches:
            size, grid = embed.patches.size, embed.patches.image // embed.patches.size
            self.first = nn.Parameter(torch.empty(width))
            self.patches = nn.Conv2d(embed.patches.channels, width, size, stride=size, bias=False)
            self.cells = grid * grid
        elif embed.cutoffs is not None:
            self.tokens: nn.Module = Adaptive(embed, stack.width)
        else:
            self.tokens = nn.Embedding(embed.vocab, width, padding_idx=embed.pad)
        self.positions = Positions(embed.positions, width) if embed.positions else None
        self.types = nn.Embedding(embed.types, width) if isinstance(embed.types, int) and embed.types else None
        self.norm = make_norm(embed.norm, width)
        self.drop = nn.Dropout(embed.drop)
        narrow = embed.width is not None and embed.cutoffs is None
        self.project = nn.Linear(width, stack.width) if narrow else nn.Identity()
        if embed.query:
            self.query = nn.Parameter(torch.empty(1, 1, width))

    def forward(self, rows: Rows, positions: Tensor) -> Tensor:
        if self.embed.patches:
            assert rows.images is not None
            grid = self.patches(rows.images).flatten(2).transpose(1, 2)  # (B, C, H, W) -> (B, cells, W)
            x = torch.cat([self.first.expand(len(grid), 1, -1), grid], dim=1)
        else:
            x = self.tokens(rows.ids) if rows.embeds is None else rows.embeds
            x = x * self.embed.scale if rows.embeds is None or self.embed.scales_given else x
        if self.embed.types == "tokens" and rows.types is not None:
            x = x + self.tokens(rows.types) * self.embed.scale
        if self.types is not None:
            x = x + (self.types(rows.types) if rows.types is not None else self.types.weight[0])
        if self.positions is not None:
            x = x + self.positions(positions, x)
        return self.project(self.drop(self.norm(x)))
