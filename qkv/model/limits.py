"""Validation of the arguments of a family: types, ranges and combinations.

It runs before a network is built, so that a config.json cannot cause an excessive allocation. Checks
of a single family are in the file of that family."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from qkv.families.family import Args, Family
from qkv.nn.embedding import ACTIVATIONS
from qkv.spec import DualSpec, Spec
from qkv.validate import shorten_repr

MAX_SIZE = 1 << 28
MAX_MODULES = 10_000
# Sizes that are multiplied or are the length of a list have smaller limits, because their product must
# fit in a shape.
MAX_VALUES = {
    **dict.fromkeys(
        ("depth", "decoder_depth", "image_depth", "num_groups", "inner_group_num", "num_experts"),
        MAX_MODULES,
    ),
    **dict.fromkeys(("width", "embedding_width", "mem_len", "reuse_len"), 1 << 20),
    **dict.fromkeys(("heads", "decoder_heads", "kv_heads", "head_dim"), 1 << 16),
    "image_size": 1 << 14,
    "patch_size": 1 << 14,
    "num_channels": 1 << 10,
}
ZERO_ALLOWED = (
    "type_vocab_size",
    "mem_len",
    "reuse_len",
    "num_sparse_encoder_layers",
    "num_sparse_decoder_layers",
    "decoder_start_token_id",
    "eos_token_id",
    "position_offset",
)
NONE_ALLOWED = (  # regardless of the default
    "pad_token_id",
    "decoder_start_token_id",
    "eos_token_id",
    "mem_len",
    "reuse_len",
    "decoder_vocab_size",
    "decoder_depth",
    "summary_activation",
    "sinusoidal",
    "shift_right",
)
LAYER_TYPES = ("full_attention", "sliding_attention")
ROPE_REQUIRED_KEYS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}

# Keys of config.json that are not arguments, and their types; None is always allowed.
JSON_OBJECT = "an object"
JSON_POSITIVE_INTEGER = "an integer of at least 1"
JSON_POSITIVE_NUMBER = "a number above 0"
NOT_SUPPORTED = "none: not supported"
CONFIG_KEY_TYPES: dict[str, str] = {
    "text_config": JSON_OBJECT,
    "vision_config": JSON_OBJECT,
    "rope_parameters": JSON_OBJECT,
    "rope_scaling": JSON_OBJECT,
    "id2label": JSON_OBJECT,
    "num_labels": JSON_POSITIVE_INTEGER,
    "global_attn_every_n_layers": JSON_POSITIVE_INTEGER,
    "rope_theta": JSON_POSITIVE_NUMBER,
    "global_rope_theta": JSON_POSITIVE_NUMBER,
    "local_rope_theta": JSON_POSITIVE_NUMBER,
    "quantization_config": NOT_SUPPORTED,
}


def check_config_json(family: Family, config: Mapping[str, Any]) -> None:
    """Check an unchanged config.json, before keys of older versions are converted."""
    for key, expected in CONFIG_KEY_TYPES.items():
        value = config.get(key)
        is_valid = {
            JSON_OBJECT: isinstance(value, dict),
            JSON_POSITIVE_INTEGER: is_integer_in_range(value, 1, MAX_SIZE),
            JSON_POSITIVE_NUMBER: is_positive_number(value),
            NOT_SUPPORTED: False,
        }
        if value is not None and not is_valid[expected]:
            raise ValueError(f"{key} is {shorten_repr(value)}, expected {expected}")
    names = config.get("architectures")
    if names is not None and not (
        isinstance(names, list) and all(isinstance(name, str) for name in names)
    ):
        raise ValueError(f"architectures is {shorten_repr(names)}, expected a list of class names")
    args = {name: config[key] for name, key in family.config.items() if key in config}
    check_argument_types(family, args, family.config)
    check_derived_keys(family, config)


def check_derived_keys(family: Family, config: Mapping[str, Any]) -> None:
    """Check that derived keys agree with the keys that determine them."""
    for key, value in family.derive_config(dict(config)).items():
        if config.get(key, value) != value:
            value_repr = shorten_repr(config[key])
            raise ValueError(
                f"{key} is {value_repr}, supported: {value!r}, which follows from the other keys"
            )


def check_argument_types(
    family: Family, args: Args, config_keys: Mapping[str, str] | None = None
) -> None:
    """Check each argument by its annotation and name; `config_keys` are the names in error messages."""
    annotations: dict[str, Any] = {}
    for function in (family.base_function, family.build_spec):
        annotations |= get_type_hints(function) if function else {}
    defaults = family.defaults
    for name, value in args.items():
        if name not in defaults:
            continue
        members = list_union_members(annotations[name])
        if (
            value is None
            and NoneType in members
            and (defaults[name] is None or name in NONE_ALLOWED)
        ):
            continue
        members = [member for member in members if member is not NoneType]
        check_argument_type(name, value, members, (config_keys or {}).get(name, name))
        if name in family.nested:
            check_tower_arguments(name, value, family.nested[name][1], bool(config_keys))


def check_tower_arguments(
    name: str, args: Args, config_keys: Mapping[str, str], show_config_keys: bool
) -> None:
    """Check the arguments of a tower of a dual encoder, whose names determine their types."""
    for inner, value in args.items():
        if inner not in config_keys:
            raise ValueError(f"{name} holds {inner!r}, expected some of {', '.join(config_keys)}")
        annotation: type = float if inner.endswith(("eps", "dropout", "std", "factor")) else int
        annotation = {"activation": str, "tie_embeddings": bool}.get(inner, annotation)
        if value is not None or inner != "pad_token_id":
            check_argument_type(
                inner, value, [annotation], config_keys[inner] if show_config_keys else inner
            )


def check_argument_type(name: str, value: Any, annotations: list[Any], key: str) -> None:
    """Raise ValueError unless the value matches one of the annotations."""
    if not any(matches_annotation(name, value, annotation) for annotation in annotations):
        expected = " or ".join(describe_annotation(name, annotation) for annotation in annotations)
        raise ValueError(f"{key} is {shorten_repr(value)}, expected {expected}")


def check_argument_combinations(
    family: Family, args: Args, config_keys: Mapping[str, str] | None = None
) -> None:
    """Check the combination of complete arguments of the right types."""
    for name, (_, tower_keys) in family.nested.items():
        check_argument_limits(args[name] or {}, tower_keys if config_keys else {})
    check_argument_limits(args, config_keys or {})
    if "cutoffs" in args:
        bounds = [0, *args["cutoffs"], args["vocab_size"]]
        is_rising = bounds == sorted(set(bounds))
        require_argument(
            is_rising, args, "cutoffs", config_keys, f"increasing ids below {args['vocab_size']}"
        )
        embedding_width = args["embedding_width"]
        last_width = embedding_width // args["div_val"] ** len(args["cutoffs"])
        expected = f"less: it divides the width {embedding_width} to 0"
        require_argument(last_width > 0, args, "div_val", config_keys, expected)
    if args.get("layer_types") is not None:
        layer_types = args["layer_types"]
        is_valid = len(layer_types) == args["depth"] and set(layer_types) <= {*LAYER_TYPES}
        expected = f"{args['depth']} of {' or '.join(LAYER_TYPES)}"
        require_argument(is_valid, args, "layer_types", config_keys, expected)
    if "rope_parameters" in args:
        head_dim = get_integer_argument(args, "head_dim", args["width"] // args["heads"])
        name = "width" if args.get("head_dim") is None else "head_dim"
        expected = "heads of an even size for rotary embeddings"
        require_argument(head_dim % 2 == 0, args, name, config_keys, expected)
        rope_parameters = args["rope_parameters"] or {}
        by_layer_type = [value for value in rope_parameters.values() if isinstance(value, dict)]
        for parameters in (rope_parameters, *by_layer_type):
            check_rope_parameters(parameters)


def check_argument_limits(args: Args, config_keys: Mapping[str, str]) -> None:
    """Check the arguments that are limited by another argument."""
    vocab_size = get_integer_argument(args, "vocab_size", MAX_SIZE)
    depth = get_integer_argument(args, "depth", 1)
    limits = {
        "pad_token_id": vocab_size - 1,
        "decoder_start_token_id": get_integer_argument(args, "decoder_vocab_size", vocab_size) - 1,
        "patch_size": get_integer_argument(args, "image_size", MAX_SIZE),
        "num_summary": get_integer_argument(args, "stride", MAX_SIZE),
        "num_sparse_encoder_layers": depth,
        "num_sparse_decoder_layers": get_integer_argument(args, "decoder_depth", depth),
        "inner_group_num": MAX_MODULES // max(depth, get_integer_argument(args, "num_groups", 1)),
    }
    for name, limit in limits.items():
        if args.get(name) is not None:
            require_argument(args[name] <= limit, args, name, config_keys, f"at most {limit:,}")
    pad_token_id = get_integer_argument(args, "pad_token_id", 0)
    require_argument(
        pad_token_id >= -vocab_size, args, "pad_token_id", config_keys, f"at least {-vocab_size}"
    )
    divides = (
        get_integer_argument(args, "heads", 1) % get_integer_argument(args, "kv_heads", 1) == 0
    )
    require_argument(
        divides, args, "kv_heads", config_keys, f"a divisor of {args.get('heads')} heads"
    )
    name = "relative_attention_num_buckets"
    require_argument(get_integer_argument(args, name, 4) >= 4, args, name, config_keys, "4 or more")
    num_buckets = get_integer_argument(args, name, 0)
    # Buckets are logarithmic from these distances on; the last bucket must not begin there as well.
    exact_distances = (num_buckets // 2, num_buckets // 4)
    name = "relative_attention_max_distance"
    is_valid = get_integer_argument(args, name, -1) not in exact_distances
    expected = f"other than {exact_distances[0]} and {exact_distances[1]}"
    require_argument(is_valid, args, name, config_keys, expected)


def get_integer_argument(args: Args, name: str, default: int) -> int:
    """Return an argument, or the default if it is None or absent."""
    return default if args.get(name) is None else args[name]


def require_argument(
    condition: bool, args: Args, name: str, config_keys: Mapping[str, str] | None, expected: str
) -> None:
    """Raise ValueError about an argument unless the condition is true."""
    if not condition:
        key = (config_keys or {}).get(name, name)
        raise ValueError(f"{key} is {shorten_repr(args[name])}, expected {expected}")


def check_rope_parameters(rope_parameters: Mapping[str, Any]) -> None:
    """Check the parameters of rotary position embeddings."""
    rope_type = rope_parameters.get("rope_type", "default")
    if not isinstance(rope_type, str) or rope_type not in ROPE_REQUIRED_KEYS:
        known = " or ".join(ROPE_REQUIRED_KEYS)
        raise ValueError(f"rope_type is {shorten_repr(rope_type)}, expected {known}")
    partial_rotary_factor = rope_parameters.get("partial_rotary_factor", 1.0)
    if partial_rotary_factor != 1.0:
        raise ValueError(
            f"partial_rotary_factor is {shorten_repr(partial_rotary_factor)}, supported: 1.0"
        )
    required = {key: rope_parameters.get(key) for key in ROPE_REQUIRED_KEYS[rope_type]}
    required["rope_theta"] = rope_parameters.get("rope_theta", 1.0)
    for key, value in required.items():
        if not is_positive_number(value):
            value_repr = shorten_repr(value)
            raise ValueError(
                f"{key} is {value_repr}, expected {JSON_POSITIVE_NUMBER} for rope_type {rope_type!r}"
            )


def check_layer_count(spec: Spec | DualSpec, num_tensors: int) -> None:
    """Check that there are at most as many layers and experts as tensors, before a network is
    built."""
    towers = [spec.text, spec.image] if isinstance(spec, DualSpec) else [spec]
    stacks = [
        stack for tower in towers if tower for stack in (tower.encoder, tower.decoder) if stack
    ]
    counts = [
        getattr(layer.feed_forward, "num_experts", 1) for stack in stacks for layer in stack.layers
    ]
    counts += [1 for stack in stacks if not stack.layers for _ in range(stack.depth)]
    if sum(counts) > num_tensors:
        experts = f" with {max(counts)} experts" if max(counts) > 1 else ""
        depths = " and ".join(str(len(stack.layers) or stack.depth) for stack in stacks)
        raise ValueError(
            f"{depths} layers{experts}, but the weights have only {num_tensors} tensors"
        )


def list_union_members(annotation: Any) -> list[Any]:
    """Return the members of a union, or the annotation itself."""
    return (
        list(get_args(annotation)) if get_origin(annotation) in (Union, UnionType) else [annotation]
    )


def matches_annotation(name: str, value: Any, annotation: Any) -> bool:
    """Return whether a value matches an annotation and is in the range of its name."""
    origin = get_origin(annotation)
    if origin is tuple:
        item_annotation = get_args(annotation)[0]
        item_name = "width" if name == "conv_widths" else "" if item_annotation is int else name
        return isinstance(value, list | tuple) and all(
            matches_annotation(item_name, item, item_annotation) for item in value
        )
    if origin is Literal:
        return isinstance(value, str) and value in get_args(annotation)
    if annotation is int:
        return is_integer_in_range(value, *get_integer_range(name))
    if annotation is float:
        low, high = get_float_range(name)
        return type(value) in (int, float) and low <= value <= high
    if annotation is str and name.endswith(("activation", "pooler_act", "feed_forward_proj")):
        prefix = "gated-" if name == "feed_forward_proj" else ""
        return isinstance(value, str) and value.removeprefix(prefix) in ACTIVATIONS
    return isinstance(value, origin or annotation) if annotation is not Any else True


def describe_annotation(name: str, annotation: Any) -> str:
    """Return a description of the valid values of an argument, for an error message."""
    if annotation is int:
        low, high = get_integer_range(name)
        return f"an integer from {low} to {high:,}"
    if annotation is float:
        least, most = get_float_range(name)
        if least < 0:
            return "a number"
        return (
            f"a number from {least:g} to {most:g}"
            if most == 1
            else f"a number of at least {least:g}"
        )
    if annotation is str and name.endswith(("activation", "pooler_act", "feed_forward_proj")):
        return f"one of {', '.join(ACTIVATIONS)}"
    if get_origin(annotation) is Literal:
        return " or ".join(map(repr, get_args(annotation)))
    descriptions = {bool: "true or false", str: "a string", tuple: "a list", dict: JSON_OBJECT}
    return descriptions[get_origin(annotation) or annotation]


def get_integer_range(name: str) -> tuple[int, int]:
    """Return the smallest and largest value of an integer argument."""
    low = -MAX_SIZE if name in ("clamp_len", "pad_token_id") else 0 if name in ZERO_ALLOWED else 1
    return low, MAX_VALUES.get(name, MAX_SIZE)


def get_float_range(name: str) -> tuple[float, float]:
    """Return the smallest and largest value of a float argument."""
    if name == "logit_scale":
        return -1e30, 1e30
    return 0.0, 1.0 if name.endswith("dropout") else 1e30


def is_integer_in_range(value: Any, low: int, high: int) -> bool:
    """Return whether a value is an integer (not a bool) from `low` to `high`."""
    return type(value) is int and low <= value <= high


def is_positive_number(value: Any) -> bool:
    """Return whether a value is a finite number above 0."""
    return type(value) in (int, float) and 0 < value < math.inf
