"""Saving of adapters in PEFT's format, with modules that the base model lacks, label names and the
tokenizer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.files import save_json
from qkv.model.adapters.config import get_task_type
from qkv.model.adapters.names import (
    AdapterNames,
    build_adapter_names,
    find_tied_parameters,
    get_base_parameters,
)
from qkv.model.adapters.read import HEAD_CONFIG_KEYS, PEFT_PREFIX
from qkv.model.file_names import (
    ADAPTER_CONFIG_FILE,
    ADAPTER_HEAD_FILE,
    ADAPTER_WEIGHT_FILES,
    replace_adapter,
)
from qkv.model.model import Model
from qkv.nn.lora import LoraLinear, lora_layers
from qkv.staging import write_folder
from qkv.validate import summarize_problems
from qkv.weights.tensors import save_safetensors


class AdapterFiles(NamedTuple):
    """The config and the tensors of an adapter."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]


def write_adapter(model: Model, folder: str | Path, *, base_model_name: str | None = None) -> None:
    """Write the adapters of a model in PEFT's format; `base_model_name` is the base model.

    Other parameters that are trained, or that the base model lacks, are written in full. An adapter in
    the folder is replaced in one step."""
    folder = Path(folder)
    try:
        config, tensors = build_adapter_files(model)
    except ValueError as error:
        raise ValueError(f"{folder}: not written: {error}") from None
    config["base_model_name_or_path"] = base_model_name or model.base_model_name
    head_config = {key: model.config[key] for key in HEAD_CONFIG_KEYS if key in model.config}
    with write_folder(folder, replace_adapter) as staged:
        save_safetensors(tensors, staged / ADAPTER_WEIGHT_FILES[0])
        if "head" in model.args:
            save_json({"head": model.args["head"], **head_config}, staged / ADAPTER_HEAD_FILE)
        model.save_tokenizer_and_pooling(staged)
        save_json(config, staged / ADAPTER_CONFIG_FILE)


def build_adapter_files(model: Model) -> AdapterFiles:
    """Return the config and the tensors of a model's adapters; raise ValueError if PEFT's format does
    not support them."""
    layers = lora_layers(model.net)
    names = build_adapter_names(model)
    lora_tensors, layers_by_module, lora_problems = collect_lora_tensors(layers, names)
    saved_tensors, saved_modules, save_problems = collect_modules_to_save(
        model, names, layers_by_module
    )
    if problems := lora_problems + save_problems:
        raise ValueError(summarize_problems(problems))
    first = next(iter(layers.values()))
    by_module = layers_by_module.items()
    config = dict(
        peft_type="LORA",
        task_type=get_task_type(model),
        inference_mode=True,
        bias="none",
        r=first.r,
        lora_alpha=first.lora_alpha,
        lora_dropout=first.dropout.p,
        use_rslora=first.use_rslora,
        target_modules=sorted(layers_by_module),
        modules_to_save=sorted(saved_modules) or None,
        fan_in_fan_out=any(names.modules[module].fan_in_fan_out for module in layers_by_module),
        rank_pattern={module: x.r for module, x in by_module if x.r != first.r},
        alpha_pattern={
            module: x.lora_alpha for module, x in by_module if x.lora_alpha != first.lora_alpha
        },
    )
    tensors = {
        f"{PEFT_PREFIX}{name}": tensor for name, tensor in (lora_tensors | saved_tensors).items()
    }
    return AdapterFiles(config, tensors)


def collect_lora_tensors(
    adapter_layers: Mapping[str, LoraLinear], names: AdapterNames
) -> tuple[dict[str, Tensor], dict[str, LoraLinear], list[str]]:
    """Return A and B of each module of the checkpoint, a layer of each module, and problems."""
    problems = [] if adapter_layers else ["the model has no adapters"]
    if len({(layer.use_rslora, layer.dropout.p) for layer in adapter_layers.values()}) > 1:
        problems.append("adapters differ in lora_dropout or use_rslora, expected one value for all")
    tensors: dict[str, Tensor] = {}
    layers_by_module: dict[str, LoraLinear] = {}
    remaining = set(adapter_layers)
    for module, module_mapping in names.modules.items():
        paths = module_mapping.paths
        layers = [adapter_layers[path] for path in paths if path in adapter_layers]
        if not layers:
            continue
        remaining -= set(paths)
        if (
            len(layers) < len(paths)
            or len({(id(layer.lora_a), layer.lora_alpha) for layer in layers}) > 1
        ):
            fused = ",".join(path.rpartition(".")[2] for path in paths)
            problems.append(
                f"{module} contains {fused}, which must share one A: set target_modules='{fused}'"
            )
        tensors[f"{module}.lora_A.weight"] = layers[0].lora_a.weight
        tensors[f"{module}.lora_B.weight"] = torch.cat([layer.lora_b.weight for layer in layers])
        layers_by_module[module] = layers[0]
    problems += [f"{path} is not a module of its checkpoints" for path in sorted(remaining)]
    return tensors, layers_by_module, problems


def collect_modules_to_save(
    model: Model, names: AdapterNames, target_modules: Collection[str]
) -> tuple[dict[str, Tensor], set[str], list[str]]:
    """Return the tensors and modules that are trained or that the base model lacks, and problems."""
    parameters = dict(model.net.named_parameters(remove_duplicate=False))
    saved_parameters = {
        name
        for name, p in get_base_parameters(model.net).items()
        if p.requires_grad or name in model.adapter_parameters_to_save
    }
    requested = [
        mapping.checkpoint_name
        for mapping in names.mappings.values()
        if saved_parameters & {*mapping.parameter_names}
    ]
    modules = names.find_modules_to_save(requested)
    tied_names = find_tied_parameters(model.net)
    problems = []
    for name in dict.fromkeys([*requested, *modules]):
        mapping = names.mappings[name]
        is_tied = bool(tied_names & {*mapping.parameter_names})
        if modules.get(name, "") in {"", *target_modules} or is_tied:
            problems.append(
                f"{mapping.parameter_names[0]} must be saved in full, but {name} is tied, adapted "
                "or in no module"
            )
    tensors = {name: names.mappings[name].to_checkpoint(parameters) for name in modules}
    return tensors, {*modules.values()}, problems
