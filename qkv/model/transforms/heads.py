"""Replacement of a model's head: parameters that both have are copied, the others are new."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from qkv.model.build import build_model_spec, initialize_weights
from qkv.model.config import build_hf_config
from qkv.model.label_names import LABEL_COUNT_KEYS
from qkv.model.limits import check_argument_types
from qkv.model.model import Model
from qkv.model.transforms.pooling import Pooling
from qkv.model.transforms.variant import FAMILY_VARIANT
from qkv.nn.lora import lora_layers
from qkv.nn.network import build_network

LABEL_KEYS = {"id2label", "label2id", *LABEL_COUNT_KEYS}
SENTENCE_EMBEDDING = "sentence-embedding"  # the head of a model without one, with pooling


def replace_head(
    model: Model,
    head: str | None,
    num_labels: int,
    pooling: Pooling | None = None,
    overrides: Mapping[str, float] = MappingProxyType({}),
) -> tuple[Model, tuple[str, ...]]:
    """Return the model with another head, and the names of its new parameters.

    None and 0 keep the head and the number of labels; `overrides` may change dropout rates and
    `mem_len`. The head "sentence-embedding" is that of the model's pooling, by default the mean."""
    family = model.family
    if head == SENTENCE_EMBEDDING and "none" in family.heads:
        head = "none"
        pooling = pooling or model.pooling or Pooling()
    for name in overrides:
        if not name.endswith("dropout") and name != "mem_len":
            raise ValueError(f"model.{name}: the sizes of a loaded model cannot change; remove it")
        if name not in family.defaults:
            raise ValueError(f"model.{name}: {family.name} has no such argument; remove it")
    check_argument_types(family, dict(overrides))
    changes: dict[str, Any] = {
        name: value for name, value in overrides.items() if model.args.get(name) != value
    }
    if head is not None and model.args.get("head") != head:
        changes["head"] = head
    if num_labels and model.args.get("num_labels") != num_labels:
        changes["num_labels"] = num_labels
    if pooling is None and "head" not in changes:
        pooling = model.pooling
    if not changes and pooling == model.pooling:
        return model, model.new_parameters
    if lora_layers(model.net):
        requested = (
            ", ".join(f"{name} {value!r}" for name, value in changes.items())
            or f"pooling {pooling}"
        )
        raise ValueError(
            f"{requested}: the model has adapters of another head; expected the same, or run `qkv "
            "merge` first"
        )
    args = family.arguments(None, **{**model.args, **changes})
    net = build_network(build_model_spec(family, args, model.variant, pooling))
    initialize_weights(net)
    outdated = {"problem_type"} if "head" in changes or "num_labels" in changes else set()
    outdated |= LABEL_KEYS if "num_labels" in changes else set()
    config = {key: value for key, value in model.config.items() if key not in outdated}
    if family.model_types and model.variant == FAMILY_VARIANT:
        label_names = {key: config[key] for key in LABEL_KEYS & config.keys()}
        config |= build_hf_config(family, args, config.get("model_type")) | label_names
    new_model = Model(
        family,
        args,
        net.eval(),
        config,
        variant=model.variant,
        pooling=pooling,
        tokenizer_files=model.tokenizer_files,
        generation_config=None if "head" in changes else model.generation_config,
        preprocessor_config=model.preprocessor_config,
        image_tokenizer=model.image_tokenizer,
    )
    if model.tokenizer_files is None:
        new_model.tokenizer = model.tokenizer
    new_model.new_parameters = copy_matching_parameters(new_model, model)
    return new_model, new_model.new_parameters


@torch.no_grad()
def copy_matching_parameters(target: Model, source: Model) -> tuple[str, ...]:
    """Copy the parameters that the source model or its checkpoint also has; return the names of the
    others.

    Parts of a head with another name are matched by their checkpoint names, except for the last
    layer, which is called classifier in both sequence and token classification."""
    parameters = dict(target.net.named_parameters())
    shapes = {name: p.shape for name, p in parameters.items()}
    values: dict[str, Tensor] = dict(source.net.named_parameters())
    if target.find_hf_incompatibility() is None and source.find_hf_incompatibility() is None:
        prefix = source.family.find_prefix(source.args, source.checkpoint_prefix)
        source_table = source.family.build_names_table(source.args, prefix)
        target_table = target.family.build_names_table(target.args, prefix)
        head_tensors = {}
        for mapping in source_table.map_parameters(values):
            name = mapping.parameter_names[0]
            if name.startswith("heads.") and ".out." not in name:
                head_tensors[mapping.checkpoint_name] = mapping.to_checkpoint(values)
        head_tensors |= source.extra_tensors
        for mapping in target_table.map_parameters(parameters):
            tensor = head_tensors.get(mapping.checkpoint_name)
            is_missing = mapping.operation != "copy" and mapping.parameter_names[0] not in values
            if (
                tensor is not None
                and is_missing
                and tensor.shape == mapping.to_checkpoint(parameters).shape
            ):
                values |= mapping.to_parameters(tensor, shapes)
    new_names = []
    values = dict(source.net.named_parameters(remove_duplicate=False)) | values
    for name, parameter in parameters.items():
        has_value = name in values and values[name].shape == parameter.shape
        if has_value:
            parameter.copy_(values[name])
        if not has_value or name in source.new_parameters:
            new_names.append(name)
    return tuple(new_names)
