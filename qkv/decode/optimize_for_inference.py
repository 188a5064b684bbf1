"""prepare: the same network for reading alone, its weights laid out for speed. Training never sees it.

q, k and v of a self-attention become one product; on a CPU weights lie with the inputs first, or packed, as
its kernels like them; nothing is dropped any more. The numbers are the network's, up to the last bits; with
precision "half", weights of linear layers are kept in fp16 (CPU, FBGEMM): half the memory to read."""

from __future__ import annotations

from copy import deepcopy
from threading import get_ident

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.kernels.vocab_linear import Wide
from qkv.nn.attention import Attention
from qkv.nn.feed_forward import Feed
from qkv.nn.heads import Reader
from qkv.nn.transformer import Block, Transformer

PRECISIONS = (None, "half")
MANY = 4  # rows from which on packed weights are read faster


def prepare(net: Transformer, precision: str | None = None) -> Transformer:
    """A network that reads faster; it shares what it does not lay out anew, and follows no later change."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision is {precision!r}, expected half, or none for the network's own")
    device = next(net.parameters()).device
    if precision == "half" and device.type != "cpu":
        raise ValueError(
            f"precision half is for a CPU, the network is on {device}: convert its dtype instead"
        )
    held = [*net.parameters(), *net.buffers()]
    lean = deepcopy(net, {id(tensor): tensor for tensor in held})
    for block in [module for module in lean.modules() if isinstance(module, Block)]:
        if lean.tower.stack.recall is None and joinable(block.attend):
            join(block.attend)
    for module in [*lean.modules()]:
        for name, child in module.named_children():
            setattr(module, name, lighter(module, child, precision, device))
    return lean.eval()


def lighter(owner: nn.Module, layer: nn.Module, precision: str | None, device: torch.device) -> nn.Module:
    """What a layer becomes."""
    if isinstance(layer, nn.Dropout):
        return nn.Identity()
    if not isinstance(layer, nn.Linear) or not isinstance(owner, CALLED):
        return layer
    if precision == "half":
        return Half(layer)
    if isinstance(layer, Wide):
        packs = device.type == "cpu" and layer.weight.dtype == torch.float32 and has_mkldnn()
        return Packed(layer) if packs else plain(layer)
    return Turned(layer) if device.type == "cpu" else layer


def plain(wide: Wide) -> nn.Linear:
    """The layer onto the vocabulary without rows of zeros, which would be added at every step."""
    linear = nn.Linear(wide.in_features, wide.out_features, device="meta")
    linear.weight, linear.bias = wide.weight, wide.bias
    return linear


class Turned(nn.Module):
    """A linear layer whose weight is (in, out)."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = linear.weight.detach().t().contiguous()
        self.bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        out = flat @ self.weight if self.bias is None else torch.addmm(self.bias, flat, self.weight)
        return out.view(*x.shape[:-1], -1)


class Packed(nn.Module):
    """The layer onto the vocabulary: few rows read the weight as it is, many a copy packed for them."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = linear.weight.detach()
        self.bias = None if linear.bias is None else linear.bias.detach()
        self.packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(self.weight.contiguous(), 32 * MANY)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[:-1].numel() < MANY:
            return F.linear(x, self.weight, self.bias)
        found: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return found


def has_mkldnn() -> bool:
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class Half(nn.Module):
    """A linear layer whose weight is in fp16; it takes and gives fp32."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        bias = None if linear.bias is None else linear.bias.detach().float()
        self.packed = torch.ops.quantized.linear_prepack_fp16(linear.weight.detach().float(), bias)

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.quantized.linear_dynamic_fp16(x.float(), self.packed).to(x.dtype)


def joinable(attend: Attention) -> bool:
    return all(type(layer) is nn.Linear for layer in (attend.q, attend.k, attend.v))


@torch.no_grad()
def join(attend: Attention) -> None:
    """One product for q, k and v, which the attention asks for in this order."""
    parts = (attend.q, attend.k, attend.v)
    sizes = [part.out_features for part in parts]
    biased = attend.q.bias is not None
    joint = nn.Linear(attend.q.in_features, sum(sizes), bias=biased, device=attend.q.weight.device)
    joint.weight = nn.Parameter(torch.cat([part.weight for part in parts]))
    if biased:
        joint.bias = nn.Parameter(torch.cat([part.bias for part in parts]))
    rest = Rest()
    attend.q, attend.k, attend.v = First(joint, sizes, rest), rest, rest  # type: ignore[assignment]


class Rest(nn.Module):
    """Gives what First has made besides the queries: the keys, then the values; to each thread its own."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, list[Tensor]] = {}

    def forward(self, context: Tensor) -> Tensor:
        return self.made[get_ident()].pop(0)


class First(nn.Module):
    def __init__(self, joint: nn.Linear, sizes: list[int], rest: Rest) -> None:
        super().__init__()
        self.joint, self.sizes, self.rest = joint, sizes, rest

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.joint(x).split(self.sizes, dim=-1)
        self.rest.made[get_ident()] = [k, v]
        return q


CALLED = (Attention, First, Feed, Reader)  # they call their linear layers; others look at the weights
