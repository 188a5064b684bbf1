"""config.json and a family's arguments, both ways. Knows no weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from qkv.families import by_model_type, family
from qkv.families.family import Args, Family
from qkv.model.limits import check_config, check_kinds, check_together


def understand(config: Mapping[str, Any]) -> tuple[Family, Args, str | None]:
    """Family, arguments and swapped positions that a config.json states."""
    kind = config.get("model_type")
    if kind == "qkv":
        kin, args = family(str(config.get("family"))), config.get("arguments", {})
        if not isinstance(args, dict):
            raise ValueError(f"arguments is {args!r}, expected an object")
        if config.get("weights", "int8") != "int8":
            raise ValueError(f"weights is {config['weights']!r}, expected 'int8', or no such key")
        check_kinds(kin, args)
        args = kin.arguments(None, **args)
        check_together(kin, args)
        return kin, args, config.get("positions")
    if not isinstance(kind, str):
        raise ValueError(f"model_type is {kind!r}, expected the name of a family, such as 'bert'")
    kin = by_model_type(kind)
    return kin, read_config(kin, config), None


def read_config(kin: Family, config: Mapping[str, Any]) -> Args:
    """The arguments that a config.json states; an unsupported value is an error that names the key."""
    config = by_own_name(kin, config)
    check_config(kin, config)
    config = kin.older(config)
    for key, allowed in kin.only.items():
        if key in config and not any(
            type(config[key]) is type(each) and config[key] == each for each in allowed
        ):
            right = " or ".join(map(repr, allowed))
            raise ValueError(f"{key} is {config[key]!r}, supported: {right}")
    args = {ours: config[key] for ours, key in kin.config.items() if key in config}
    for name, (key, words) in kin.nested.items():
        inner = config.get(key) or {}
        args[name] = {ours: inner[theirs] for ours, theirs in words.items() if theirs in inner}
    labels = config.get("num_labels") if config.get("id2label") is None else len(config["id2label"])
    if labels is not None:
        args["labels"] = labels
    names = config.get("architectures") or []
    if names and "head" in kin.defaults:
        heads = [ours for ours, theirs in kin.heads.items() if names[0] in theirs.split()]
        if not heads:
            known = ", ".join(kin.heads.values())
            raise ValueError(f"architectures is {names!r}, expected one of {known}")
        args["head"] = heads[0]
    called = {**kin.config, "labels": "id2label"}
    check_kinds(kin, args, called)
    args = kin.arguments(None, **args)
    check_together(kin, args, called)
    return args


ALIASES = {  # other names that Hugging Face takes for a family's own
    "hidden_size": "n_embd d_model dim", "max_position_embeddings": "n_positions", "n_token": "vocab_size",
    "num_attention_heads": "n_head n_heads num_heads encoder_attention_heads", "head_dim": "d_kv",
    "num_hidden_layers": "n_layer n_layers num_layers encoder_layers",
}  # fmt: skip


def by_own_name(kin: Family, config: Mapping[str, Any]) -> Args:
    """A key under another of its names counts where its own is not there."""
    own, found = set(kin.config.values()), dict(config)
    for alias, keys in ALIASES.items():
        if alias in config and alias not in own:
            found = {key: config[alias] for key in keys.split() if key in own} | found
    return found


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


def prefix_in(kin: Family, names: Iterable[str], args: Args) -> str | None:
    """The prefix that a file really uses: bare and headed classes open each other's files."""
    names, usual = list(names), kin.prefixed.get(args.get("head", ""))
    known = (*kin.prefixes, *kin.prefixed.values())
    found = [p for p in known if p and any(name.startswith(p) for name in names)]
    if usual is None:
        return None if not kin.prefixes or any(p in found for p in kin.prefixes) else (found or [""])[0]
    return usual if usual in found or not found else found[0]
