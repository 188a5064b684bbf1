"""LoRA: low-rank adapters of frozen linear layers (Hu et al. 2021). Does not depend on files.

             ┌──── W, b ────┐
    x ───────┤              + ─── y        the layer, W and b keep their names
             └─ A ── B · s ─┘

Layers that are one tensor in a checkpoint (GPT-2's c_attn) share A and have separate B."""

import math
from collections import Counter
from collections.abc import Collection, Iterable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.nn.feed_forward import MixtureOfExperts
from qkv.nn.heads import AdaptiveSoftmax
from qkv.validate import check_number, match_names


class AdapterGroup(NamedTuple):
    """Linear layers that share the matrix A."""

    paths: tuple[str, ...]
    r: int
    lora_alpha: float


class LoraLinear(nn.Module):
    """y = x W' + b + s (x A') B' with s = lora_alpha / r, or lora_alpha / sqrt(r) with rsLoRA
    (Kalajdzievski 2023)."""

    def __init__(
        self, base: nn.Linear, *, r: int, lora_alpha: float, lora_dropout: float = 0.0,
        use_rslora: bool = False, lora_a: nn.Linear | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.weight = base.weight
        self.bias = base.bias
        self.r = r
        self.lora_alpha = lora_alpha
        self.use_rslora = use_rslora
        self.scaling = lora_alpha / (math.sqrt(r) if use_rslora else r)
        dtype = torch.promote_types(
            base.weight.dtype, torch.float32
        )  # small updates need full precision
        linear = partial(nn.Linear, bias=False, device=base.weight.device, dtype=dtype)
        self.lora_a = lora_a or linear(base.in_features, r)
        self.lora_b = linear(r, base.out_features)
        nn.init.zeros_(self.lora_b.weight)
        self.dropout = nn.Dropout(lora_dropout)
        self.train(base.training)

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.weight, self.bias)
        low_rank = self.lora_a(self.dropout(x).to(self.lora_a.weight.dtype))
        return y + (self.lora_b(low_rank) * self.scaling).to(y.dtype)

    @torch.no_grad()
    def merged_linear(self) -> nn.Linear:
        """Return a plain layer with the adapter merged into its weight in place."""
        update = self.scaling * self.lora_b.weight @ self.lora_a.weight
        self.weight.copy_(self.weight.to(update.dtype) + update)
        out_features, in_features = self.weight.shape
        linear = nn.Linear(in_features, out_features, device="meta").train(self.training)
        linear.weight = self.weight
        linear.bias = self.bias
        return linear


def add_lora(
    net: nn.Module, *, r: int = 8, lora_alpha: float = 16.0, lora_dropout: float = 0.0,
    use_rslora: bool = False, target_modules: str | Iterable[str] = ("q", "v"),
    modules_to_save: Collection[str] = (),
) -> list[str]:  # fmt: skip
    """Freeze the network and add adapters to the linear layers that match; return their paths.

    A pattern is a path or the end of a path after a dot; with `attention.q,k,v`, the three layers
    share A. The parameters in `modules_to_save` are trained in full, and their layers get no
    adapter."""
    layers = [path for path in linear_layers(net) if f"{path}.weight" not in modules_to_save]
    item_name = "linear layer that is not new" if modules_to_save else "linear layer"
    groups: list[AdapterGroup] = []
    for pattern in [target_modules] if isinstance(target_modules, str) else target_modules:
        prefix, dot, names = pattern.rpartition(".")
        matches = [match_names(item_name, prefix + dot + name, layers) for name in names.split(",")]
        parents = [[path.rpartition(".")[0] for path in paths] for paths in matches]
        if any(each != parents[0] for each in parents):
            raise ValueError(f"pattern {pattern!r}: expected {names} in the same modules")
        groups += [AdapterGroup(paths, r, lora_alpha) for paths in zip(*matches, strict=True)]
    insert_adapters(
        net,
        groups,
        lora_dropout=lora_dropout,
        use_rslora=use_rslora,
        modules_to_save=modules_to_save,
    )
    return [path for group in groups for path in group.paths]


def insert_adapters(
    net: nn.Module, groups: list[AdapterGroup], *, lora_dropout: float, use_rslora: bool,
    modules_to_save: Collection[str] = (),
) -> None:  # fmt: skip
    """Freeze all parameters except `modules_to_save` and add adapters to the layers of the groups."""
    check_number("lora_dropout", lora_dropout, at_least=0, less_than=1)
    for group in groups:
        check_number("r", group.r, integer=True, at_least=1)
        check_number("lora_alpha", group.lora_alpha, more_than=0)
    if problems := adapter_problems(net, groups):
        raise ValueError(f"no adapter added: {'; '.join(problems)}")
    net.requires_grad_(False)
    for group in groups:
        lora_a: nn.Linear | None = None
        for path in group.paths:
            base = net.get_submodule(path)
            assert isinstance(base, nn.Linear)
            layer = LoraLinear(
                base, r=group.r, lora_alpha=group.lora_alpha, lora_dropout=lora_dropout,
                use_rslora=use_rslora, lora_a=lora_a,
            )  # fmt: skip
            net.set_submodule(path, layer)
            lora_a = layer.lora_a
    for layer in lora_layers(net).values():
        layer.lora_a.requires_grad_(True)
        layer.lora_b.requires_grad_(True)
    for name in modules_to_save:
        net.get_parameter(name).requires_grad_(True)


def adapter_problems(net: nn.Module, groups: list[AdapterGroup]) -> list[str]:
    """Return the reasons why adapters cannot be added to these layers."""
    owners = Counter(id(p) for module in net.modules() for p in module.parameters(recurse=False))
    weight_only: set[nn.Module] = set()  # layers whose weight is used without calling them
    for module in net.modules():
        if isinstance(module, MixtureOfExperts):
            weight_only |= {module.router}
        if isinstance(module, AdaptiveSoftmax):
            weight_only |= {*module.tables, *module.projections}
    problems = []
    layers = linear_layers(net)
    for path, times in Counter(path for group in groups for path in group.paths).items():
        if times > 1:
            problems.append(f"{path} is named twice")
        if isinstance(layers[path], LoraLinear):
            problems.append(f"{path} has an adapter already")
        if owners[id(layers[path].weight)] > 1:
            problems.append(f"the weight of {path} is tied to another")
        if layers[path] in weight_only:
            problems.append(f"{path} is never called, only its weight is read")
    for group in groups:
        if len({layers[path].weight.shape[1] for path in group.paths}) > 1:
            paths = ", ".join(group.paths)
            problems.append(f"{paths} have inputs of different sizes and cannot share an A")
    return problems


def linear_layers(net: nn.Module) -> dict[str, nn.Linear | LoraLinear]:
    """Return the linear layers by path, with or without an adapter, but not those of adapters."""
    layers: dict[str, nn.Linear | LoraLinear] = {}
    for path, module in net.named_modules():
        if isinstance(module, nn.Linear | LoraLinear) and path.rpartition(".")[0] not in layers:
            layers[path] = module
    return layers


def lora_layers(net: nn.Module) -> dict[str, LoraLinear]:
    """Return the layers with an adapter by path."""
    return {path: module for path, module in net.named_modules() if isinstance(module, LoraLinear)}


def merge_lora(net: nn.Module) -> list[str]:
    """Merge every adapter into the weight of its layer and return the paths; weights stay frozen."""
    layers = lora_layers(net)
    if not layers:
        raise ValueError(
            "the network has no adapters to merge: call add_lora or read_adapter first"
        )
    for path, layer in layers.items():
        net.set_submodule(path, layer.merged_linear())
    return list(layers)
