"""generate: token ids from a model, in the layout that Hugging Face's `generate` returns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Unpack, cast

import torch
from torch import Tensor

from qkv.decode import GenerationConfig, Result, generate, read_generation_config
from qkv.decode.config import GENERATION_DEFAULTS
from qkv.decode.config_file import parse_field_value
from qkv.decode.settings import GenerationSettings
from qkv.hints import describe_unknown_name
from qkv.model.model import Model
from qkv.model.stop_strings import build_stopping_criteria
from qkv.nn.evaluation import view_in_evaluation_mode
from qkv.nn.network import Network


def generate_ids(
    model: Model,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    *,
    seed: int = 0,
    **settings: Unpack[GenerationSettings],
) -> Tensor:
    """Return generated ids (B * num_return_sequences, T), padded on the right.

    The rows of a decoder start with the prompt, those of an encoder-decoder with the start token of
    the decoder. `settings` are fields of GenerationConfig; the defaults come from the model's
    generation_config.json."""
    if not isinstance(model.net, Network) or model.net.decoder is None:
        raise ValueError(f"generate: a {model.family.name} model without a decoder cannot generate")
    config = _complete_config(model, cast(dict[str, Any], settings))
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    rows = [ids[keep.bool()].tolist() for ids, keep in zip(input_ids, mask, strict=True)]
    is_seq2seq = model.net.encoder is not None
    start = [] if config.decoder_start_token_id is None else [config.decoder_start_token_id]
    prefixes = [start] * len(rows) if is_seq2seq else rows
    tokenizer = model.tokenizer if config.stop_strings else None
    criteria = [build_stopping_criteria(tokenizer, config.stop_strings, ids) for ids in prefixes]
    results = generate(
        view_in_evaluation_mode(model.net),
        None if is_seq2seq else rows,
        sources=rows if is_seq2seq else None,
        generation_config=config,
        seed=seed,
        stopping_criteria=criteria,
    )
    return _pad(prefixes, results, _pad_token_id(config)).to(input_ids.device)


def _complete_config(model: Model, settings: dict[str, Any]) -> GenerationConfig:
    """Return the generation config of the model with these settings and its special tokens."""
    for name in settings:
        if name not in GENERATION_DEFAULTS:
            raise ValueError(f"generate: {describe_unknown_name(name, GENERATION_DEFAULTS)}")
    values = {name: parse_field_value(name, value) for name, value in settings.items()}
    config = read_generation_config(model.generation_config, model.config, settings=values)
    start = model.args.get("decoder_start_token_id")
    if config.decoder_start_token_id is None and start is not None:
        config = replace(config, decoder_start_token_id=start)
    eos = model.config.get("eos_token_id", model.args.get("eos_token_id"))
    if not config.eos_token_id and eos is not None and "eos_token_id" not in settings:
        config = replace(config, eos_token_id=tuple(eos) if isinstance(eos, list) else (eos,))
    pad = model.config.get("pad_token_id", model.args.get("pad_token_id"))
    if config.pad_token_id is None and pad is not None:
        config = replace(config, pad_token_id=pad)
    return config


def _pad_token_id(config: GenerationConfig) -> int:
    if config.pad_token_id is not None:
        return config.pad_token_id
    return config.eos_token_id[0] if config.eos_token_id else 0


def _pad(prefixes: list[list[int]], results: list[list[Result]], pad_token_id: int) -> Tensor:
    rows = [
        [*prefix, *result.token_ids]
        for prefix, candidates in zip(prefixes, results, strict=True)
        for result in candidates
    ]
    length = max((len(row) for row in rows), default=0)
    return torch.tensor(
        [row + [pad_token_id] * (length - len(row)) for row in rows], dtype=torch.long
    )
