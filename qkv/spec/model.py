"""Spec and DualSpec: a model of stacks and heads, and its initialization."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, NamedTuple

from qkv.spec.embeddings import ConvolutionSpec, FrameSpec, PatchSpec
from qkv.spec.layers import NormSpec, SpecPart
from qkv.spec.patterns import Pattern
from qkv.spec.stacks import AnyStackSpec, StackSpec

# Arguments of every family, which replace parts of its spec.
VARIANT_KEYS = ("position_embedding_type", "attention_score", "attention_select")


class HeadSpec(SpecPart):
    """A head: pool the states, then dense layer, activation, norm and projection.

    BERT's pooler is also a head. `pooling` is "none", "first", "last", "mean", "max",
    "mean_sqrt_len_tokens" (the sum divided by the root of the length), "weightedmean" (the n-th token
    counts n times), "patch_mean", "mc_token" (at mc_token_ids), "eos" or "first_eos" (at
    eos_token_id), "max_id" (at the largest id), or the name of an output of an earlier head."""

    name: str
    outputs: tuple[str, ...] = ("logits",)
    pooling: str = "none"
    eos_token_id: int | None = None
    dense_width: int | None = None
    dense_bias: bool = True
    activation: str = "linear"
    norm: NormSpec | None = None
    out_features: int | None = None  # None: no projection
    bias: bool | Literal["fixed"] = True  # "fixed": not trained (BART's final_logits_bias)
    tie_embeddings: bool = False  # the projection shares the weight of the token embedding
    scale: float = 1.0
    dropout: float = 0.0
    classifier_dropout: float = 0.0
    squeeze: bool = False  # (B, T, 1) -> (B, T)


class AdaptiveSoftmaxSpec(SpecPart):
    """Transformer-XL's adaptive softmax: one over frequent tokens and clusters, one per cluster."""

    name: str
    tie_embeddings: bool = True
    tie_projections: tuple[bool, ...] = ()


class SpanBeamSpec(SpecPart):
    """XLNet's answer head: end logits for each of the `num_starts` best starts, and answerability."""

    name: str
    num_starts: int
    eps: float


class ShiftRight(NamedTuple):
    """Computation of decoder inputs from labels. In mode "start", `start_token_id` comes first; in mode
    "wrap", the last token comes first."""

    start_token_id: int
    mode: str = "start"


class Uniform(NamedTuple):
    """Initialization from a uniform distribution between -bound and bound, biases included."""

    bound: float


# Standard deviation of a normal distribution, or another distribution. "orthogonal" is for a square
# matrix, or a stack of them.
Initialization = float | Uniform | Literal["xavier", "orthogonal", "zeros"]


class Spec(SpecPart):
    """A model: an encoder, a decoder or both, and the heads on the last stack."""

    family: str
    encoder: AnyStackSpec | None = None
    decoder: AnyStackSpec | None = None
    heads: tuple[HeadSpec | AdaptiveSoftmaxSpec | SpanBeamSpec, ...] = ()
    share_embeddings: bool = True  # the decoder shares the encoder's token embedding
    share_layers: bool = False  # the decoder shares the encoder's layers
    shift_right: ShiftRight | None = None  # how to compute decoder_input_ids from input_ids
    init: tuple[tuple[str, Initialization], ...]  # by pattern; the first match is used
    init_truncation: float | None = None  # truncate the normal distribution at this multiple of std
    norm_init_std: float = 0.0  # std of norm weights, whose mean is one

    @property
    def is_multiple_choice(self) -> bool:
        """Whether input_ids have the shape (B, C, T) for C choices."""
        return any(
            isinstance(head, HeadSpec) and "mc_logits" in head.outputs for head in self.heads
        )


class DualSpec(SpecPart):
    """A text encoder and an image encoder with a common embedding space (CLIP), or one of the two."""

    family: str
    text: Spec | None = None
    image: Spec | None = None
    logit_scale: float | None = None


def find_patches(spec: Spec | DualSpec) -> PatchSpec | ConvolutionSpec | FrameSpec | None:
    """Return how a model reads pixel values; None if it reads only texts."""
    tower = spec.image if isinstance(spec, DualSpec) else spec
    stack = (tower.encoder or tower.decoder) if tower else None
    return stack.embedding.patches if stack else None


def head_width(width: int, heads: int) -> int:
    """Return the dimension of one head if the heads divide the width."""
    if width % heads:
        raise ValueError(f"width {width} is not a multiple of {heads} heads: change one of the two")
    return width // heads


def with_patterns(spec: Spec, patterns: tuple[Pattern, ...]) -> Spec:
    """Return the spec with these attention patterns, repeated over the layers of its decoder."""
    assert isinstance(spec.decoder, StackSpec)
    layers = tuple(
        replace(layer, attention=replace(layer.attention, pattern=patterns[i % len(patterns)]))
        for i, layer in enumerate(spec.decoder.layers)
    )
    return replace(spec, decoder=replace(spec.decoder, layers=layers))
