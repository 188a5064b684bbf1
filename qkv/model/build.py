"""build: a new model of a family, its weights initialized as the paper says."""

from __future__ import annotations

import fnmatch
from typing import Any

import torch
from torch import nn

from qkv.families import family
from qkv.families.family import Args, Family
from qkv.model.config import write_config
from qkv.model.limits import check_kinds, check_together
from qkv.model.model import Model
from qkv.model.transforms.pooling import Vector, with_vector
from qkv.model.transforms.positions import with_positions
from qkv.nn.transformer import Pair, Transformer, make_net
from qkv.spec import Spec, Two


def build(
    name: str, size: str | None = None, *, positions: str | None = None, vector: str | None = None,
    **changes: Any,
) -> Model:  # fmt: skip
    """A fresh model of a family, initialised as its paper says; `vector` adds one of length one a text."""
    kin = family(name)
    size = size or next(iter(kin.sizes))
    check_kinds(kin, changes)
    args = kin.arguments(size, **changes)
    check_together(kin, args)
    pooled = None if vector is None else Vector(vector)
    net = make_net(make_spec(kin, args, positions, pooled))
    initialise(net)
    config = {} if positions or not kin.model_types else write_config(kin, args)
    return Model(kin, args, net.eval(), config, positions=positions, vector=pooled)


def make_spec(
    kin: Family, args: Args, positions: str | None = None, vector: Vector | None = None
) -> Spec | Two:
    spec = kin.make(**args)
    spec = with_positions(spec, positions) if positions else spec
    return with_vector(spec, vector) if vector else spec


@torch.no_grad()
def initialise(net: Transformer | Pair) -> None:
    """Norms to one, biases to zero, every other tensor normal with the deviation its spec gives."""
    halves = [net] if isinstance(net, Transformer) else [net.text, net.image]
    for part in [half for half in halves if half is not None]:
        for name, tensor in part.named_parameters():
            owner = part.get_submodule(name.rpartition(".")[0])
            std = next(value for pattern, value in part.spec.init if fnmatch.fnmatch(name, pattern))
            if isinstance(owner, nn.LayerNorm | nn.RMSNorm):
                tensor.normal_(1.0, part.spec.norm_std) if name.endswith("weight") else tensor.zero_()
            elif name.endswith(".bias"):
                tensor.zero_()
            elif std == "xavier" and tensor.dim() > 1:
                nn.init.xavier_uniform_(tensor)
            else:
                std, cut = std if isinstance(std, float) else 0.02, part.spec.init_cut
                nn.init.trunc_normal_(tensor, 0.0, std, -cut * std, cut * std) if cut else tensor.normal_(
                    0.0, std
                )
                if isinstance(owner, nn.Embedding) and owner.padding_idx is not None:
                    tensor[owner.padding_idx] = 0
    if isinstance(net, Pair) and net.temperature is not None and net.spec.temperature is not None:
        net.temperature.fill_(net.spec.temperature)
