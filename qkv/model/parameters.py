"""Parameters of a network: created on the meta device, then set to the tensors of a checkpoint."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from qkv.families.family import Args, Family
from qkv.files import join_problems
from qkv.model.build import initialize_weights
from qkv.model.config import detect_prefix
from qkv.nn.network import DualEncoder, Network, build_network
from qkv.spec import DualSpec, Spec
from qkv.weights.names_table import UNUSED, NamesTable, TensorMapping
from qkv.weights.safetensors import align_tensor
from qkv.weights.tensors import find_nonfinite


class SkipInitialization(TorchFunctionMode):
    """Skips torch.nn.init, which would import torch's compiler on the meta device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return (kwargs or {}).get("tensor", args[0] if args else None)
        return func(*args, **(kwargs or {}))


def build_meta_network(spec: Spec | DualSpec) -> Network | DualEncoder:
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
    aliases = names_table.find_aliases(tensors)
    tensors_by_parameter = {
        id(parameters[mapping.parameter_names[0]]): tensors.get(
            find_tensor_name(mapping, tensors, aliases)
        )
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


def find_tensor_name(
    mapping: TensorMapping, tensors: Mapping[str, Tensor], aliases: Mapping[str, str]
) -> str:
    """Return the name of a tensor in a checkpoint: the current one, or an alias if it is missing."""
    if mapping.checkpoint_name in tensors:
        return mapping.checkpoint_name
    return aliases.get(mapping.parameter_names[0], mapping.checkpoint_name)


def count_head_labels(
    family: Family, args: Args, net: nn.Module, tensors: Mapping[str, Tensor]
) -> int | None:
    """Return the number of labels that the tensors of the head have; None if it is that of `args`.

    The names in config.json may be fewer or more than the labels of the head."""
    parameters = {name: p for name, p in net.named_parameters() if is_head_parameter(name)}
    names_table = family.build_names_table(args, detect_prefix(family, tensors, args))
    for mapping in names_table.map_parameters(parameters):
        tensor = tensors.get(mapping.checkpoint_name)
        expected = mapping.to_checkpoint(parameters).shape
        if tensor is None or not tensor.dim() or tensor.shape == expected:
            continue
        num_labels = len(tensor)
        if num_labels and tensor.shape == (num_labels, *expected[1:]):
            other_net = build_meta_network(family.build_spec(**args | {"num_labels": num_labels}))
            other_parameters = dict(other_net.named_parameters())
            if mapping.to_checkpoint(other_parameters).shape == tensor.shape:
                return num_labels
    return None


def is_head_parameter(name: str) -> bool:
    """Return whether a parameter belongs to a head, of a model or of one encoder of two."""
    return name.startswith("heads.") or ".heads." in name


class LoadedTensors(NamedTuple):
    """What a checkpoint has beside the parameters of the network, and what it lacks."""

    extra_tensors: dict[str, Tensor]  # of heads and stacks that the network does not have
    new_parameters: tuple[str, ...]  # of heads that the checkpoint does not have: initialized


def load_parameters(
    net: Network | DualEncoder,
    names_table: NamesTable,
    tensors: dict[str, Tensor],
    folder: Path,
    body_prefixes: tuple[str, ...] = ("",),
) -> LoadedTensors:
    """Set the parameters of a network; those of a head that the checkpoint lacks are initialized.

    An unknown tensor without one of the `body_prefixes` belongs to a head of an unknown class. One
    error lists the problems."""
    parameters = dict(net.named_parameters())
    if len(tensors) > 1000 + 20 * len(parameters):
        raise ValueError(
            f"{folder}: {len(tensors):,} tensors, but the model of config.json has only "
            f"{len(parameters):,} parameters; is it the file of another model?"
        )
    shapes = {name: p.shape for name, p in parameters.items()}
    problems: list[str] = []
    unknown: list[str] = []
    values: dict[str, Tensor] = {}
    missing: dict[tuple[str, ...], str] = {}  # parameters -> problem
    aliases = names_table.find_aliases(tensors)
    used: set[str] = set()
    for mapping in names_table.map_parameters(parameters):
        if mapping.operation == "copy":
            continue
        name = find_tensor_name(mapping, tensors, aliases)
        used.add(name)
        tensor = tensors.get(name)
        expected = mapping.to_checkpoint(parameters).shape
        if tensor is None:
            missing[mapping.parameter_names] = f"{name} is missing, expected {list(expected)}"
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
    parts = {name for name, _ in net.named_children()}
    extra_tensors = {}
    for name in tensors.keys() - used:
        match = names_table.find_parameter(name)
        if match is None and not name.startswith(body_prefixes):
            extra_tensors[name] = tensors[name]
            continue
        if match is None:
            unknown.append(f"{name if name.isprintable() else repr(name)} is unknown")
            continue
        parameter_name, operation = match
        if match == (UNUSED, ""):
            continue
        if operation in ("copy", "keep"):
            extra_tensors[name] = tensors[name]
        elif parameter_name in all_parameters:
            value = values.get(first_names[id(all_parameters[parameter_name])])
            mapping = TensorMapping(name, (parameter_name,), operation)
            tied = mapping.to_parameters(tensors[name], shapes)[parameter_name]
            if value is not None and not torch.equal(tied, value):
                problems.append(f"{name} differs from the tensor to which it is tied")
        elif is_head_parameter(parameter_name) or parameter_name.partition(".")[0] not in parts:
            extra_tensors[name] = tensors[name]
        else:
            unknown.append(f"{name} has no parameter in this model")
    is_initialized = has_only_heads(missing, shapes, values)
    groups = (() if is_initialized else missing.values(), problems, unknown)
    if causes := [join_problems(sorted(group)) for group in groups if group]:
        raise ValueError(f"{folder}: weights do not match config.json: {'; '.join(causes)}")
    new_parameters = [name for names in missing for name in names]
    dtype = next(iter(values.values())).dtype
    set_parameters(net, values | {name: torch.empty(shapes[name]) for name in new_parameters})
    initialize_weights(net, new_parameters)
    for name in new_parameters:
        net.get_parameter(name).data = net.get_parameter(name).data.to(dtype)
    return LoadedTensors(extra_tensors, tuple(new_parameters))


def warn_about_nonfinite(path: Path, tensors: Mapping[str, Tensor], stacklevel: int = 2) -> None:
    """Warn in one line about tensors with NaN or infinite values.

    Buffers are not checked: a saved attention mask has -inf."""
    if names := find_nonfinite(tensors):
        warnings.warn(
            f"{path}: NaN or infinite values in {join_problems(names, 6)}; "
            "is the file damaged, or did training diverge?",
            stacklevel=stacklevel + 1,
        )


def has_only_heads(
    missing: Iterable[tuple[str, ...]],
    shapes: Mapping[str, torch.Size],
    values: Mapping[str, Tensor],
) -> bool:
    """Return whether missing parameters are heads, and smaller than the weights in the files.

    A config.json cannot cause an allocation larger than those."""
    names = [name for group in missing for name in group]
    size = sum(shapes[name].numel() for name in names)
    return all(map(is_head_parameter, names)) and size <= sum(x.numel() for x in values.values())


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
