"""LoRA: a low-rank change beside a frozen linear layer, added and folded in from outside (Hu et al. 2021).

             ┌──── W, b ────┐
    x ───────┤              + ─── y        the layer keeps its name, and W and b theirs
             └─ A ── B · s ─┘

Layers that are one tensor in a published file (GPT-2's c_attn) share one A and have a B each, which is what a
change of that tensor is. Knows no files."""

import math
from collections import Counter
from collections.abc import Collection, Iterable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.nn.feed_forward import Switch
from qkv.nn.heads import AdaptiveSoftmax
from qkv.validate import matching, number


class Group(NamedTuple):
    """Linear layers that share one A."""

    paths: tuple[str, ...]
    rank: int
    alpha: float


class Lora(nn.Module):
    """y = x W' + b + s (x A') B'; s is alpha / rank, or alpha / sqrt(rank) (Kalajdzievski 2023)."""

    def __init__(
        self, base: nn.Linear, *, rank: int, alpha: float, drop: float = 0.0, root: bool = False,
        share: nn.Linear | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.weight, self.bias = base.weight, base.bias
        self.rank, self.alpha, self.root = rank, alpha, root
        self.scale = alpha / (math.sqrt(rank) if root else rank)
        fine = torch.promote_types(base.weight.dtype, torch.float32)  # small steps get lost in coarse weights
        make = partial(nn.Linear, bias=False, device=base.weight.device, dtype=fine)
        self.lora_a = share or make(base.in_features, rank)
        self.lora_b = make(rank, base.out_features)
        nn.init.zeros_(self.lora_b.weight)
        self.drop = nn.Dropout(drop)
        self.train(base.training)

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.weight, self.bias)
        low = self.lora_a(self.drop(x).to(self.lora_a.weight.dtype))
        return y + (self.lora_b(low) * self.scale).to(y.dtype)

    @torch.no_grad()
    def folded(self) -> nn.Linear:
        """A plain layer with the change in its weight, which stays the same tensor."""
        change = self.scale * self.lora_b.weight @ self.lora_a.weight
        self.weight.copy_(self.weight.to(change.dtype) + change)
        outer, inner = self.weight.shape
        plain = nn.Linear(inner, outer, device="meta").train(self.training)
        plain.weight, plain.bias = self.weight, self.bias
        return plain


def add_lora(
    net: nn.Module, *, rank: int = 8, alpha: float = 16.0, drop: float = 0.0, root: bool = False,
    where: str | Iterable[str] = ("q", "v"), whole: Collection[str] = (),
) -> list[str]:  # fmt: skip
    """Freezes the network and adds adapters, which learn, to the linear layers at these paths; returns them.

    A pattern is a path, whole or from a dot on; `attend.q,k,v` gives the three one A. `root` divides alpha by
    the square root of the rank instead of by the rank. Tensors in `whole` learn as they are, beside the
    adapters, and their layers get none."""
    layers = [path for path in linears(net) if f"{path}.weight" not in whole]
    what = "linear layer that is not new" if whole else "linear layer"
    groups: list[Group] = []
    for pattern in [where] if isinstance(where, str) else where:
        head, dot, last = pattern.rpartition(".")
        found = [matching(what, head + dot + part, layers) for part in last.split(",")]
        homes = [[path.rpartition(".")[0] for path in paths] for paths in found]
        if any(each != homes[0] for each in homes):
            raise ValueError(f"pattern {pattern!r}: expected {last} beside each other, wherever one is")
        groups += [Group(paths, rank, alpha) for paths in zip(*found, strict=True)]
    adapt(net, groups, drop=drop, root=root, whole=whole)
    return [path for group in groups for path in group.paths]


def adapt(
    net: nn.Module, groups: list[Group], *, drop: float, root: bool, whole: Collection[str] = ()
) -> None:
    """Freezes the network, but for what is named in `whole`, and adds adapters to these layers."""
    number("drop", drop, at_least=0, less_than=1)
    for group in groups:
        number("rank", group.rank, whole=True, at_least=1)
        number("alpha", group.alpha, more_than=0)
    if wrong := unfit(net, groups):
        raise ValueError(f"no adapter added: {'; '.join(wrong)}")
    net.requires_grad_(False)
    for group in groups:
        share: nn.Linear | None = None
        for path in group.paths:
            base = net.get_submodule(path)
            assert isinstance(base, nn.Linear)
            made = Lora(base, rank=group.rank, alpha=group.alpha, drop=drop, root=root, share=share)
            net.set_submodule(path, made)
            share = made.lora_a
    for each in adapters(net).values():
        each.lora_a.requires_grad_(True)
        each.lora_b.requires_grad_(True)
    for name in whole:
        net.get_parameter(name).requires_grad_(True)


def unfit(net: nn.Module, groups: list[Group]) -> list[str]:
    """What is wrong with adapters at these places."""
    owners = Counter(id(p) for module in net.modules() for p in module.parameters(recurse=False))
    by_weight: set[nn.Module] = set()
    for module in net.modules():
        by_weight |= {module.router} if isinstance(module, Switch) else set()
        by_weight |= {*module.tables, *module.projects} if isinstance(module, AdaptiveSoftmax) else set()
    wrong, layers = [], linears(net)
    named = Counter(path for group in groups for path in group.paths)
    for path, times in named.items():
        if times > 1:
            wrong.append(f"{path} is named twice")
        if isinstance(layers[path], Lora):
            wrong.append(f"{path} has one already")
        if owners[id(layers[path].weight)] > 1:
            wrong.append(f"the weight of {path} is tied to another")
        if layers[path] in by_weight:
            wrong.append(f"{path} is never called, only its weight is read")
    for group in groups:
        if len({layers[path].weight.shape[1] for path in group.paths}) > 1:
            wrong.append(f"{', '.join(group.paths)} read inputs of different sizes and cannot share an A")
    return wrong


def linears(net: nn.Module) -> dict[str, nn.Linear | Lora]:
    """The linear layers by path, adapted or not; the two inside of an adapter are none of them."""
    found: dict[str, nn.Linear | Lora] = {}
    for path, module in net.named_modules():
        if isinstance(module, nn.Linear | Lora) and path.rpartition(".")[0] not in found:
            found[path] = module
    return found


def adapters(net: nn.Module) -> dict[str, Lora]:
    """The adapters by path."""
    return {path: module for path, module in net.named_modules() if isinstance(module, Lora)}


def merge(net: nn.Module) -> list[str]:
    """Folds every adapter into the weight beside it; returns the paths. The weights stay frozen."""
    found = adapters(net)
    if not found:
        raise ValueError("the network has no adapters to merge: expected add_lora or read_adapter before")
    for path, each in found.items():
        net.set_submodule(path, each.folded())
    return list(found)
