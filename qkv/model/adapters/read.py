"""Loading of an adapter into a model: LoRA pairs, modules that were saved in full, and the head of
the adapter.

A tensor without a parameter in the model is an error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.files import read_json_object
from qkv.model.adapters.config import AdapterConfig, read_adapter_config
from qkv.model.adapters.names import (
    AdapterNames,
    find_tied_parameters,
    get_base_parameters,
    match_adapter_names,
)
from qkv.model.build import build_model_spec
from qkv.model.file_names import ADAPTER_CONFIG_FILE, ADAPTER_HEAD_FILE, ADAPTER_WEIGHT_FILES
from qkv.model.model import Model
from qkv.model.parameters import build_meta_network, warn_about_nonfinite
from qkv.model.transforms.heads import replace_head
from qkv.model.transforms.sentence_transformers import read_pooling
from qkv.nn.lora import AdapterGroup, insert_adapters, linear_layers, lora_layers
from qkv.validate import summarize_problems
from qkv.weights.tensors import read_tensors

PEFT_PREFIX = "base_model.model."
LORA_TENSOR_PATTERN = re.compile(r"(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
HEAD_CONFIG_KEYS = (
    "id2label",
    "label2id",
    "problem_type",
)  # keys of config.json that belong to a head
LoraGroups = dict[AdapterGroup, tuple[Tensor, list[Tensor]]]  # one A, and one B per layer


class AdapterTensors(NamedTuple):
    """The tensors of an adapter file by checkpoint name, and problems with other tensors."""

    lora_pairs: dict[str, dict[str, Tensor]]  # A and B by module
    modules_to_save: dict[str, Tensor]
    problems: list[str]


def read_adapter(model: Model, folder: str | Path) -> Model:
    """Return the model with the adapter of a folder, to run or to train.

    It is the same model, or a new one if the adapter has another head."""
    folder = Path(folder)
    config = read_adapter_config(folder / ADAPTER_CONFIG_FILE)
    paths = [folder / name for name in ADAPTER_WEIGHT_FILES]
    path = next((path for path in paths if path.exists()), paths[0])
    tensors = sort_adapter_tensors(read_tensors(path))
    head_path = folder / ADAPTER_HEAD_FILE
    head_config: dict[str, Any] = read_json_object(head_path) if head_path.exists() else {}
    head = head_config.get("head", config.find_head(model.family))
    adapted, new_parameters = apply_adapter_head(model, folder, head, tensors.modules_to_save)
    names = match_adapter_names(adapted, tensors.lora_pairs, tensors.modules_to_save)
    groups, pair_problems = group_lora_pairs(adapted, names, config, tensors.lora_pairs)
    values, save_problems = map_modules_to_save(adapted, names, tensors.modules_to_save)
    known_heads = [*model.family.heads]
    problems = tensors.problems + pair_problems
    if not problems and known_heads and head not in (None, *known_heads):
        raise ValueError(f"{head_path}: head is {head!r}, expected one of {', '.join(known_heads)}")
    if problems := problems + save_problems:
        raise ValueError(
            f"{path}: {summarize_problems(problems)}; is it the adapter of another model?"
        )
    if missing := [name for name in new_parameters if name not in values]:
        raise ValueError(
            f"{path}: {summarize_problems(missing)} of the head is neither in the adapter nor in the "
            "model; expected the base model on which it was trained"
        )
    if not groups:
        raise ValueError(f"{path}: no LoRA tensors; expected an adapter")
    adapted_config = select_head_config(head_config, head_path, adapted.args.get("num_labels"))
    try:
        insert_adapters(
            adapted.net,
            list(groups),
            lora_dropout=config.lora_dropout,
            use_rslora=config.use_rslora,
            modules_to_save=values,
        )
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    copy_adapter_tensors(adapted, groups, values)
    adapted.new_parameters = ()  # the adapter has all of them
    trained = {name: p.detach() for name, p in adapted.net.named_parameters() if p.requires_grad}
    warn_about_nonfinite(path, trained)
    adapted.adapter_parameters_to_save = tuple(
        dict.fromkeys([*adapted.adapter_parameters_to_save, *values])
    )
    adapted.config |= adapted_config
    return adapted


def sort_adapter_tensors(tensors: Mapping[str, Tensor]) -> AdapterTensors:
    """Sort the tensors of a file into LoRA pairs and modules that were saved in full."""
    result = AdapterTensors({}, {}, [])
    for full_name, tensor in tensors.items():
        name = full_name.removeprefix(PEFT_PREFIX)
        if name == full_name:
            result.problems.append(f"{name} {list(tensor.shape)} is not a tensor of an adapter")
        elif not tensor.is_floating_point():
            result.problems.append(f"{full_name} is {tensor.dtype}, expected floating point")
        elif match := LORA_TENSOR_PATTERN.fullmatch(name):
            result.lora_pairs.setdefault(match["module"], {})[match["side"]] = tensor
        else:
            result.modules_to_save[name] = tensor
    return result


def apply_adapter_head(
    model: Model, folder: Path, head: object, modules_to_save: Mapping[str, Tensor]
) -> tuple[Model, tuple[str, ...]]:
    """Return the model with the head of the adapter, if the family has it, and the names of new
    parameters."""
    known_head = head if isinstance(head, str) and head in model.family.heads else None
    num_labels = 0
    try:
        if known_head in ("sequence-classification", "token-classification"):
            num_labels = count_labels(model, known_head, modules_to_save)
        adapted, new_parameters = replace_head(model, known_head, num_labels, read_pooling(folder))
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from None
    if adapted is not model:
        adapted.net.to(device=model.device, dtype=next(model.net.parameters()).dtype)
    return adapted, new_parameters


def count_labels(model: Model, head: str, modules_to_save: Mapping[str, Tensor]) -> int:
    """Return the number of labels of the saved last layer of a head; 0 if it was not saved."""
    args = {**model.args, "head": head}
    parameter_name = f"heads.{head.replace('-', '_')}.out.weight"
    checkpoint_name = parameter_name
    if model.find_hf_incompatibility() is None:
        mappings = model.family.build_names_table(args).map_parameters([parameter_name])
        checkpoint_name = mappings[0].checkpoint_name
    weight = modules_to_save.get(checkpoint_name)
    if weight is None or not weight.numel() or weight.dim() != 2:
        return 0
    args["num_labels"] = len(weight)
    net = build_meta_network(build_model_spec(model.family, args, model.variant))
    return len(weight) if net.get_parameter(parameter_name).shape == weight.shape else 0


def select_head_config(
    head_config: Mapping[str, Any], path: Path, num_labels: int | None
) -> dict[str, Any]:
    """Return the keys of head.json for the config of the model; each label must have a name."""
    label_names = head_config.get("id2label", {})
    if not isinstance(label_names, dict) or (label_names and len(label_names) != num_labels):
        raise ValueError(
            f"{path}: id2label is {label_names!r}, expected the names of {num_labels} labels"
        )
    return {key: head_config[key] for key in HEAD_CONFIG_KEYS if key in head_config}


def group_lora_pairs(
    model: Model,
    names: AdapterNames,
    config: AdapterConfig,
    lora_pairs: Mapping[str, Mapping[str, Tensor]],
) -> tuple[LoraGroups, list[str]]:
    """Return the LoRA pairs by the layers that they belong to, and problems."""
    layers = linear_layers(model.net)
    groups: LoraGroups = {}
    problems = []
    for module, pair in lora_pairs.items():
        if module not in names.modules:
            side, tensor = next(iter(pair.items()))
            name = f"{PEFT_PREFIX}{module}.lora_{side}.weight"
            shape = list(tensor.shape)
            problems.append(f"{name} {shape}: this {model.family.name} has no such module")
            continue
        if len(pair) < 2:
            problems.append(f"{module} has no lora_{'B' if 'A' in pair else 'A'}")
            continue
        paths = names.modules[module].paths
        a = pair["A"]
        b = pair["B"]
        out_sizes = [len(layers[path].weight) for path in paths]
        in_size = layers[paths[0]].weight.shape[1]
        rank = a.shape[0] if a.numel() and a.dim() == 2 else 0
        if not rank or a.shape[1] != in_size or b.shape != (sum(out_sizes), rank):
            expected = f"[r, {in_size}] and [{sum(out_sizes)}, r]"
            problems.append(
                f"{module} has A {list(a.shape)} and B {list(b.shape)}, expected {expected}"
            )
            continue
        groups[AdapterGroup(paths, rank, config.get_lora_alpha(module))] = (
            a,
            list(b.split(out_sizes)),
        )
    return groups, problems


def map_modules_to_save(
    model: Model, names: AdapterNames, modules_to_save: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], list[str]]:
    """Return the tensors that were saved in full by parameter name, and problems."""
    parameters = dict(model.net.named_parameters(remove_duplicate=False))
    base_parameters = get_base_parameters(model.net)
    shapes = {name: p.shape for name, p in parameters.items()}
    tied_names = find_tied_parameters(model.net)
    values: dict[str, Tensor] = {}
    problems = []
    tied = []  # description, first parameter, tensor
    for name, tensor in modules_to_save.items():
        mapping = names.mappings.get(name)
        match = names.names_table.find_parameter(name)
        description = f"{PEFT_PREFIX}{name} {list(tensor.shape)}"
        if (
            mapping is None
            and match is not None
            and match[1] == "alias"
            and match[0] in base_parameters
        ):
            tied.append((description, match[0], tensor))
        elif mapping is None:
            problems.append(f"{description}: this {model.family.name} has no such tensor")
        elif tensor.shape != (expected := mapping.to_checkpoint(parameters).shape):
            problems.append(f"{description}: expected {list(expected)}")
        elif mapping.parameter_names[0] in tied_names:
            parameter = parameters[mapping.parameter_names[0]]
            first_name = next(name for name, p in base_parameters.items() if p is parameter)
            tied.append((description, first_name, tensor))
        else:
            values |= mapping.to_parameters(tensor, shapes)
    for description, name, tensor in tied:
        if not torch.equal(tensor, values.get(name, base_parameters[name]).detach().to(tensor)):
            problems.append(f"{description} differs from {name}, to which it is tied here")
    return values, problems


@torch.no_grad()
def copy_adapter_tensors(
    model: Model, groups: LoraGroups, parameters: Mapping[str, Tensor]
) -> None:
    """Copy LoRA tensors and parameters that were saved in full into a model with adapters."""
    layers = lora_layers(model.net)
    for group, (a, parts) in groups.items():
        layers[group.paths[0]].lora_a.weight.copy_(a)
        for path, part in zip(group.paths, parts, strict=True):
            layers[path].lora_b.weight.copy_(part)
    for name, tensor in parameters.items():
        model.net.get_parameter(name).copy_(tensor)
