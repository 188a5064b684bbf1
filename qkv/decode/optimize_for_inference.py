"""optimize_model: a copy of a network with a weight layout for inference. The copy cannot be trained.

The q, k and v projections of self-attention are fused; on a CPU, weights are transposed or packed for
its kernels; dropout is removed. Outputs are equal up to rounding. With precision "half", the weights
of linear layers are fp16 (CPU, FBGEMM), which halves the memory traffic."""

from __future__ import annotations

from copy import deepcopy
from threading import get_ident

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.kernels.vocab_linear import VocabLinear
from qkv.nn.attention import Attention
from qkv.nn.feed_forward import FeedForward
from qkv.nn.heads import PredictionHead
from qkv.nn.network import Network
from qkv.nn.recurrent.decoder import OutputLayer, ProjectedState, Summary
from qkv.nn.transformer import Layer
from qkv.torch_compat import (
    has_packed_linear,
    pack_linear_fp16,
    pack_linear_weight,
    packed_linear,
    packed_linear_fp16,
)

INFERENCE_PRECISIONS = (None, "half")
MIN_PACKED_ROWS = 4  # packed weights are faster from this many rows on


def optimize_model(net: Network, precision: str | None = None) -> Network:
    """Return an optimized copy of a network in evaluation mode.

    Tensors that need no new layout are shared; later changes of the network do not affect the
    others."""
    if precision not in INFERENCE_PRECISIONS:
        raise ValueError(
            f"precision is {precision!r}, expected 'half', or None for the precision of the network"
        )
    device = next(net.parameters()).device
    if precision == "half" and device.type != "cpu":
        raise ValueError(
            f"precision is 'half', expected None for a network on {device}: convert its dtype instead"
        )
    shared_tensors = [*net.parameters(), *net.buffers()]
    optimized = deepcopy(net, {id(tensor): tensor for tensor in shared_tensors})
    for layer in [module for module in optimized.modules() if isinstance(module, Layer)]:
        if optimized.last_stack.spec.recurrence is None and can_fuse_qkv(layer.attention):
            fuse_qkv(layer.attention)
    for module in [*optimized.modules()]:
        for name, child in module.named_children():
            setattr(module, name, optimize_layer(module, child, precision, device))
    return optimized.eval()


def optimize_layer(
    parent: nn.Module, layer: nn.Module, precision: str | None, device: torch.device
) -> nn.Module:
    """Return the replacement of a module, or the module itself."""
    if isinstance(layer, nn.Dropout):
        return nn.Identity()
    if not isinstance(layer, nn.Linear) or not isinstance(parent, LINEAR_PARENT_TYPES):
        return layer
    if precision == "half":
        return FP16Linear(layer)
    if isinstance(layer, VocabLinear):
        can_pack = (
            device.type == "cpu" and layer.weight.dtype == torch.float32 and has_packed_linear()
        )
        return PackedLinear(layer) if can_pack else unpad_vocab_linear(layer)
    return TransposedLinear(layer) if device.type == "cpu" else layer


def unpad_vocab_linear(vocab_linear: VocabLinear) -> nn.Linear:
    """Return the vocabulary projection as a linear layer, which does not pad its weight."""
    linear = nn.Linear(vocab_linear.in_features, vocab_linear.out_features, device="meta")
    linear.weight = vocab_linear.weight
    linear.bias = vocab_linear.bias
    return linear


class TransposedLinear(nn.Module):
    """Linear layer with a weight (in, out)."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = linear.weight.detach().t().contiguous()
        self.bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        output = (
            flat @ self.weight if self.bias is None else torch.addmm(self.bias, flat, self.weight)
        )
        return output.view(*x.shape[:-1], -1)


class PackedLinear(nn.Module):
    """Vocabulary projection that uses a packed copy of the weight for MIN_PACKED_ROWS or more rows."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = linear.weight.detach()
        self.bias = None if linear.bias is None else linear.bias.detach()
        self.packed_weight = pack_linear_weight(self.weight, 32 * MIN_PACKED_ROWS)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[:-1].numel() < MIN_PACKED_ROWS:
            return F.linear(x, self.weight, self.bias)
        return packed_linear(x, self.packed_weight, self.bias)


class FP16Linear(nn.Module):
    """Linear layer with an fp16 weight; it computes in fp32."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        bias = None if linear.bias is None else linear.bias.detach().float()
        self.packed_weight = pack_linear_fp16(linear.weight.detach().float(), bias)

    def forward(self, x: Tensor) -> Tensor:
        return packed_linear_fp16(x.float(), self.packed_weight).to(x.dtype)


def can_fuse_qkv(attention: Attention) -> bool:
    """Return whether the q, k and v projections are plain linear layers."""
    return all(type(layer) is nn.Linear for layer in (attention.q, attention.k, attention.v))


@torch.no_grad()
def fuse_qkv(attention: Attention) -> None:
    """Replace the q, k and v projections, which are called in this order, by a fused one."""
    projections = (attention.q, attention.k, attention.v)
    split_sizes = [projection.out_features for projection in projections]
    has_bias = attention.q.bias is not None
    qkv_proj = nn.Linear(
        attention.q.in_features, sum(split_sizes), bias=has_bias, device=attention.q.weight.device
    )
    qkv_proj.weight = nn.Parameter(torch.cat([projection.weight for projection in projections]))
    if has_bias:
        qkv_proj.bias = nn.Parameter(torch.cat([projection.bias for projection in projections]))
    kv_output = FusedKVOutput()
    attention.q = FusedQKVProjection(qkv_proj, split_sizes, kv_output)  # type: ignore[assignment]
    attention.k = kv_output  # type: ignore[assignment]
    attention.v = kv_output  # type: ignore[assignment]


class FusedKVOutput(nn.Module):
    """Returns the keys, then the values, that FusedQKVProjection computed in the same thread."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs_by_thread: dict[int, list[Tensor]] = {}

    def forward(self, context: Tensor) -> Tensor:
        return self.outputs_by_thread[get_ident()].pop(0)


class FusedQKVProjection(nn.Module):
    """Computes q, k and v in one product; returns q, and FusedKVOutput returns k and v."""

    def __init__(
        self, qkv_proj: nn.Linear, split_sizes: list[int], kv_output: FusedKVOutput
    ) -> None:
        super().__init__()
        self.qkv_proj = qkv_proj
        self.split_sizes = split_sizes
        self.kv_output = kv_output

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv_proj(x).split(self.split_sizes, dim=-1)
        self.kv_output.outputs_by_thread[get_ident()] = [k, v]
        return q


# Modules that call their linear layers; other modules access the weights.
LINEAR_PARENT_TYPES = (
    Attention,
    FusedQKVProjection,
    FeedForward,
    PredictionHead,
    OutputLayer,
    ProjectedState,
    Summary,
)
