"""Loading of RoBERTa checkpoints of fairseq. Executes no code of a checkpoint."""

from __future__ import annotations

import argparse
import re
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
    build_foreign_model,
    check_heads,
    complete_arguments,
    get_matrix,
)
from qkv.model.model import Model
from qkv.weights.tensors import read_torch_file


def is_fairseq(path: str | Path) -> bool:
    """Return whether a path is a .pt file, or a folder with one and without a config.json."""
    path = Path(path)
    if path.is_dir():
        return not (path / "config.json").exists() and any(path.glob("*.pt"))
    return path.suffix == ".pt" and path.is_file()


def load_fairseq(path: str | Path, head: str | None = None) -> Model:
    """Load a RoBERTa of fairseq: a .pt file, or its folder with dict.txt.

    `head` is "lm" or the name of a classification head; the default is the only classification head,
    else "lm"."""
    return build_foreign_model(read_fairseq_checkpoint(Path(path), head))


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


def read_fairseq_checkpoint(path: Path, head: str | None = None) -> ForeignCheckpoint:
    """Read the arguments and the tensors of a checkpoint, with the tensor names of the newest
    version."""
    path = _find_checkpoint_file(path)
    checkpoint = read_torch_file(path, allowed_types=(argparse.Namespace,))
    state_dict = checkpoint.get("model") if isinstance(checkpoint, dict) else None
    if (
        not isinstance(checkpoint, dict)
        or not isinstance(state_dict, dict)
        or not _is_roberta(state_dict)
    ):
        raise ValueError(
            f"{path}: not a RoBERTa of fairseq; expected `model` with a sentence_encoder"
        )
    settings = _read_settings(checkpoint, path)
    tensors = _upgrade_tensor_names(state_dict, path)
    head, other_heads = _choose_head(tensors, head, path)
    if other_heads:
        others = ", ".join(other_heads)
        warnings.warn(f"{path}: loaded with the head {head}, without {others}", stacklevel=5)
    tensors = _keep_head(tensors, head, other_heads)
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
    return ForeignCheckpoint(
        path, family, args, build_hf_config(family, args), names_table, tensors
    )


def _find_checkpoint_file(path: Path) -> Path:
    """Return the file itself, or the checkpoint of a folder."""
    if not path.is_dir():
        return path
    files = sorted(path.glob("*.pt"))
    names = ("model.pt", "checkpoint_best.pt", "checkpoint_last.pt", "checkpoint.pt")
    preferred = [path / name for name in names if path / name in files]
    if preferred or len(files) == 1:
        return (preferred or files)[0]
    listing = ", ".join(file.name for file in files) or "none"
    raise ValueError(f"{path}: several .pt files ({listing}); pass the path of one of them")


def _is_roberta(tensors: Mapping[Any, Any]) -> bool:
    has_encoder = any(".sentence_encoder." in str(name) for name in tensors)
    return has_encoder and all(isinstance(x, Tensor) for x in tensors.values())


def _read_settings(checkpoint: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return `args`, or `cfg.model` of newer files: a Namespace or a dict."""
    cfg = checkpoint.get("cfg")
    settings = checkpoint.get("args") or (cfg.get("model") if isinstance(cfg, dict) else None)
    settings = vars(settings) if isinstance(settings, argparse.Namespace) else settings
    if not isinstance(settings, dict):
        raise ValueError(f"{path}: neither args nor cfg.model; expected the training settings")
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


def _upgrade_tensor_names(tensors: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Return the tensors with the names and splits of the newest fairseq, without buffers."""
    upgraded: dict[str, Tensor] = {}
    for old_name, tensor in tensors.items():
        if old_name.endswith((".version", "._float_tensor")):
            continue
        name = re.sub(r"^decoder\.", "encoder.", old_name)
        name = name.replace(".layernorm_embedding.", ".emb_layer_norm.")
        module, is_fused, leaf = name.partition(".in_proj_")  # before 0.8: q, k and v in one
        if is_fused:
            chunks = zip("qkv", tensor.chunk(3), strict=False)
            parts = {f"{module}.{letter}_proj.{leaf}": chunk for letter, chunk in chunks}
        else:
            parts = {name: tensor}
        for part_name, part in parts.items():
            if part_name in upgraded:
                raise ValueError(
                    f"{path}: {part_name} occurs twice, once under an older name; is the file damaged?"
                )
            upgraded[part_name] = part
    return upgraded


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
