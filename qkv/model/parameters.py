"""Parameters: a network without memory, filled with the tensors of a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from qkv.families.family import Args, Family
from qkv.model.config import prefix_in
from qkv.nn.transformer import Pair, Transformer, make_net
from qkv.spec import Spec, Two
from qkv.weights.names_table import KeyMap
from qkv.weights.safetensors import aligned


class NoFirstValues(TorchFunctionMode):
    """What comes from a file is not drawn first. Drawn without memory, it would need torch's compiler."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return (kwargs or {}).get("tensor", args[0] if args else None)
        return func(*args, **(kwargs or {}))


def skeleton(spec: Spec | Two) -> Transformer | Pair:
    """The network without memory for its weights."""
    with torch.device("meta"), NoFirstValues():
        return make_net(spec)


def newer_name(name: str) -> str:
    """TensorFlow's names for the two tensors of a norm, as the oldest checkpoints still have them."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def apart(kin: Family, args: Args, net: nn.Module, tensors: Mapping[str, Tensor]) -> bool:
    """Does the file hold two different tensors where the config ties a head to the tokens?"""
    every = dict(net.named_parameters(remove_duplicate=False))
    names = kin.keymap(args, prefix_in(kin, tensors, args))
    table = {
        id(every[link.ours[0]]): tensors.get(link.theirs)
        for link in names.links(dict(net.named_parameters()))
    }
    for link in names.links(name for name in every if name.startswith("heads.")):
        mine, first = tensors.get(link.theirs), table.get(id(every[link.ours[0]]))
        if mine is not None and first is not None and mine is not first and not torch.equal(mine, first):
            return True
    return False


def fill(net: nn.Module, names: KeyMap, tensors: dict[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """Puts tensors into the net; returns those of heads it has not. All problems in one message."""
    wanted = dict(net.named_parameters())
    shapes = {name: p.shape for name, p in wanted.items()}
    problems: list[str] = []
    found: dict[str, Tensor] = {}
    used: set[str] = set()
    for link in names.links(wanted):
        have = tensors.get(link.theirs)
        if link.word == "copy":
            continue
        used.add(link.theirs)
        expected = link.to_theirs(wanted).shape
        if have is None:
            problems.append(f"{link.theirs} is missing, expected {list(expected)}")
        elif not have.dtype.is_floating_point or have.element_size() < 2:
            problems.append(
                f"{link.theirs} is {str(have.dtype).removeprefix('torch.')}, expected floating point"
            )
        elif have.shape != expected:
            problems.append(f"{link.theirs} is {list(have.shape)}, expected {list(expected)}")
        else:
            found |= link.to_ours(have, shapes)
    tied = dict(net.named_parameters(remove_duplicate=False))
    owner = {id(p): name for name, p in wanted.items()}
    spare = {}
    for name in tensors.keys() - used:
        known = names.ours(name)
        if known is None:
            problems.append(f"{name if name.isprintable() else repr(name)} is unknown")
        elif known == ("-", ""):
            continue
        elif known[1] not in ("copy", "keep") and known[0] in tied:
            first = found.get(owner[id(tied[known[0]])])
            if first is not None and not torch.equal(tensors[name], first):
                problems.append(f"{name} differs from the tensor that it is tied to")
        elif known[1] in ("copy", "keep") or known[0].startswith("heads."):
            spare[name] = tensors[name]
        else:
            problems.append(f"{name} has no place in this model")
    if problems:
        raise ValueError(f"{folder}: weights and config.json do not fit: " + "; ".join(sorted(problems)))
    place(net, found)
    return spare


def place(net: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Sets parameters, ties included; copies only what does not lie at a 64-byte boundary."""
    parameters = dict(net.named_parameters())
    fresh = {
        id(parameters[name]): nn.Parameter(
            aligned(x), requires_grad=parameters[name].requires_grad and x.is_floating_point()
        )
        for name, x in tensors.items()
    }
    for module in net.modules():
        for name, old in list(module._parameters.items()):
            if old is not None:
                module._parameters[name] = fresh[id(old)]
