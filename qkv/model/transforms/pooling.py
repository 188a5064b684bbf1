"""Pooling: one sentence embedding per text, as a part of a Spec.

`qkv.model.transforms.sentence_transformers` reads and writes its files."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from qkv.families.family import lookup
from qkv.spec import DualSpec, HeadSpec, Spec

POOLING_CONFIG_KEYS = {  # mode: its key in 1_Pooling/config.json
    "mean": "pooling_mode_mean_tokens",
    "first": "pooling_mode_cls_token",
    "last": "pooling_mode_lasttoken",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
}


class DenseLayer(NamedTuple):
    """A linear layer after pooling: its width, whether it has a bias, and its activation."""

    width: int
    bias: bool = True
    activation: str = "tanh"


class Pooling(NamedTuple):
    """The pooling mode of hidden states, whether the result is normalized, and a linear layer between
    both."""

    mode: str = "mean"
    normalize: bool = True
    dense: DenseLayer | None = None


def add_pooling(spec: Spec | DualSpec, pooling: Pooling) -> Spec:
    """Return the spec with the output `sentence_embedding` (B, W).

    With a linear layer, its output before normalization is `sentence_dense`."""
    lookup("pooling", pooling.mode, dict.fromkeys(POOLING_CONFIG_KEYS))
    if isinstance(spec, DualSpec):
        raise ValueError(
            f"pooling {pooling.mode!r} in {spec.family}: the outputs text_embeds and image_embeds "
            "are already pooled"
        )
    source = pooling.mode
    heads = spec.heads
    if pooling.dense is not None:
        source = "sentence_dense"
        dense = HeadSpec(
            name=source,
            outputs=(source,),
            pooling=pooling.mode,
            dense_width=pooling.dense.width,
            dense_bias=pooling.dense.bias,
            activation=pooling.dense.activation,
        )
        heads = (*heads, dense)
    head = HeadSpec(
        name="sentence_embedding",
        outputs=("sentence_embedding",),
        pooling=source,
        activation="unit" if pooling.normalize else "linear",
    )
    return replace(spec, heads=(*heads, head))
