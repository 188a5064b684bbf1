"""What the readers of other programs' checkpoints share."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from qkv.families.family import Args, Family
from qkv.model.build import make_spec
from qkv.model.model import Model
from qkv.model.parameters import fill, skeleton
from qkv.weights.names_table import KeyMap
from qkv.weights.tensors import nonfinite


class Foreign(NamedTuple):
    """What a file of another program holds, in our terms."""

    path: Path
    kin: Family
    args: Args
    config: dict[str, Any]
    table: str  # our names and theirs
    tensors: dict[str, Tensor]


def _open(found: Foreign) -> Model:
    path, kin, args, config, table, tensors = found
    try:
        net = skeleton(make_spec(kin, args))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    fill(net, KeyMap(table), tensors, path)
    for name in nonfinite(dict(net.named_parameters())):
        warnings.warn(f"{path}: {name} holds values that are not finite", stacklevel=3)
    return Model(kin, args, net.eval(), config)


def _table(tensors: Mapping[str, Tensor], name: str, path: Path) -> Tensor:
    """A tensor of two axes that sizes are read from."""
    tensor = tensors.get(name)
    if tensor is None or tensor.dim() != 2:
        found = "missing" if tensor is None else list(tensor.shape)
        raise ValueError(f"{path}: {name} is {found}, expected a tensor of two axes")
    return tensor


def _check_heads(width: int, heads: int, path: Path) -> None:
    if not 0 < heads <= width or width % heads:
        raise ValueError(f"{path}: {heads} heads in a width of {width}, expected a number that divides it")


def _arguments(kin: Family, path: Path, **stated: Any) -> Args:
    try:
        return kin.arguments(None, **stated)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
