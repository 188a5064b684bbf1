"""Conversion of a model to the family whose classes Hugging Face has: a Transformer becomes a Marian."""

from __future__ import annotations

import copy
import re

import torch
from torch import Tensor

from qkv.families import get_family
from qkv.families.family import Args, Family
from qkv.model.build import build_model_spec
from qkv.model.config import build_hf_config
from qkv.model.model import Model
from qkv.model.transforms.variant import FAMILY_VARIANT
from qkv.nn.network import build_network

# Arguments that the conversion sets to those of the other family: the layout of the sinusoids, by a
# permutation of the features; the bias of the logits, by zeros; those without an effect on outputs.
CONVERTED_ARGUMENTS = ("sinusoidal", "lm_bias", "init_std", "family")
PERMUTABLE_LAYOUTS = ("pairs", "halves")
# Parameters with the features of the residual stream on their last or first axis.
READS_FEATURES = re.compile(r"\.(tokens|q|k|v|up|gate|out)\.weight$")
WRITES_FEATURES = re.compile(r"(\.(o|down)\.(weight|bias)|_norm\.(weight|bias))$")


def convert_arguments(family: Family, args: Args) -> tuple[Args, list[str]]:
    """Return the arguments in the other family, and those that it cannot hold as `name=value`."""
    target = get_family(family.hf_family)
    converted = {name: args[name] for name in target.defaults}
    converted |= {name: target.defaults[name] for name in CONVERTED_ARGUMENTS}
    known = {*target.config, "num_labels", "head"}
    unsupported = {
        name: value
        for name, value in converted.items()
        if name not in known and value != target.defaults[name]
    }
    if args["sinusoidal"] not in PERMUTABLE_LAYOUTS:
        unsupported["sinusoidal"] = args["sinusoidal"]
    return converted, [f"{name}={value!r}" for name, value in unsupported.items()]


def find_unsupported_part(model: Model) -> str | None:
    """Return the part of a model that the other family cannot hold, or None."""
    if model.variant != FAMILY_VARIANT:
        return model.variant.describe()
    return ", ".join(convert_arguments(model.family, model.args)[1]) or None


def convert_to_hf_family(model: Model) -> Model:
    """Return the same model in the family that Hugging Face has; outputs differ by rounding only."""
    if part := find_unsupported_part(model):
        raise ValueError(
            f"Hugging Face's format cannot hold {part} in {model.family.name}: "
            "save with format='qkv'"
        )
    family = get_family(model.family.hf_family)
    args, _ = convert_arguments(model.family, model.args)
    net = build_network(build_model_spec(family, args))
    order = sort_features(args["width"], str(model.args["sinusoidal"]))
    parameters = {
        name: permute_features(name, x, order) for name, x in model.net.state_dict().items()
    }
    bias_name = "heads.lm.out.bias"
    if bias_name in dict(net.named_parameters()) and bias_name not in parameters:
        parameters[bias_name] = torch.zeros(net.state_dict()[bias_name].shape)
    net.load_state_dict(parameters)
    config = {**model.config, **build_hf_config(family, args)}
    for key in ("format_version", "family", "arguments"):
        config.pop(key, None)
    converted = Model(
        family,
        args,
        net.to(device=model.device, dtype=model.dtype).eval(),
        config,
        tokenizer_files=model.tokenizer_files,
        generation_config=copy.deepcopy(model.generation_config),
    )
    if model.tokenizer is not None:
        converted.tokenizer = model.tokenizer
        converted.tokenizer_files = model.tokenizer_files
    return converted


def sort_features(width: int, layout: str) -> Tensor:
    """Return the order of features in which alternating sines and cosines become two halves."""
    features = torch.arange(width)
    return torch.cat([features[::2], features[1::2]]) if layout == "pairs" else features


def permute_features(name: str, x: Tensor, order: Tensor) -> Tensor:
    """Permute the features of the residual stream in a parameter."""
    order = order.to(x.device)
    if READS_FEATURES.search(name):
        return x[:, order]
    return x[order] if WRITES_FEATURES.search(name) else x
