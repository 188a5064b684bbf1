"""Encoder-decoders of fairseq (transformer, BART, mBART): their settings and tensors as a model."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.families import get_family
from qkv.families.bart import KEYS
from qkv.families.family import Args
from qkv.model.config import build_hf_config
from qkv.model.foreign.checkpoint import (
    ForeignCheckpoint,
    check_heads,
    complete_arguments,
    get_matrix,
)
from qkv.model.foreign.tokenizer import build_tokenizer
from qkv.weights.formats.checkpoint import CheckpointData

# Settings that change the outputs in ways that the families do not support.
TRANSFORMER_UNSUPPORTED_SETTINGS = (
    "adaptive_input", "adaptive_softmax_cutoff", "base_layers", "char_inputs", "cross_self_attention",
    "decoder_layers_to_keep", "encoder_layers_to_keep", "no_cross_attention",
    "no_token_positional_embeddings",
)  # fmt: skip
TRANSFORMER_ACTIVATIONS = dict(
    relu="relu", gelu="gelu", gelu_fast="gelu_new", gelu_accurate="gelu_new", tanh="tanh",
    swish="swish", linear="linear",
)  # fmt: skip
# The ids of <s> <pad> </s>. The decoder starts with </s>.
TRANSFORMER_TOKEN_IDS = dict(
    bos_token_id=0, pad_token_id=1, eos_token_id=2, decoder_start_token_id=2
)
POSITION_OFFSET = 2  # the first position is the pad id plus one
OUTPUT_NAME = "decoder.output_projection.weight"


def is_transformer(data: CheckpointData) -> bool:
    """Return whether a checkpoint of fairseq is an encoder-decoder with attention."""
    names = {f"{stack}.embed_tokens.weight" for stack in ("encoder", "decoder")}
    names |= {
        "encoder.layers.0.self_attn.q_proj.weight",
        "decoder.layers.0.encoder_attn.q_proj.weight",
    }
    return names <= data.tensors.keys()


def map_transformer(data: CheckpointData) -> ForeignCheckpoint:
    """Return the arguments, the tensors and the tokenizer of an encoder-decoder."""
    path = data.path
    settings = data.config
    tensors = {
        name: x for name, x in data.tensors.items() if not name.startswith("classification_heads.")
    }
    if len(tensors) < len(data.tensors):
        warnings.warn(
            f"{path}: loaded with the head lm, without classification heads", stacklevel=5
        )
    encoder = _read_stack_arguments("encoder", tensors, settings, path)
    decoder = _read_stack_arguments("decoder", tensors, settings, path)
    may_differ = ("depth", "heads", "ffn_width", "vocab_size")
    problems = [
        f"{key} is {settings[key]!r}, which is not supported"
        for key in TRANSFORMER_UNSUPPORTED_SETTINGS
        if settings.get(key)
    ]
    problems += [
        f"{name} is {value!r} in the encoder and {decoder[name]!r} in the decoder, expected the same"
        for name, value in encoder.items()
        if name not in may_differ and decoder[name] != value
    ]
    if problems:
        raise ValueError(f"{path}: {'; '.join(problems)}")
    source = tensors["encoder.embed_tokens.weight"]
    target = tensors["decoder.embed_tokens.weight"]
    is_tied = torch.equal(tensors.get(OUTPUT_NAME, target), target)
    family = get_family(_choose_family(settings))
    args = complete_arguments(
        family,
        path,
        **encoder,
        **{f"decoder_{name}": decoder[name] for name in may_differ},
        **{name: settings[name] for name in ("dropout", "attention_dropout") if name in settings},
        tie_embeddings=is_tied,
        share_embeddings=is_tied and torch.equal(source, target),
        **{name: i for name, i in TRANSFORMER_TOKEN_IDS.items() if name in family.defaults},
    )
    if args["lm_bias"]:  # BART has a bias in Hugging Face's format; it is zero
        tensors["final_logits_bias"] = target.new_zeros(1, len(target))
    config = build_hf_config(family, args) if family.model_types else {}
    return ForeignCheckpoint(
        path,
        family,
        args,
        {**config, **TRANSFORMER_TOKEN_IDS},
        build_transformer_names_table(args),
        tensors,
        tokenizer=build_tokenizer(data, (len(source), len(target))),
        generation_config={**TRANSFORMER_TOKEN_IDS, **data.generation_config},
    )


def build_transformer_names_table(args: Args) -> str:
    """Return fairseq's names: those of BART without its prefix."""
    table = KEYS.replace("PRE_OR_POST", args["norm_position"]).replace("model.", "")
    table = table.replace("lm_head.weight", OUTPUT_NAME)
    table += "@.embedding.tokens @.embed_tokens\n"
    if args["sinusoidal"] is None:
        table += "@.embedding.positions @.embed_positions\n"
    return table


def _choose_family(settings: Mapping[str, Any]) -> str:
    """Return the family of the architecture: `transformer`, if it is not BART or mBART."""
    architecture = str(settings.get("arch", settings.get("_name", "")))
    return next(
        (name for name in ("mbart", "bart") if architecture.startswith(name)), "transformer"
    )


def _read_stack_arguments(
    stack: str, tensors: Mapping[str, Tensor], settings: Mapping[str, Any], path: Path
) -> Args:
    """Return the arguments of the encoder or the decoder."""
    vocab_size, width = get_matrix(tensors, f"{stack}.embed_tokens.weight", path).shape
    heads = settings.get(f"{stack}_attention_heads")
    if type(heads) is not int:
        raise ValueError(f"{path}: {stack}_attention_heads is {heads!r}, expected a number")
    check_heads(width, heads, path)
    positions = tensors.get(f"{stack}.embed_positions.weight")
    maximum = settings.get(f"max_{'source' if stack == 'encoder' else 'target'}_positions") or 1024
    is_pre_norm = settings.get(f"{stack}_normalize_before", False)
    activation = settings.get("activation_fn", "relu")
    if activation not in TRANSFORMER_ACTIVATIONS:
        known = ", ".join(TRANSFORMER_ACTIVATIONS)
        raise ValueError(f"{path}: activation_fn is {activation!r}, expected one of {known}")
    prefix = f"{stack}.layers."
    layers = {name.split(".")[2] for name in tensors if name.startswith(prefix)}
    return dict(
        vocab_size=vocab_size,
        width=width,
        depth=len(layers),
        heads=heads,
        ffn_width=len(get_matrix(tensors, f"{stack}.layers.0.fc1.weight", path)),
        activation=TRANSFORMER_ACTIVATIONS[activation],
        scale_embedding=not settings.get("no_scale_embedding", False),
        norm_position="pre" if is_pre_norm else "post",
        embedding_norm=f"{stack}.layernorm_embedding.weight" in tensors,
        final_norm=f"{stack}.layer_norm.weight" in tensors,
        sinusoidal="ends" if positions is None else None,
        position_offset=POSITION_OFFSET,
        max_positions=maximum if positions is None else len(positions) - POSITION_OFFSET,
    )
