"""Another head on a loaded model: what both have is kept, the rest is new."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from qkv.model.build import initialise, make_spec
from qkv.model.config import write_config
from qkv.model.model import Model
from qkv.model.transforms.pooling import Vector
from qkv.nn.lora import adapters
from qkv.nn.transformer import make_net


def headed(
    model: Model, head: str | None, labels: int, vector: Vector | None = None,
    others: Mapping[str, float] = MappingProxyType({}),
) -> tuple[Model, tuple[str, ...]]:  # fmt: skip
    """The model with that head for so many labels, and the names of its new tensors; `others`: its dropout,
    and how many tokens it remembers. None, 0: as it is."""
    kin = model.family
    for name in others:
        if not name.endswith("drop") and name != "memory":
            raise ValueError(f"model.{name}: a loaded model keeps its sizes; leave it out")
    changes: dict[str, Any] = {name: value for name, value in others.items() if model.args.get(name) != value}
    if head is not None and model.args.get("head") != head:
        changes["head"] = head
    if labels and model.args.get("labels") != labels:
        changes["labels"] = labels
    pooled = vector or model.vector
    if not changes and pooled == model.vector:
        return model, ()
    if adapters(model.net):
        asked = ", ".join(f"{name} {value!r}" for name, value in changes.items()) or f"vector {pooled}"
        raise ValueError(f"{asked}: the model has adapters of another head; expected the same, or qkv merge")
    args = kin.arguments(None, **{**model.args, **changes})
    net = make_net(make_spec(kin, args, model.positions, pooled))
    initialise(net)
    config = {**model.config, **({} if model.positions or not kin.model_types else write_config(kin, args))}
    made = Model(kin, args, net.eval(), config, positions=model.positions, vector=pooled, home=model.home)
    return made, keep(made, model)


@torch.no_grad()
def keep(made: Model, model: Model) -> tuple[str, ...]:
    """Fills what the other model, or the file that it is from, holds too; returns the names of the rest.

    A part of a head that has another name here is known by theirs, its last layer apart: that of labels and
    that of tags are both called classifier."""
    own = dict(made.net.named_parameters())
    shapes = {name: p.shape for name, p in own.items()}
    held: dict[str, Tensor] = dict(model.net.named_parameters())
    if made.no_class() is None and model.no_class() is None:
        before = model.family.keymap(model.args, model.prefix).links(held)
        heads = {
            link.theirs: link.to_theirs(held) for link in before
            if link.ours[0].startswith("heads.") and ".out." not in link.ours[0]
        } | model.spare  # fmt: skip
        for link in made.family.keymap(made.args, model.prefix).links(own):
            fits = link.theirs in heads and heads[link.theirs].shape == link.to_theirs(own).shape
            if fits and link.word != "copy" and link.ours[0] not in held:
                held |= link.to_ours(heads[link.theirs], shapes)
    new = []
    for name, tensor in own.items():
        if name in held and held[name].shape == tensor.shape:
            tensor.copy_(held[name])
        else:
            new.append(name)
    return tuple(new)
