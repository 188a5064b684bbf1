"""Conversion between config.json and the arguments of a family. Does not depend on weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from qkv.families import family_of_model_type, get_family, list_families
from qkv.families.family import Args, Family
from qkv.model.limits import check_argument_combinations, check_argument_types, check_config_json
from qkv.model.transforms.variant import FAMILY_VARIANT, Variant
from qkv.validate import shorten_repr

MODEL_FORMAT_VERSION = 2  # format version of config.json with model_type "qkv"


def parse_config(
    config: Mapping[str, Any], family_name: str | None = None, head: str | None = None
) -> tuple[Family, Args, Variant]:
    """Return the family, the arguments and the variant of a config.json.

    `family_name` and `head` are used if config.json does not state them."""
    if config.get("model_type") == "qkv":
        _check_format_version(config)
        family = get_family(str(config.get("family")))
        check_family(family, family_name)
        args = config.get("arguments", {})
        if not isinstance(args, dict):
            raise ValueError(f"arguments is {shorten_repr(args)}, expected an object")
        if config.get("weights", "int8") != "int8":
            raise ValueError(
                f"weights is {config['weights']!r}, expected 'int8' or no key `weights`"
            )
        check_argument_types(family, args)
        args = family.arguments(None, **args)
        check_argument_combinations(family, args)
        return family, args, Variant.from_config(config)
    family = find_family(config, family_name)
    return family, parse_hf_config(family, config, head), FAMILY_VARIANT


def find_family(config: Mapping[str, Any], family_name: str | None) -> Family:
    """Return the family of a Hugging Face config.json: that of its `model_type`, else that of its
    class, else the given one."""
    model_type = config.get("model_type")
    class_names = config.get("architectures")
    if family_name is not None:
        family = get_family(family_name)
        known_types = {name for known in list_families() for name in known.model_types}
        if isinstance(model_type, str) and model_type in known_types:
            check_family(family_of_model_type(model_type), family_name)
        return family
    if model_type is None and isinstance(class_names, list) and class_names:
        for family in list_families():
            if family.find_head(class_names[0]) is not None:
                return family
    if not isinstance(model_type, str):
        raise ValueError(
            f"model_type is {shorten_repr(model_type)}, expected the name of a model, such as 'bert'; "
            "if the file has none, load it with family=..."
        )
    return family_of_model_type(model_type)


def check_family(family: Family, family_name: str | None) -> None:
    """Raise ValueError if the given family is not that of config.json."""
    if family_name not in (None, family.name):
        raise ValueError(f"family {family_name!r}, but this is a {family.name} model; remove it")


def _check_format_version(config: Mapping[str, Any]) -> None:
    version = config.get("format_version")
    if version != MODEL_FORMAT_VERSION:
        saved_by = "saved by qkv 0.2" if version is None else "saved by another version of qkv"
        raise ValueError(
            f"format_version is {version!r}, expected {MODEL_FORMAT_VERSION}: the model was {saved_by}; "
            "train it again, or export it in Hugging Face's format with that version"
        )


def parse_hf_config(
    family: Family, config: Mapping[str, Any], default_head: str | None = None
) -> Args:
    """Return the arguments of a Hugging Face config.json; an unsupported value is an error.

    `default_head` is used if `architectures` has no class of the family."""
    config = resolve_config_aliases(family, config)
    check_config_json(family, config)
    config = family.upgrade_config(config)
    for key, supported in family.supported_values.items():
        if key in config and not any(is_same_value(config[key], value) for value in supported):
            raise ValueError(
                f"{key} is {shorten_repr(config[key])}, supported: {' or '.join(map(repr, supported))}"
            )
    args = {name: config[key] for name, key in family.config.items() if key in config}
    for name, (key, tower_keys) in family.nested.items():
        tower = config.get(key) or {}
        args[name] = {
            inner: tower[inner_key] for inner, inner_key in tower_keys.items() if inner_key in tower
        }
    num_labels = config.get("num_labels", config.get("_num_labels"))
    num_labels = num_labels if config.get("id2label") is None else len(config["id2label"])
    if num_labels is not None:
        args["num_labels"] = num_labels
    class_names = config.get("architectures") or [""]
    head = family.find_head(class_names[0]) or default_head
    if head is not None and "head" in family.defaults:
        args["head"] = head
    elif head is None and config.get("architectures"):
        known = ", ".join(family.heads.values())
        raise ValueError(
            f"architectures is {shorten_repr(config['architectures'])}, expected one of {known}; "
            "for a class of its own, load it with head=..."
        )
    config_keys = {**family.config, "num_labels": "id2label"}
    check_argument_types(family, args, config_keys)
    args = family.arguments(None, **args)
    check_argument_combinations(family, args, config_keys)
    return args


def is_same_value(left: object, right: object) -> bool:
    """Return whether two JSON values are equal and have the same type: 1 is not True."""
    return type(left) is type(right) and left == right


CONFIG_KEY_ALIASES = {  # other names that Hugging Face's classes accept for a key
    "hidden_size": ("n_embd", "d_model", "dim"),
    "max_position_embeddings": ("n_positions",),
    "n_token": ("vocab_size",),
    "num_attention_heads": ("n_head", "n_heads", "num_heads", "encoder_attention_heads"),
    "head_dim": ("d_kv",),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers", "encoder_layers"),
}


def resolve_config_aliases(family: Family, config: Mapping[str, Any]) -> Args:
    """Return the config with aliases replaced by the keys of the family, if those are absent."""
    family_keys = set(family.config.values())
    resolved = dict(config)
    for alias, keys in CONFIG_KEY_ALIASES.items():
        if alias in config and alias not in family_keys:
            resolved = {key: config[alias] for key in keys if key in family_keys} | resolved
    return resolved


def build_hf_config(family: Family, args: Args, model_type: str | None = None) -> Args:
    """Return Hugging Face's config.json for these arguments; `model_type` is one of the family."""
    config = {key: args[name] for name, key in family.config.items()}
    for name, (key, tower_keys) in family.nested.items():
        config[key] = {tower_keys[inner]: value for inner, value in (args[name] or {}).items()}
    num_labels = args.get("num_labels", 2)
    if num_labels != family.defaults.get("num_labels", 2):
        config["id2label"] = {str(i): f"LABEL_{i}" for i in range(num_labels)}
        config["label2id"] = {f"LABEL_{i}": i for i in range(num_labels)}
    class_names = (
        [family.heads[args["head"]].split()[0]] if args.get("head") in family.heads else []
    )
    start = {"model_type": family.model_types[0], "architectures": class_names}
    config = family.finish_config({**start, **config}, args)
    all_class_names = family.heads.get(args.get("head", ""), "").split()
    if model_type in family.model_types and len(all_class_names) == len(family.model_types):
        class_name = all_class_names[family.model_types.index(model_type)]
        config |= {"model_type": model_type, "architectures": [class_name]}
    return config


def detect_prefix(family: Family, tensor_names: Iterable[str], args: Args) -> str | None:
    """Return the prefix of tensor names in a checkpoint, which classes with and without a head can
    both load."""
    tensor_names = list(tensor_names)
    default = family.head_prefixes.get(args.get("head", ""))
    known = (*family.prefixes, *family.head_prefixes.values())
    used = [
        prefix
        for prefix in known
        if prefix and any(name.startswith(prefix) for name in tensor_names)
    ]
    if default is None:
        if not family.prefixes or any(prefix in used for prefix in family.prefixes):
            return None
        return used[0] if used else ""
    return default if default in used or not used else used[0]


def find_body_prefixes(
    family: Family, config: Mapping[str, Any], args: Args, tensor_names: Iterable[str]
) -> tuple[str, ...]:
    """Return the prefixes of tensors that must have a row in the names table.

    A class that the family does not have has heads of its own, which have another prefix."""
    class_names = config.get("architectures") or []
    if not class_names or family.find_head(class_names[0]) is not None:
        return ("",)
    prefix = family.find_prefix(args, detect_prefix(family, tensor_names, args))
    return family.prefixes if prefix is None else (prefix,)
