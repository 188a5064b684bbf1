"""Special token ids of a model's configuration, as its tokenizer has them.

Hugging Face's classes have default ids of the published vocabularies: a GPT-2 whose config.json has no
`eos_token_id` ends a text at 50256."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qkv.decode.config_file import read_legacy_fields
from qkv.spec import DualSpec, HeadSpec, Spec
from qkv.text import Tokenizer

# Ids that are stated also if the tokenizer has no such token.
REQUIRED_ROLES = ("bos", "eos", "pad")
OPTIONAL_ROLES = ("cls", "sep")
GENERATION_HEADS = ("lm", "causal-lm", "double-heads")


def list_network_roles(spec: Spec | DualSpec, args: Mapping[str, Any]) -> set[str]:
    """Return the special tokens whose ids the network itself reads: a tokenizer does not change them."""
    towers = [spec.text] if isinstance(spec, DualSpec) else [spec]
    heads = [head for tower in towers if tower for head in tower.heads]
    reads_eos = any(isinstance(head, HeadSpec) and head.eos_token_id is not None for head in heads)
    roles = {"eos"} if reads_eos else set()
    return roles | ({"pad"} if args.get("positions_after_pad") else set())


def state_token_ids(
    config: Mapping[str, Any], tokenizer: Tokenizer, network_roles: set[str]
) -> dict[str, Any]:
    """Return config.json with the ids of the tokenizer; an id of the network, and a list of ids that
    includes that of the tokenizer, are kept."""
    if isinstance(text_config := config.get("text_config"), Mapping):  # a dual encoder
        stated = state_token_ids(text_config, tokenizer, network_roles)
        return {**config, "text_config": stated}
    token_ids = tokenizer.special_token_ids
    stated = dict(config)
    for role in (*REQUIRED_ROLES, *OPTIONAL_ROLES):
        key = f"{role}_token_id"
        token_id = token_ids.get(role)
        if token_id is None and role in REQUIRED_ROLES:
            stated.setdefault(key, None)
        elif token_id is not None and not (role in network_roles and key in stated):
            previous = stated.get(key)
            if not (isinstance(previous, list) and token_id in previous):
                stated[key] = token_id
    return stated


def build_generation_config(
    config: Mapping[str, Any], generation_config: Mapping[str, Any] | None, args: Mapping[str, Any]
) -> dict[str, Any]:
    """Return generation_config.json with the ids of config.json; without a pad token, rows are padded
    with the end token."""
    values = dict(read_legacy_fields(config) if generation_config is None else generation_config)
    for role in REQUIRED_ROLES:
        if config.get(f"{role}_token_id") is not None:
            values[f"{role}_token_id"] = config[f"{role}_token_id"]
    start = args.get("decoder_start_token_id")
    if start is not None:
        values.setdefault("decoder_start_token_id", start)
    eos = values.get("eos_token_id")
    if values.get("pad_token_id") is None and eos is not None:
        values["pad_token_id"] = eos[0] if isinstance(eos, list) else eos
    return values
