"""Loading of Marian's own models (.npz) as models of the family `marian`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.families import get_family
from qkv.families.bart import names_table
from qkv.families.family import Args
from qkv.model.config import build_hf_config
from qkv.model.foreign.checkpoint import (
    ForeignCheckpoint,
    build_foreign_model,
    check_heads,
    complete_arguments,
    get_matrix,
)
from qkv.model.foreign.tokenizer import build_tokenizer
from qkv.model.model import Model
from qkv.text import Tokenizer
from qkv.text.sentencepiece_model import parse_sentencepiece_model
from qkv.weights.formats.checkpoint import CheckpointData
from qkv.weights.formats.marian import has_marian_settings, list_marian_files, read_marian

# Settings that change the outputs, with the values that the family supports.
MARIAN_SUPPORTED_VALUES: dict[str, tuple[Any, ...]] = {
    "type": ("transformer",),
    "lemma-dim-emb": (0,),
    "right-left": (False,),
    "transformer-aan-nogate": (False,),
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-disable-position-embeddings": (False,),
    "transformer-ffn-depth": (2,),
    "transformer-no-projection": (False,),
    "transformer-pool": (False,),
    "transformer-postprocess-emb": ("", None, "d", "n", "nd", "dn"),
    "transformer-postprocess-top": ("", None, "n", "nd", "dn"),
    "transformer-tied-layers": (None, []),
    "transformer-train-positions": (False,),
    "transformer-train-position-embeddings": (False,),
    "ulr": (False,),
}
# Pre- and post-processing of sublayers: d dropout, a add, n norm.
MARIAN_NORM_POSITIONS = {
    ("", "dan"): "post",
    ("", "an"): "post",
    ("n", "da"): "pre",
    ("n", "a"): "pre",
}
MARIAN_ACTIVATIONS = {"swish": "swish", "relu": "relu", "gelu": "quick_gelu"}
# Marian's name in a layer, and that of Hugging Face; {} is q, k, v, o or a number.
MARIAN_SUBLAYERS = {"self": "self_attn", "context": "encoder_attn", "ffn": "final"}
NEW_ROW_BIAS = -1e4  # of ids that are not in the vocabulary, such as the pad


def is_marian(path: str | Path) -> bool:
    """Return whether a path is an .npz file of Marian, or a folder with one and without config.json."""
    path = Path(path)
    if path.is_dir():
        return not (path / "config.json").exists() and bool(list_marian_files(path))
    return has_marian_settings(path)


def load_marian(path: str | Path) -> Model:
    """Load an .npz file, or that of a folder with decoder.yml and its vocabularies."""
    return build_foreign_model(map_marian(read_marian(Path(path))))


def map_marian(data: CheckpointData) -> ForeignCheckpoint:
    """Return the arguments, the tensors and the tokenizer of a model.

    As Marian's decoder starts with a zero embedding, a zero row is added to the embeddings: the pad
    token, which is also the start token, as in Hugging Face's format."""
    path = data.path
    settings = data.config
    problems = [
        f"{key} is {settings[key]!r}, supported: {' or '.join(map(repr, supported))}"
        for key, supported in MARIAN_SUPPORTED_VALUES.items()
        if key in settings and settings[key] not in supported
    ]
    operations = (
        str(settings.get("transformer-preprocess") or ""),
        str(settings.get("transformer-postprocess") or ""),
    )
    activation = settings.get("transformer-ffn-activation", "swish")
    if operations not in MARIAN_NORM_POSITIONS:
        problems.append(
            f"transformer-preprocess and -postprocess are {operations}, supported: '' and 'dan', or "
            "'n' and 'da'"
        )
    if activation not in MARIAN_ACTIVATIONS:
        known = ", ".join(MARIAN_ACTIVATIONS)
        problems.append(f"transformer-ffn-activation is {activation!r}, supported: {known}")
    if problems:
        raise ValueError(f"{path}: {'; '.join(problems)}")
    tensors = rename_marian_tensors(data.tensors, path)
    data = _add_sentencepiece_vocabularies(data)
    embeddings, bias = _build_embeddings(tensors, path)
    pad_token_id = len(embeddings["decoder"]) - 1
    is_shared = embeddings["encoder"] is embeddings["decoder"]
    output = tensors.pop("lm_head.weight", None)
    width = embeddings["decoder"].shape[1]
    heads = settings.get("transformer-heads")
    if type(heads) is not int:
        raise ValueError(f"{path}: transformer-heads is {heads!r}, expected a number")
    check_heads(width, heads, path)
    eos_token_id = _find_token_id(data, "</s>", 0)
    family = get_family("marian")
    args = complete_arguments(
        family,
        path,
        vocab_size=len(embeddings["encoder"]),
        decoder_vocab_size=len(embeddings["decoder"]),
        width=width,
        heads=heads,
        decoder_heads=heads,
        **_read_sizes("encoder", "", tensors, path),
        **_read_sizes("decoder", "decoder_", tensors, path),
        activation=MARIAN_ACTIVATIONS[activation],
        norm_position=MARIAN_NORM_POSITIONS[operations],
        embedding_norm="model.encoder.layernorm_embedding.weight" in tensors,
        final_norm="model.encoder.layer_norm.weight" in tensors,
        sinusoidal="ends",
        norm_eps=1e-6,
        scale_embedding=True,
        tie_embeddings=output is None,
        share_embeddings=is_shared,
        lm_bias="fixed",
        pad_token_id=pad_token_id,
        decoder_start_token_id=pad_token_id,
        eos_token_id=eos_token_id,
    )
    if is_shared and output is None:
        tensors["model.shared.weight"] = embeddings["encoder"]
    else:
        tensors |= {f"model.{stack}.embed_tokens.weight": x for stack, x in embeddings.items()}
    if output is not None:
        tensors["lm_head.weight"] = _add_rows(output, pad_token_id + 1 - len(output))
    tensors["final_logits_bias"] = bias
    token_ids = dict(
        eos_token_id=eos_token_id, pad_token_id=pad_token_id, decoder_start_token_id=pad_token_id
    )
    return ForeignCheckpoint(
        path,
        family,
        args,
        build_hf_config(family, args),
        names_table(args),
        tensors,
        tokenizer=_build_marian_tokenizer(data, embeddings),
        generation_config={**token_ids, "max_length": 512, **data.generation_config},
    )


def rename_marian_tensors(tensors: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Return the tensors with the names and layout of Hugging Face's Marian."""
    renamed: dict[str, Tensor] = {}
    unknown = []
    for name, tensor in tensors.items():
        new_name = _rename(name)
        if new_name is None:
            unknown.append(name)
            continue
        is_embedding = name.endswith(("Wemb", "_Wt"))
        if tensor.dim() == 2 and new_name.endswith(".weight") and not is_embedding:
            tensor = tensor.flatten() if "_ln_" in name else tensor.T
        elif new_name.endswith(".bias"):
            tensor = tensor.flatten()
        renamed[new_name] = tensor.float() if tensor.dtype == torch.float16 else tensor
    if unknown:
        raise ValueError(
            f"{path}: {', '.join(sorted(unknown))} unknown, expected the tensors of a transformer"
        )
    return renamed


def _rename(name: str) -> str | None:
    """Return Hugging Face's name of a tensor of Marian, or None if it has none."""
    names = {
        "Wemb": "shared.weight",
        "encoder_Wemb": "encoder.embed_tokens.weight",
        "decoder_Wemb": "decoder.embed_tokens.weight",
        "decoder_ff_logit_out_b": "final_logits_bias",
        "decoder_ff_logit_out_Wt": "lm_head.weight",
        "decoder_ff_logit_out_W": "lm_head.weight",
    }
    if name in names:
        return names[name]
    leaves = {"W": "weight", "b": "bias", "scale": "weight"}
    if match := re.fullmatch(r"(encoder|decoder)_(top|emb)_ln_(scale|bias)(?:_pre)?", name):
        module = "layer_norm" if match[2] == "top" else "layernorm_embedding"
        return f"model.{match[1]}.{module}.{leaves.get(match[3], match[3])}"
    match = re.fullmatch(r"(encoder|decoder)_l(\d+)_(self|context|ffn)_(.+)", name)
    if match is None:
        return None
    prefix = f"model.{match[1]}.layers.{int(match[2]) - 1}"
    sublayer = MARIAN_SUBLAYERS[match[3]]
    if norm := re.fullmatch(r"(?:Wo|ffn)_ln_(scale|bias)(?:_pre)?", match[4]):
        return f"{prefix}.{sublayer}_layer_norm.{leaves.get(norm[1], norm[1])}"
    if match[3] == "ffn" and (linear := re.fullmatch(r"([Wb])([12])", match[4])):
        return f"{prefix}.fc{linear[2]}.{leaves[linear[1]]}"
    if match[3] != "ffn" and (linear := re.fullmatch(r"([Wb])([qkvo])", match[4])):
        projection = "out_proj" if linear[2] == "o" else f"{linear[2]}_proj"
        return f"{prefix}.{sublayer}.{projection}.{leaves[linear[1]]}"
    return None


def _read_sizes(stack: str, prefix: str, tensors: Mapping[str, Tensor], path: Path) -> Args:
    """Return depth and width of the feed-forward layers of a stack."""
    first_linear = get_matrix(tensors, f"model.{stack}.layers.0.fc1.weight", path)
    layers = {name.split(".")[3] for name in tensors if name.startswith(f"model.{stack}.layers.")}
    return {f"{prefix}depth": len(layers), f"{prefix}ffn_width": len(first_linear)}


def _build_embeddings(tensors: dict[str, Tensor], path: Path) -> tuple[dict[str, Tensor], Tensor]:
    """Return the token embeddings of both stacks and the bias of the logits, with the row of the pad.

    Both embeddings get the same number of rows, so that the pad has the same id in both."""
    shared = tensors.pop("shared.weight", None)
    if shared is not None:
        source = target = _add_rows(shared, 1)
    else:
        source, target = (
            get_matrix(tensors, f"{stack}.embed_tokens.weight", path)
            for stack in ("encoder", "decoder")
        )
        for stack in ("encoder", "decoder"):
            del tensors[f"{stack}.embed_tokens.weight"]
        rows = max(len(source), len(target)) + 1
        source, target = (_add_rows(x, rows - len(x)) for x in (source, target))
    bias = tensors.pop("final_logits_bias", None)
    if bias is None:  # output-omit-bias
        bias = target.new_zeros(1, len(target) - 1)
    new_bias = bias.new_full((1, len(target) - bias.shape[-1]), NEW_ROW_BIAS)
    return {"encoder": source, "decoder": target}, torch.cat([bias, new_bias], dim=1)


def _add_rows(tensor: Tensor, count: int) -> Tensor:
    return torch.cat([tensor, tensor.new_zeros(count, tensor.shape[1])])


def _add_sentencepiece_vocabularies(data: CheckpointData) -> CheckpointData:
    """Return the data with the pieces of those vocabularies that are SentencePiece models."""
    vocabularies = dict(data.vocabularies)
    for side in ("source", "target"):
        path = data.tokenizer_files.get(f"{side}_sentencepiece")
        if path is not None and side not in vocabularies:
            model = parse_sentencepiece_model(path.read_bytes(), path)
            vocabularies[side] = [piece.piece for piece in model.pieces]
    return replace(data, vocabularies=vocabularies)


def _build_marian_tokenizer(
    data: CheckpointData, embeddings: Mapping[str, Tensor]
) -> Tokenizer | None:
    """Return the tokenizer with the pad, which Marian's vocabularies lack."""
    sizes = tuple(len(x) for x in embeddings.values())
    vocabularies = {
        side: [*tokens, *(f"<unused{i}>" for i in range(size - len(tokens) - 1)), "<pad>"]
        for (side, tokens), size in zip(data.vocabularies.items(), sizes, strict=False)
    }
    return build_tokenizer(replace(data, vocabularies=vocabularies), (sizes[0], sizes[1]))


def _find_token_id(data: CheckpointData, token: str, default: int) -> int:
    vocabulary = data.get_vocabulary("target") or []
    return vocabulary.index(token) if token in vocabulary else default
