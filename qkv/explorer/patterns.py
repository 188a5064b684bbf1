"""Attention patterns of every layer as masks, and position biases as curves over the distance."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qkv.attention_weights import attention_kernels
from qkv.explorer.trace import find_position_name, format_pattern
from qkv.model.model import Model
from qkv.nn.transformer import Stack
from qkv.spec import Pattern, StackSpec
from qkv.spec.patterns import PerHead
from qkv.validate import check_number

MAX_PATTERN_SIZE = 256
BIAS_NAMES = {"t5": "T5 bias", "alibi": "ALiBi"}


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
    """The mask of an attention; of one whose heads have different patterns, of some heads."""

    path: str
    pattern: str
    mask: Tensor  # (queries, memory + queries), bytes
    memory: int
    bias: BiasCurves | None

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "pattern": self.pattern,
            "keys": self.mask.shape[1],
            "memory": self.memory,
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
        memory = count_memory(stack.spec, size) if is_self else 0
        positions = find_position_name(stack, spec.relative_position)
        bias = compute_bias_curves(stack, size, positions) if is_self else None
        masks += [
            LayerMask(
                path=path,
                pattern=format_pattern(pattern),
                mask=build_mask(pattern, size, memory),
                memory=memory,
                bias=bias,
            )
            for pattern in list_patterns(spec.pattern)
        ]
    return masks


def list_patterns(pattern: Pattern) -> list[Pattern]:
    """Return the different patterns of the heads of a layer."""
    return [*dict.fromkeys(pattern.patterns)] if isinstance(pattern, PerHead) else [pattern]


def count_memory(spec: StackSpec, size: int) -> int:
    """Return the columns of memory that are drawn: at most half as many as queries."""
    recurrence = spec.recurrence
    if recurrence is None or (recurrence.starts_with_zeros and not recurrence.memory_length):
        return 0
    return min(recurrence.memory_length or size, size // 2)


def build_mask(pattern: Pattern, size: int, memory: int) -> Tensor:
    """Return the mask (size, memory + size) as bytes, one where a query may attend."""
    queries = torch.arange(memory, memory + size)[:, None]
    keys = torch.arange(memory + size)[None]
    visible = pattern.with_memory(memory)(queries, keys)
    return visible.expand(size, memory + size).to(torch.uint8).contiguous()


@torch.no_grad()
def compute_bias_curves(stack: Stack, size: int, positions: str | None) -> BiasCurves | None:
    """Return the position bias by distance; None if positions are not added to the scores."""
    if stack.position_bias is None or positions not in BIAS_NAMES:
        return None
    device = next(stack.parameters()).device
    distances = torch.arange(-size, size + 1, device=device)
    query = torch.full((1, 1), size, device=device)
    curves = stack.position_bias(query, (distances + size)[None])[0, :, 0]  # (H, distances)
    return BiasCurves(
        name=BIAS_NAMES[positions],
        distances=tuple(distances.tolist()),
        values=curves.float().cpu(),
    )
