"""RoBERTa checkpoints of fairseq: their settings and tensors as a model of the family `roberta`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.families import get_family
from qkv.families.family import Args
from qkv.families.roberta import FAIRSEQ
from qkv.model.config import build_hf_config
from qkv.model.foreign.checkpoint import (
    ForeignCheckpoint,
    check_heads,
    complete_arguments,
    get_matrix,
)
from qkv.model.foreign.tokenizer import build_gpt2_bpe_tokenizer, has_gpt2_bpe
from qkv.weights.formats.checkpoint import CheckpointData

# Settings that change the outputs, with the only value that the family supports.
FAIRSEQ_SUPPORTED_VALUES: dict[str, Any] = dict(
    activation_fn="gelu", adaptive_input=False, encoder_layers_to_keep=None,
    encoder_learned_pos=True, encoder_normalize_before=False, layernorm_embedding=True,
    no_scale_embedding=True,
    no_token_positional_embeddings=False, pooler_activation_fn="tanh",
    spectral_norm_classification_head=False,
)  # fmt: skip
FAIRSEQ_SIZE_KEYS = dict(
    width="encoder_embed_dim", depth="encoder_layers", ffn_width="encoder_ffn_embed_dim"
)
FAIRSEQ_SETTING_KEYS = dict(
    heads="encoder_attention_heads", dropout="dropout", attention_dropout="attention_dropout"
)
FAIRSEQ_EXTRA_NAMES = """
    encoder.embedding.token_types              token_types
    heads.sequence_classification.(dense|out)  classifier.(dense|out_proj)
"""
FAIRSEQ_ENCODER_PREFIX = "encoder.sentence_encoder"
FAIRSEQ_PAD_TOKEN_ID = 1  # fairseq's dictionaries begin with <s> <pad> </s> <unk>


def is_roberta(data: CheckpointData) -> bool:
    """Return whether a checkpoint of fairseq is a RoBERTa, by the names of its tensors."""
    return any(".sentence_encoder." in name for name in data.tensors)


def map_roberta(data: CheckpointData, head: str | None = None) -> ForeignCheckpoint:
    """Return the arguments and the tensors of a RoBERTa.

    `head` is "lm" or the name of a classification head; the default is the only classification head,
    else "lm"."""
    path = data.path
    settings = _check_settings(data.config, path)
    head, other_heads = _choose_head(data.tensors, head, path)
    if other_heads:
        others = ", ".join(other_heads)
        warnings.warn(f"{path}: loaded with the head {head}, without {others}", stacklevel=5)
    tensors = _keep_head(data.tensors, head, other_heads)
    token_embedding = get_matrix(tensors, f"{FAIRSEQ_ENCODER_PREFIX}.embed_tokens.weight", path)
    position_embedding = get_matrix(
        tensors, f"{FAIRSEQ_ENCODER_PREFIX}.embed_positions.weight", path
    )
    first_linear = get_matrix(tensors, f"{FAIRSEQ_ENCODER_PREFIX}.layers.0.fc1.weight", path)
    layers = {
        name.split(".")[3]
        for name in tensors
        if name.startswith(f"{FAIRSEQ_ENCODER_PREFIX}.layers.")
    }
    args: Args = dict(
        width=token_embedding.shape[1], depth=len(layers), ffn_width=len(first_linear)
    )
    for name, key in FAIRSEQ_SIZE_KEYS.items():
        if settings.get(key, args[name]) != args[name]:
            raise ValueError(
                f"{path}: {key} is {settings[key]!r}, but its tensors have {args[name]}"
            )
    args |= {name: settings[key] for name, key in FAIRSEQ_SETTING_KEYS.items() if key in settings}
    if "heads" not in args:
        raise ValueError(
            f"{path}: no {FAIRSEQ_SETTING_KEYS['heads']} in its settings, expected a number"
        )
    check_heads(args["width"], args["heads"], path)
    if head == "lm":
        output = tensors.get("encoder.lm_head.weight", token_embedding)
        args |= dict(head="masked-lm", tie_embeddings=torch.equal(output, token_embedding))
    else:
        args |= dict(
            head="sequence-classification",
            num_labels=len(get_matrix(tensors, "classifier.out_proj.weight", path)),
            classifier_dropout=settings.get("pooler_dropout"),
        )
    args |= dict(
        vocab_size=len(token_embedding),
        max_positions=len(position_embedding),
        type_vocab_size=1,
        norm_eps=1e-5,
        pad_token_id=FAIRSEQ_PAD_TOKEN_ID,
    )
    family = get_family("roberta")
    args = complete_arguments(family, path, **args)
    # fairseq has no token types; the only token type embedding of the family is zero.
    tensors["token_types.weight"] = token_embedding.new_zeros(1, args["width"])
    rows = [row for row in FAIRSEQ.splitlines() if "in_proj" not in row]
    names_table = "\n".join(rows) + FAIRSEQ_EXTRA_NAMES
    tokenizer = build_gpt2_bpe_tokenizer(data, len(token_embedding)) if has_gpt2_bpe(data) else None
    return ForeignCheckpoint(
        path, family, args, build_hf_config(family, args), names_table, tensors, tokenizer
    )


def _check_settings(settings: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the settings; raise ValueError for values that the family does not support."""
    problems = [
        f"{key} is {settings[key]!r}, supported: {value!r}"
        for key, value in FAIRSEQ_SUPPORTED_VALUES.items()
        if key in settings and settings[key] != value
    ]
    for key in (*FAIRSEQ_SETTING_KEYS.values(), "pooler_dropout"):
        value = settings.get(key, 0)
        types = (int, float) if key.endswith("dropout") else (int,)
        if type(value) not in types:
            problems.append(f"{key} is {value!r}, expected a number")
    if problems:
        raise ValueError(f"{path}: {'; '.join(problems)}")
    return settings


def _choose_head(
    tensors: Mapping[str, Tensor], head: str | None, path: Path
) -> tuple[str, list[str]]:
    """Return the head to load, and the other heads of the file."""
    prefixes = ("classification_heads.", "encoder.lm_head.")
    starts = [name.split(".")[:2] for name in tensors if name.startswith(prefixes)]
    heads = list(dict.fromkeys("lm" if first == "encoder" else name for first, name in starts))
    heads.sort(key="lm".__eq__)  # lm is last
    if head is None and (len(heads) == 1 or heads[1:] == ["lm"]):
        head = heads[0]
    if head is None or head not in heads:
        problem = f"no head {head!r}" if head else "which head" if heads else "no head"
        known = ", ".join(heads) or "encoder.lm_head, classification_heads"
        raise ValueError(f"{path}: {problem}; expected one of {known}")
    return head, [name for name in heads if name != head]


def _keep_head(
    tensors: Mapping[str, Tensor], head: str, other_heads: list[str]
) -> dict[str, Tensor]:
    """Return the tensors without other heads; the classification head is renamed to `classifier`."""
    removed = tuple(
        "encoder.lm_head." if name == "lm" else f"classification_heads.{name}."
        for name in other_heads
    )
    prefix = f"classification_heads.{head}."
    return {
        f"classifier.{name.removeprefix(prefix)}" if name.startswith(prefix) else name: x
        for name, x in tensors.items()
        if not name.startswith(removed)
    }
