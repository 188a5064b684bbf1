"""config.json and a family's arguments, both ways. Knows no weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from qkv.families import by_model_type, family
from qkv.families.family import Args, Family


def understand(config: Mapping[str, Any]) -> tuple[Family, Args, str | None]:
    """Family, arguments and swapped positions that a config.json states."""
    kind = config.get("model_type")
    if kind == "qkv":
        kin, args = family(str(config.get("family"))), config.get("arguments", {})
        if not isinstance(args, dict):
            raise ValueError(f"config.json: arguments is {args!r}, expected an object")
        return kin, kin.arguments(None, **args), config.get("positions")
    if not isinstance(kind, str):
        raise ValueError(
            f"config.json: model_type is {kind!r}, expected the name of a family, such as 'bert'"
        )
    kin = by_model_type(kind)
    return kin, read_config(kin, config), None


def read_config(kin: Family, config: Mapping[str, Any]) -> Args:
    """The arguments that a config.json states; an unsupported value is an error that names the key."""
    config = kin.older(dict(config))
    for key, allowed in kin.only.items():
        if key in config and config[key] not in allowed:
            words = " or ".join(map(repr, allowed))
            raise ValueError(f"config.json: {key} is {config[key]!r}, supported: {words}")
    args = {ours: config[key] for ours, key in kin.config.items() if key in config}
    for name, value in args.items():
        check_type(kin.config[name], value, kin.parameters[name].annotation)
    for name, (key, words) in kin.nested.items():
        inner = config.get(key) or {}
        if not isinstance(inner, dict):
            raise ValueError(f"config.json: {key} is {inner!r}, expected an object")
        args[name] = {ours: inner[theirs] for ours, theirs in words.items() if theirs in inner}
    if "labels" in kin.defaults and ("id2label" in config or "num_labels" in config):
        table = config.get("id2label")
        args["labels"] = len(table) if isinstance(table, dict) else config.get("num_labels")
    names = config.get("architectures") or []
    if names and "head" in kin.defaults:
        heads = [ours for ours, theirs in kin.heads.items() if names[0] in theirs.split()]
        if not heads:
            known = ", ".join(kin.heads.values())
            raise ValueError(f"config.json: architectures is {names!r}, expected one of {known}")
        args["head"] = heads[0]
    try:
        return kin.arguments(None, **args)
    except ValueError as error:
        raise ValueError(f"config.json: {error}") from None


def write_config(kin: Family, args: Args) -> Args:
    """A config.json that states these arguments."""
    config = {key: args[ours] for ours, key in kin.config.items()}
    for name, (key, words) in kin.nested.items():
        config[key] = {words[ours]: value for ours, value in (args[name] or {}).items()}
    labels = args.get("labels", 2)
    if labels != kin.defaults.get("labels", 2):
        config["id2label"] = {str(i): f"LABEL_{i}" for i in range(labels)}
        config["label2id"] = {f"LABEL_{i}": i for i in range(labels)}
    names = [kin.heads[args["head"]].split()[0]] if args.get("head") in kin.heads else []
    return kin.newer({"model_type": kin.model_types[0], "architectures": names, **config}, args)


def check_type(key: str, value: Any, annotation: Any) -> None:
    """A value of another kind than the argument's is refused here, by its key."""
    choices = get_args(annotation) if get_origin(annotation) in (UnionType, Union) else [annotation]
    kinds = [get_origin(kind) or kind for kind in choices]
    fits = {float: (int, float), tuple: (list, tuple), Literal: (str,)}
    if not any(type(value) in fits.get(kind, (kind,)) for kind in kinds):
        names = " or ".join(
            "null" if kind is type(None) else getattr(kind, "__name__", "str") for kind in kinds
        )
        raise ValueError(f"config.json: {key} is {value!r}, expected {names}")


def prefix_in(kin: Family, names: Iterable[str], args: Args) -> str | None:
    """The prefix that a file really uses: bare and headed classes open each other's files."""
    names, usual = list(names), kin.prefixed.get(args.get("head", ""))
    known = (*kin.prefixes, *kin.prefixed.values())
    found = [p for p in known if p and any(name.startswith(p) for name in names)]
    if usual is None:
        return None if not kin.prefixes or any(p in found for p in kin.prefixes) else (found or [""])[0]
    return usual if usual in found or not found else found[0]
