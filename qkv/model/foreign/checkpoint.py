"""ForeignCheckpoint: a checkpoint of another library; shared code of the readers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from qkv.families.family import Args, Family
from qkv.model.build import build_model_spec
from qkv.model.model import Model
from qkv.model.parameters import build_meta_network, load_parameters, warn_about_nonfinite
from qkv.text import Tokenizer
from qkv.weights.names_table import NamesTable


class ForeignCheckpoint(NamedTuple):
    """The content of a checkpoint of another library: a family, its arguments, and tensors with a
    names table."""

    path: Path
    family: Family
    args: Args
    config: dict[str, Any]
    names_table: str
    tensors: dict[str, Tensor]
    tokenizer: Tokenizer | None = None
    generation_config: dict[str, Any] | None = None


def build_foreign_model(checkpoint: ForeignCheckpoint) -> Model:
    """Return the model of a checkpoint."""
    path, family, args, config, names_table, tensors, tokenizer, generation_config = checkpoint
    try:
        net = build_meta_network(build_model_spec(family, args))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    loaded = load_parameters(net, NamesTable(names_table), tensors, path)
    warn_about_nonfinite(path, dict(net.named_parameters()), stacklevel=3)
    model = Model(
        family,
        args,
        net.eval(),
        config,
        generation_config=generation_config,
        new_parameters=loaded.new_parameters,
    )
    model.tokenizer = tokenizer
    return model


def get_matrix(tensors: Mapping[str, Tensor], name: str, path: Path) -> Tensor:
    """Return a tensor; raise ValueError if it is missing or not two-dimensional."""
    tensor = tensors.get(name)
    if tensor is None or tensor.dim() != 2:
        shape = "missing" if tensor is None else list(tensor.shape)
        raise ValueError(f"{path}: {name} is {shape}, expected a tensor of two dimensions")
    return tensor


def check_heads(width: int, heads: int, path: Path) -> None:
    """Raise ValueError unless the number of heads divides the width."""
    if not 0 < heads <= width or width % heads:
        raise ValueError(
            f"{path}: {heads} heads in a width of {width}, expected a divisor of the width"
        )


def complete_arguments(family: Family, path: Path, **arguments: Any) -> Args:
    """Return all arguments of a family; errors contain the path."""
    try:
        return family.arguments(None, **arguments)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
