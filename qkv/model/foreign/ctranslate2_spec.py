"""A Spec in the terms of CTranslate2: the name, the scalars and the names table of its model.bin.

Reading and writing share them: a writer needs them for the Spec of a model, and a reader compares them
with the file after it has found the arguments of a family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.nn.embedding import sinusoids
from qkv.spec import (
    FeedForwardSpec,
    HeadSpec,
    LayerSpec,
    LearnedPositions,
    RelativeBucketsSpec,
    RotarySpec,
    SinusoidalPositions,
    Spec,
    StackSpec,
)
from qkv.weights.names_table import NamesTable

# Names with dots instead of slashes, and weight and bias instead of gamma and beta.
CTRANSLATE2_NAMES = """
    encoder.embedding.(tokens|token_types)             encoder.(embeddings_0|embeddings_1)
    decoder.embedding.tokens                           decoder.embeddings
    @.embedding.norm                                   @.layernorm_embedding
    @.layers.{}.attention.q,k,v                        @.layer_{}.self_attention.linear_0
    @.layers.{}.attention.o                            @.layer_{}.self_attention.linear_1
    @.layers.{}.(pre|post)_attention_norm              @.layer_{}.self_attention.(layer_norm|layer_norm)
    decoder.layers.{}.cross_attention.q                decoder.layer_{}.attention.linear_0
    decoder.layers.{}.cross_attention.k,v              decoder.layer_{}.attention.linear_1
    decoder.layers.{}.cross_attention.o                decoder.layer_{}.attention.linear_2
    decoder.layers.{}.(pre|post)_cross_attention_norm  decoder.layer_{}.attention.(layer_norm|layer_norm)
    @.layers.{}.(pre|post)_feed_forward_norm           @.layer_{}.ffn.(layer_norm|layer_norm)
    @.final_norm                                       @.layer_norm
    heads.pooler.dense                                 pooler_dense
    heads.lm.out.(weight|bias)                         decoder.projection.(weight|bias)
"""
FEED_FORWARD_NAMES = """
    @.layers.{}.feed_forward.(up|down)                 @.layer_{}.ffn.(linear_0|linear_1)
"""
GATED_FEED_FORWARD_NAMES = """
    @.layers.{}.feed_forward.(gate|up|down)            @.layer_{}.ffn.(linear_0|linear_0_noact|linear_1)
"""
# Tensors with one row per token, without the pad token of a decoder that starts from zero.
TOKEN_ROW_OPERATIONS = {
    "encoder.embeddings_0": "without_last:1",
    "decoder.embeddings": "without_last:1",
    "decoder.projection.weight": "without_last:1",
    "decoder.projection.bias": "without_last_bias:1",
}

# The number of each activation, by our names; the first name of a number is used when reading.
CTRANSLATE2_ACTIVATIONS = {
    "relu": 0, "gelu_new": 1, "gelu_fast": 1, "gelu_pytorch_tanh": 1, "silu": 2, "swish": 2,
    "gelu": 3, "gelu_python": 3, "quick_gelu": 4, "tanh": 5, "sigmoid": 6,
}  # fmt: skip
CTRANSLATE2_REVISIONS = {  # spec: the revision that is written
    "TransformerSpec": 7,
    "TransformerDecoderSpec": 8,
    "TransformerEncoderSpec": 1,
}
INTEGER_DTYPES = dict(  # other integers, and flags, are int8
    num_heads=torch.int16, alignment_layer=torch.int16, alignment_heads=torch.int16,
    num_heads_kv=torch.int32, head_dim=torch.int32, rotary_dim=torch.int32,
    relative_attention_max_distance=torch.int32,
)  # fmt: skip
LINEAR_ROTARY_SCALING = 0
# Scalars that have no effect, and values of scalars that a Spec need not have.
IGNORED_SCALARS = {
    "alibi_use_positive_positions", "alignment_heads", "alignment_layer", "keep_in_float32",
    "original_max_position_embeddings", "max_position_embeddings", "scale_alibi",
}  # fmt: skip
NEUTRAL_SCALARS = dict(
    layer_norm_use_residual=0, multi_query_attention=0, scale_outputs=1, sliding_window=0,
    rotary_scaling_factor=1, embeddings_merge=0, alibi=0,
)  # fmt: skip
DEFAULT_NORM_EPS = {"layer": 1e-5, "rms": 1e-6}
Scalars = dict[str, float]  # int (numbers, flags) or float


class CTranslate2Spec(NamedTuple):
    """The name of a spec, its scalars by name with dots, and the names table of its tensors."""

    name: str
    scalars: Scalars
    names_table: str


def describe_spec(spec: Spec, *, starts_from_zero: bool = False) -> CTranslate2Spec:
    """Return a Spec in the terms of CTranslate2, which must support all of its parts.

    `starts_from_zero`: the first input of the decoder is a vector of zeros, and the last token of
    the vocabulary, which has this embedding, is not stored."""
    scalars: Scalars = {}
    for name, stack in list_stacks(spec).items():
        is_factor = spec.encoder is not None and spec.decoder is not None
        stack_scalars = _describe_stack(stack, name == "decoder", is_factor)
        scalars |= {f"{name}.{key}": value for key, value in stack_scalars.items()}
    if spec.decoder is not None:
        (lm,) = spec.heads
        assert isinstance(lm, HeadSpec)
        scalars["decoder.start_from_zero_embedding"] = starts_from_zero
        if lm.scale != 1:
            scalars["decoder.scale_outputs"] = float(lm.scale)
    elif spec.heads:
        scalars["pooler_activation"] = CTRANSLATE2_ACTIVATIONS["tanh"]
    side = {(False, True): "Decoder", (True, False): "Encoder"}
    kind = side.get((spec.encoder is not None, spec.decoder is not None), "")
    return CTranslate2Spec(
        f"Transformer{kind}Spec", scalars, _build_names_table(spec, starts_from_zero)
    )


def _describe_stack(stack: StackSpec, is_decoder: bool, is_factor: bool) -> Scalars:
    """Return the scalars of a stack. `is_factor`: the scale of embeddings is written as a factor."""
    first = stack.layers[0]
    scale = stack.embedding.scale
    is_flag = scale == 1 and (stack.embedding.positions is None or not is_factor)
    assert isinstance(first.feed_forward, FeedForwardSpec)
    scalars: Scalars = dict(
        num_heads=first.attention.heads,
        pre_norm=first.norm_position == "pre",
        activation=CTRANSLATE2_ACTIVATIONS[first.feed_forward.activation],
        scale_embeddings=False if is_flag else float(scale),
    )
    if is_decoder:
        scalars |= dict(alignment_layer=-1, alignment_heads=1)
        scalars |= dict(alibi=False, alibi_use_positive_positions=False, scale_alibi=False)
    else:
        scalars |= dict(
            embeddings_merge=int(stack.embedding.token_types != 0), multi_query_attention=False
        )
    for i, layer in enumerate(stack.layers):
        for key, value in _describe_attention(stack, layer).items():
            scalars[f"layer_{i}.self_attention.{key}"] = value
        cross_attention = layer.cross_attention
        if cross_attention is not None:
            unbiased = replace(stack, position_bias=None)
            as_self_attention = replace(layer, attention=cross_attention)
            for key, value in _describe_attention(unbiased, as_self_attention).items():
                scalars[f"layer_{i}.attention.{key}"] = value
    return scalars


def _describe_attention(stack: StackSpec, layer: LayerSpec) -> Scalars:
    """Return the scalars of the self-attention of a layer."""
    attention = layer.attention
    scalars: Scalars = {}
    if attention.scale is not None and attention.scale != attention.head_dim**-0.5:
        scalars["queries_scale"] = float(attention.scale)
    if isinstance(stack.position_bias, RelativeBucketsSpec):
        scalars["relative_attention_max_distance"] = stack.position_bias.max_distance
    if attention.kv_heads not in (None, attention.heads):
        scalars["num_heads_kv"] = int(attention.kv_heads or 0)
    if isinstance(attention.relative_position, RotarySpec):
        rotary = attention.relative_position
        scaling = dict(rotary.scaling)
        scalars |= dict(rotary_dim=0, rotary_interleave=False, rotary_base=float(rotary.theta))
        if scaling.get("rope_type", "default") == "linear":
            scalars["rotary_scaling_type"] = LINEAR_ROTARY_SCALING
            scalars["rotary_scaling_factor"] = float(scaling["factor"])
        if attention.head_dim * attention.heads != stack.width:
            scalars["head_dim"] = attention.head_dim
    return scalars


def _build_names_table(spec: Spec, starts_from_zero: bool) -> str:
    stacks = list_stacks(spec)
    feed_forward = next(iter(stacks.values())).layers[0].feed_forward
    assert isinstance(feed_forward, FeedForwardSpec)
    is_gated = feed_forward.is_gated
    rows = CTRANSLATE2_NAMES + (GATED_FEED_FORWARD_NAMES if is_gated else FEED_FORWARD_NAMES)
    for name, stack in stacks.items():
        positions = stack.embedding.positions
        encodings = f"{name}.position_encodings.encodings"
        if isinstance(positions, LearnedPositions):
            operation = f"without_first:{positions.offset}" if positions.offset else ""
            rows += f"{name}.embedding.positions.weight {encodings} {operation}\n"
        elif positions is not None:
            rows += f"- {encodings}\n"
        if stack.position_bias is not None:
            for i in range(len(stack.layers)):
                attention = f"{name}.layer_{i}.self_attention"
                operation = "copy" if i else ""
                rows += f"{name}.position_bias.table.weight {attention}.relative_attention_bias {operation}\n"
    if not starts_from_zero:
        return rows
    return "\n".join(
        f"{parameter} {name} {TOKEN_ROW_OPERATIONS.get(name, operation)}"
        for parameter, name, operation in NamesTable(rows).rows
    )


def list_stacks(spec: Spec) -> dict[str, StackSpec]:
    """Return the encoder and the decoder, as far as they exist and have attention layers, by name."""
    stacks = {"encoder": spec.encoder, "decoder": spec.decoder}
    return {name: stack for name, stack in stacks.items() if isinstance(stack, StackSpec)}


def to_variable_name(name: str) -> str:
    """Return the name of a variable: slashes, and gamma and beta in norms."""
    module, _, leaf = name.rpartition(".")
    if module.endswith(("layer_norm", "layernorm_embedding")):
        leaf = {"weight": "gamma", "bias": "beta"}[leaf]
    return f"{module}.{leaf}".lstrip(".").replace(".", "/")


def from_variable_name(name: str) -> str:
    """Return the name of a variable in the names table; older files have one embedding."""
    name = name.replace("encoder/embeddings/", "encoder/embeddings_0/")
    module, _, leaf = name.replace("/", ".").rpartition(".")
    leaf = {"gamma": "weight", "beta": "bias"}.get(leaf, leaf)
    return f"{module}.{leaf}".lstrip(".")


def to_scalar_variable(name: str, value: float) -> Tensor:
    """Return a scalar with the dtype that CTranslate2 gives it."""
    key = name.rpartition(".")[2]
    dtype = torch.float32 if isinstance(value, float) else INTEGER_DTYPES.get(key, torch.int8)
    return torch.tensor(value, dtype=dtype)


def build_position_table(stack: StackSpec, count: int, dtype: torch.dtype) -> Tensor | None:
    """Return sinusoidal positions as a table; None if CTranslate2 computes them itself, or if the
    stack has other positions."""
    positions = stack.embedding.positions
    if not isinstance(positions, SinusoidalPositions):
        return None
    if (positions.layout, positions.offset) == ("ends", 1):
        return None
    position_ids = torch.arange(count) + positions.offset
    return sinusoids(position_ids, stack.width, positions.layout).to(dtype)


def find_scalar_problems(
    file_scalars: Mapping[str, float], scalars: Mapping[str, float]
) -> list[str]:
    """Return a problem for each scalar of a file that the Spec read from it does not have."""
    problems = []
    for name, value in file_scalars.items():
        key = name.rpartition(".")[2]
        expected = scalars.get(name, NEUTRAL_SCALARS.get(key))
        if key in IGNORED_SCALARS:
            continue
        if key == "scale_embeddings":  # a factor in `file_scalars`; False is 1
            expected = expected or 1.0
        if expected is None:
            problems.append(f"{name} is {value:g}, which is not supported")
        elif not abs(value - expected) <= 1e-3 * abs(expected):  # also if one is not a number
            problems.append(f"{name} is {value:g}, supported: {expected:g}")
    return problems
