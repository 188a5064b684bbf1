"""Attention patterns of every layer as masks, and position biases as curves over the distance."""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from qkv.attention_weights import attention_kernels
from qkv.explorer.trace.trace import find_position_name, format_pattern
from qkv.model.model import Model
from qkv.nn.transformer import Stack
from qkv.spec import Pattern, RelativeBucketsSpec, StackSpec
from qkv.spec.patterns import And, Or, PerHead
from qkv.validate import check_number

MAX_PATTERN_SIZE = 256
MIN_WINDOWS = 3  # of a local or strided pattern that a mask shows
SAMPLED_QUERIES = 8  # of a cell of more queries
BIAS_NAMES = {"t5": "T5 relative position bias", "alibi": "ALiBi"}


@dataclass(frozen=True, kw_only=True)
class BiasCurves:
    """The position bias of each head by the distance from a query to a key."""

    name: str
    distances: tuple[int, ...]
    values: Tensor  # (H, distances)

    def to_json(self) -> dict[str, Any]:
        heads = self.values.tolist()
        return {"name": self.name, "distances": self.distances, "heads": heads}


@dataclass(frozen=True, kw_only=True)
class LayerMask:
    """The mask of an attention; of one whose heads have different patterns, of some heads.

    A cell is a block of `scale` × `scale` tokens: of a wide window, enough tokens to see its form."""

    path: str
    pattern: str
    mask: Tensor  # (queries, memory + queries), bytes
    memory: int
    scale: int
    bias: BiasCurves | None

    def describe_cells(self) -> str:
        """Return what a cell and the first columns are, where it is not a token of the text."""
        notes = [f"a cell: {self.scale} × {self.scale} tokens"] if self.scale > 1 else []
        notes += [f"the first {self.memory} columns are memory"] if self.memory else []
        return f" ({'; '.join(notes)})" if notes else ""

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "pattern": self.pattern,
            "keys": self.mask.shape[1],
            "memory": self.memory,
            "scale": self.scale,
            "mask": base64.b64encode(self.mask.numpy().tobytes()).decode(),
            "bias": self.bias and self.bias.to_json(),
        }


def list_layer_masks(model: Model, size: int) -> list[LayerMask]:
    """Return the mask of `size` queries in every layer, and the position bias of its heads."""
    check_number("size", size, integer=True, at_least=2, at_most=MAX_PATTERN_SIZE)
    masks = []
    for path in attention_kernels(model.net):
        prefix, _, part = path.rpartition(".")
        stack_name, _, layer = prefix.partition(".layers.")
        stack = model.net.get_submodule(stack_name)
        if not isinstance(stack, Stack):
            continue
        spec = getattr(stack.spec.layers[stack.layer_order[int(layer)]], part)
        is_self = part == "attention"
        positions = find_position_name(stack, spec.relative_position)
        bias = compute_bias_curves(stack, size, positions) if is_self else None
        for pattern in list_patterns(spec.pattern):
            scale = choose_scale(pattern, size)
            memory = count_memory(stack.spec, size, scale) if is_self else 0
            masks.append(
                LayerMask(
                    path=path,
                    pattern=format_pattern(pattern),
                    mask=build_mask(pattern, size, memory, scale),
                    memory=memory,
                    scale=scale,
                    bias=bias,
                )
            )
    return masks


def list_patterns(pattern: Pattern) -> list[Pattern]:
    """Return the different patterns of the heads of a layer."""
    return [*dict.fromkeys(pattern.patterns)] if isinstance(pattern, PerHead) else [pattern]


def choose_scale(pattern: Pattern, size: int) -> int:
    """Return the tokens of a cell at which `size` cells show several windows of a pattern."""
    return max(math.ceil(MIN_WINDOWS * get_window(pattern) / size), 1)


def get_window(pattern: Pattern) -> int:
    """Return the largest window, stride or prefix of a pattern; 0: it has none."""
    if isinstance(pattern, And | Or):
        return max(get_window(pattern.left), get_window(pattern.right))
    return max((getattr(pattern, item.name) for item in fields(pattern)), default=0)  # type: ignore[arg-type]


def count_memory(spec: StackSpec, size: int, scale: int) -> int:
    """Return the columns of memory that are drawn: at most half as many as queries."""
    recurrence = spec.recurrence
    if recurrence is None or (recurrence.starts_with_zeros and not recurrence.memory_length):
        return 0
    return min(math.ceil((recurrence.memory_length or size) / scale), size // 2)


def build_mask(pattern: Pattern, size: int, memory: int, scale: int = 1) -> Tensor:
    """Return the mask (size, memory + size) as bytes, one where a query may attend.

    A cell of `scale` × `scale` tokens is one if some of its queries may attend to some of its keys."""
    pattern = pattern.with_memory(memory * scale)
    keys = torch.arange((memory + size) * scale)
    samples = torch.linspace(0, scale - 1, min(scale, SAMPLED_QUERIES)).long()
    rows = []
    for row in range(memory, memory + size):
        queries = (row * scale + samples)[:, None]
        visible = pattern(queries, keys).expand(len(samples), len(keys))
        rows.append(visible.view(len(samples), memory + size, scale).any(-1).any(0))
    return torch.stack(rows).to(torch.uint8)


@torch.no_grad()
def compute_bias_curves(stack: Stack, size: int, positions: str | None) -> BiasCurves | None:
    """Return the position bias by distance; None if positions are not added to the scores."""
    if stack.position_bias is None or positions not in BIAS_NAMES:
        return None
    device = next(stack.parameters()).device
    spec = stack.spec.position_bias
    last = max(size, spec.max_distance) if isinstance(spec, RelativeBucketsSpec) else size
    distances = torch.arange(-last, last + 1, device=device)
    query = torch.full((1, 1), last, device=device)
    curves = stack.position_bias(query, (distances + last)[None])[0, :, 0]  # (H, distances)
    return BiasCurves(
        name=BIAS_NAMES[positions],
        distances=tuple(distances.tolist()),
        values=curves.float().cpu(),
    )
