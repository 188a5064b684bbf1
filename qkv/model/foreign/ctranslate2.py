"""Loading of encoder-decoder models in CTranslate2's format."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.families import get_family
from qkv.families.family import Args
from qkv.files import read_json_object
from qkv.model.foreign.checkpoint import (
    ForeignCheckpoint,
    build_foreign_model,
    check_heads,
    complete_arguments,
    get_matrix,
)
from qkv.model.model import Model
from qkv.weights.formats.ctranslate2 import read_ctranslate2


def is_ctranslate2(path: str | Path) -> bool:
    """Return whether a folder has a model.bin of CTranslate2, by its first four bytes."""
    file = Path(path) / "model.bin"
    if not file.is_file():
        return False
    try:
        with file.open("rb") as start:
            return 2 <= int.from_bytes(start.read(4), "little") <= 6
    except OSError:
        return False


def load_ctranslate2(folder: str | Path) -> Model:
    """Load an encoder-decoder of CTranslate2 as a model of the `transformer` family."""
    return build_foreign_model(read_ctranslate2_checkpoint(Path(folder)))


# CTranslate2's names, with dots instead of slashes, and weight and bias instead of gamma and beta.
CTRANSLATE2_NAMES = """
    @.embedding.tokens                           @.embeddings
    @.embedding.positions.weight                 @.position_encodings.encodings
    @.embedding.norm                             @.layernorm_embedding
    @.layers.{}.attention.q,k,v                  @.layer_{}.self_attention.linear_0
    @.layers.{}.attention.o                      @.layer_{}.self_attention.linear_1
    @.layers.{}.SIDE_attention_norm              @.layer_{}.self_attention.layer_norm
    decoder.layers.{}.cross_attention.q          decoder.layer_{}.attention.linear_0
    decoder.layers.{}.cross_attention.k,v        decoder.layer_{}.attention.linear_1
    decoder.layers.{}.cross_attention.o          decoder.layer_{}.attention.linear_2
    decoder.layers.{}.SIDE_cross_attention_norm  decoder.layer_{}.attention.layer_norm
    @.layers.{}.feed_forward.(up|down)           @.layer_{}.ffn.(linear_0|linear_1)
    @.layers.{}.SIDE_feed_forward_norm           @.layer_{}.ffn.layer_norm
    @.final_norm                                 @.layer_norm
    heads.lm.out                                 decoder.projection
"""

# The number of heads by spec, if the file does not contain it.
CTRANSLATE2_DEFAULT_HEADS = dict(TransformerBase=8, TransformerBig=16, TransformerSpec=8)

CTRANSLATE2_ACTIVATIONS = ("relu", "gelu_new", "silu", "gelu", "quick_gelu", "tanh", "sigmoid")

# Scalars: those with one supported value, and those that do not change the outputs.
CTRANSLATE2_SUPPORTED_VALUES = dict(
    alibi=0, layer_norm_use_residual=0, multi_query_attention=0, scale_outputs=1, sliding_window=0,
    start_from_zero_embedding=0,
)  # fmt: skip
CTRANSLATE2_IGNORED_KEYS = {
    "alibi_use_positive_positions", "alignment_heads", "alignment_layer", "embeddings_merge",
    "keep_in_float32", "scale_alibi",
}  # fmt: skip
CTRANSLATE2_SUPPORTED_CONFIG = dict(
    layer_norm_epsilon=(None, 1e-5), multi_query_attention=(None, False)
)

# The special tokens of a newer config.json, with their defaults.
CTRANSLATE2_SPECIAL_TOKENS = dict(
    bos_token="<s>", eos_token="</s>", unk_token="<unk>", decoder_start_token="<s>"
)


def read_ctranslate2_checkpoint(folder: Path) -> ForeignCheckpoint:
    """Read the arguments and the tensors of an encoder-decoder of CTranslate2."""
    spec, revision, variables, vocabularies = read_ctranslate2(folder)
    path = folder / "model.bin"
    if spec not in CTRANSLATE2_DEFAULT_HEADS or revision < 2:
        known = ", ".join(CTRANSLATE2_DEFAULT_HEADS)
        raise ValueError(
            f"{path}: {spec!r}, revision {revision}; supported: {known}, revision 2 or later"
        )
    config = read_json_object(folder / "config.json") if (folder / "config.json").exists() else {}
    problems = [
        f"{key} is {config[key]!r}, supported: {' or '.join(map(repr, supported))}"
        for key, supported in CTRANSLATE2_SUPPORTED_CONFIG.items()
        if key in config and config[key] not in supported
    ]
    tensors, scalars = _split_variables(variables)
    default_heads = CTRANSLATE2_DEFAULT_HEADS[spec]
    encoder = _read_stack_arguments("encoder", tensors, scalars, default_heads, path)
    decoder = _read_stack_arguments("decoder", tensors, scalars, default_heads, path)
    may_differ = ("depth", "heads", "ffn_width")
    problems += [
        f"{name} is {value!r} in the encoder and {decoder[name]!r} in the decoder, expected the same"
        for name, value in encoder.items()
        if name not in may_differ and decoder[name] != value
    ]
    problems += _find_unsupported(scalars)
    if problems:
        raise ValueError(f"{path}: {'; '.join(problems)}")
    source = tensors["encoder.embeddings.weight"]
    target = tensors["decoder.embeddings.weight"]
    is_tied = torch.equal(get_matrix(tensors, "decoder.projection.weight", path), target)
    family = get_family("transformer")
    args = complete_arguments(
        family,
        path,
        vocab_size=len(source),
        decoder_vocab_size=len(target),
        tie_embeddings=is_tied,
        share_embeddings=is_tied and torch.equal(source, target),
        lm_bias="decoder.projection.bias" in tensors,
        **encoder,
        **{f"decoder_{name}": decoder[name] for name in may_differ},
    )
    names_table = CTRANSLATE2_NAMES.replace("SIDE", args["norm_position"])
    token_ids = _find_special_token_ids(config, vocabularies)
    return ForeignCheckpoint(path, family, args, {**config, **token_ids}, names_table, tensors)


def _split_variables(variables: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Split variables into tensors, all of the widest dtype, and scalars, with the names of the names
    table."""
    tensors: dict[str, Tensor] = {}
    scalars: dict[str, float] = {}
    dtype = torch.float16
    for variable_name, x in variables.items():
        name = variable_name.replace("/embeddings_0/", "/embeddings/").replace("/", ".")
        name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
        if x.dim() == 0:
            scalars[name] = x.item()
        elif name != "unk_token":
            tensors[name] = x
            dtype = torch.promote_types(dtype, x.dtype)
    return {name: x.to(dtype) for name, x in tensors.items()}, scalars


def _read_stack_arguments(
    stack: str,
    tensors: Mapping[str, Tensor],
    scalars: dict[str, float],
    default_heads: int,
    path: Path,
) -> Args:
    """Return the arguments of the encoder or the decoder, and remove the scalars that were used."""

    def pop_scalar(name: str, default: float) -> float:
        return scalars.pop(
            f"{stack}.{name}", scalars.get(name, default)
        )  # before revision 5, one for both

    width = get_matrix(tensors, f"{stack}.embeddings.weight", path).shape[1]
    activation = pop_scalar("activation", 0)
    scale = pop_scalar("embeddings.multiply_by_sqrt_depth", 1)
    scale = pop_scalar("scale_embeddings", scale)
    if activation not in range(len(CTRANSLATE2_ACTIVATIONS)):
        last = len(CTRANSLATE2_ACTIVATIONS) - 1
        raise ValueError(f"{path}: {stack}/activation is {activation}, expected 0 to {last}")
    if isinstance(scale, float) and scale != 1 and abs(scale - width**0.5) > 1e-3:
        raise ValueError(
            f"{path}: {stack}/scale_embeddings is {scale}, supported: 1 or {width}**0.5"
        )
    heads = int(pop_scalar("num_heads", default_heads))
    check_heads(width, heads, path)
    layers = {match[1] for name in tensors if (match := re.match(rf"{stack}\.layer_(\d+)\.", name))}
    positions = tensors.get(f"{stack}.position_encodings.encodings")
    is_sinusoidal = positions is None
    return dict(
        width=width,
        depth=len(layers),
        ffn_width=len(get_matrix(tensors, f"{stack}.layer_0.ffn.linear_0.weight", path)),
        heads=heads,
        activation=CTRANSLATE2_ACTIVATIONS[int(activation)],
        scale_embedding=scale != 1
        if isinstance(scale, float)
        else bool(scale),  # the factor, or a flag
        norm_position="pre" if pop_scalar("pre_norm", 1) else "post",
        embedding_norm=f"{stack}.layernorm_embedding.weight" in tensors,
        final_norm=f"{stack}.layer_norm.weight" in tensors,
        sinusoidal="ends" if is_sinusoidal else None,
        position_offset=1 if is_sinusoidal else 0,
        max_positions=1 if positions is None else len(positions),
    )


def _find_unsupported(scalars: Mapping[str, float]) -> list[str]:
    """Return a problem for each scalar with an unsupported name or value."""
    problems = []
    read_keys = {"num_heads", "pre_norm", "activation"}
    for name, value in scalars.items():
        key = name.rpartition(".")[2]
        if key in CTRANSLATE2_SUPPORTED_VALUES:
            supported = CTRANSLATE2_SUPPORTED_VALUES[key]
            if value != supported:
                problems.append(f"{name} is {value}, supported: {supported}")
        elif key not in CTRANSLATE2_IGNORED_KEYS | read_keys:
            problems.append(f"{name} is {value}, which is not supported")
    return problems


def _find_special_token_ids(
    config: Mapping[str, Any], vocabularies: Mapping[str, list[str]]
) -> dict[str, int]:
    """Return the ids of the special tokens in the target vocabulary."""
    vocabulary = vocabularies.get("target", vocabularies.get("shared", []))
    tokens = {
        f"{name}_id": config.get(name, default)
        for name, default in CTRANSLATE2_SPECIAL_TOKENS.items()
    }
    return {name: vocabulary.index(token) for name, token in tokens.items() if token in vocabulary}
