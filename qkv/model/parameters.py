"""Parameters of a network: created on the meta device, then set to the tensors of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from qkv.families.family import Args, Family
from qkv.model.config import detect_prefix
from qkv.nn.transformer import DualEncoder, Transformer, build_network
from qkv.spec import DualSpec, Spec
from qkv.weights.names_table import NamesTable, TensorMapping
from qkv.weights.safetensors import align_tensor


class SkipInitialization(TorchFunctionMode):
    """Skips torch.nn.init, which would import torch's compiler on the meta device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return (kwargs or {}).get("tensor", args[0] if args else None)
        return func(*args, **(kwargs or {}))


def build_meta_network(spec: Spec | DualSpec) -> Transformer | DualEncoder:
    """Return the network with its parameters on the meta device."""
    with torch.device("meta"), SkipInitialization():
        return build_network(spec)


def upgrade_norm_name(name: str) -> str:
    """Replace the TensorFlow names of a norm's weight and bias in the oldest checkpoints."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
        "LayerNorm.beta", "LayerNorm.bias"
    )


def has_untied_weights(
    family: Family, args: Args, net: nn.Module, tensors: Mapping[str, Tensor]
) -> bool:
    """Return whether a checkpoint has two different tensors for the embedding and the head, which
    config.json ties."""
    parameters = dict(net.named_parameters(remove_duplicate=False))
    names_table = family.build_names_table(args, detect_prefix(family, tensors, args))
    tensors_by_parameter = {
        id(parameters[mapping.parameter_names[0]]): tensors.get(mapping.checkpoint_name)
        for mapping in names_table.map_parameters(dict(net.named_parameters()))
    }
    for mapping in names_table.map_parameters(
        name for name in parameters if name.startswith("heads.")
    ):
        head = tensors.get(mapping.checkpoint_name)
        tied = tensors_by_parameter.get(id(parameters[mapping.parameter_names[0]]))
        if (
            head is not None
            and tied is not None
            and head is not tied
            and not torch.equal(head, tied)
        ):
            return True
    return False


def load_parameters(
    net: nn.Module, names_table: NamesTable, tensors: dict[str, Tensor], folder: Path
) -> dict[str, Tensor]:
    """Set the parameters of a network and return the tensors of heads that it does not have.

    One error lists all problems."""
    parameters = dict(net.named_parameters())
    shapes = {name: p.shape for name, p in parameters.items()}
    problems: list[str] = []
    values: dict[str, Tensor] = {}
    used: set[str] = set()
    for mapping in names_table.map_parameters(parameters):
        if mapping.operation == "copy":
            continue
        name = mapping.checkpoint_name
        used.add(name)
        tensor = tensors.get(name)
        expected = mapping.to_checkpoint(parameters).shape
        if tensor is None:
            problems.append(f"{name} is missing, expected {list(expected)}")
        elif not tensor.dtype.is_floating_point or tensor.element_size() < 2:
            problems.append(
                f"{name} is {str(tensor.dtype).removeprefix('torch.')}, expected floating point"
            )
        elif tensor.shape != expected:
            problems.append(f"{name} is {list(tensor.shape)}, expected {list(expected)}")
        else:
            values |= mapping.to_parameters(tensor, shapes)
    all_parameters = dict(net.named_parameters(remove_duplicate=False))
    first_names = {id(p): name for name, p in parameters.items()}
    extra_tensors = {}
    for name in tensors.keys() - used:
        match = names_table.find_parameter(name)
        if match is None:
            problems.append(f"{name if name.isprintable() else repr(name)} is unknown")
            continue
        parameter_name, operation = match
        if match == ("-", ""):
            continue
        if operation in ("copy", "keep"):
            extra_tensors[name] = tensors[name]
        elif parameter_name in all_parameters:
            value = values.get(first_names[id(all_parameters[parameter_name])])
            mapping = TensorMapping(name, (parameter_name,), operation)
            tied = mapping.to_parameters(tensors[name], shapes)[parameter_name]
            if value is not None and not torch.equal(tied, value):
                problems.append(f"{name} differs from the tensor to which it is tied")
        elif parameter_name.startswith("heads."):
            extra_tensors[name] = tensors[name]
        else:
            problems.append(f"{name} has no parameter in this model")
    if problems:
        raise ValueError(
            f"{folder}: weights do not match config.json: " + "; ".join(sorted(problems))
        )
    set_parameters(net, values)
    return extra_tensors


def set_parameters(net: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Replace parameters, including tied ones; only tensors that are not aligned to 64 bytes are
    copied."""
    parameters = dict(net.named_parameters())
    replacements = {}
    for name, tensor in tensors.items():
        requires_grad = parameters[name].requires_grad and tensor.is_floating_point()
        replacements[id(parameters[name])] = nn.Parameter(
            align_tensor(tensor), requires_grad=requires_grad
        )
    for module in net.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                module._parameters[name] = replacements[id(parameter)]
