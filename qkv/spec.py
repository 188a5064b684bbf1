"""What a model is: frozen dataclasses for its parts, and attention patterns. Knows no tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, dataclass_transform

# An int, a numpy array or a tensor: whatever has comparison and arithmetic.
PositionIds = Any


@dataclass_transform(frozen_default=True)
class Pattern:
    """An attention pattern: whether the query at position `i` may attend to the key at position `j`.

    Every pattern is a frozen dataclass. Patterns are joined with `&` and `|`."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)

    def __call__(self, i: PositionIds, j: PositionIds) -> Any:
        raise TypeError(f"{type(self).__name__} is not a rule on two positions")

    def __and__(self, other: Pattern) -> Pattern:
        return And(self, other)

    def __or__(self, other: Pattern) -> Pattern:
        return Or(self, other)

    def with_memory(self, length: int) -> Pattern:
        """The pattern for a segment that follows a memory of this length."""
        return self


class Full(Pattern):
    """Every query attends to every key."""

    def __call__(self, i: PositionIds, j: PositionIds) -> Any:
        return (i == i) & (j == j)


class Causal(Pattern):
    """A query attends to its own position and to earlier ones."""

    def __call__(self, i: PositionIds, j: PositionIds) -> Any:
        return j <= i


class Local(Pattern):
    """A query attends to positions on both sides, at most `window` away."""

    window: int

    def __call__(self, i: PositionIds, j: PositionIds) -> Any:
        return (i - j <= self.window) & (j - i <= self.window)


class Banded(Pattern):
    """A query attends to the last `window` positions, its own included."""

    window: int

    def __call__(self, i: PositionIds, j: PositionIds) -> Any:
        return (j <= i) & (i - j < self.window)


class Strided(Pattern):
    """A query attends to every `stride`-th earlier position (Sparse Transformer, section 4.3)."""

    stride: int

    def __call__(self, i: PositionIds, j: PositionIds) -> Any:
        return (j <= i) & ((i - j) % self.stride == 0)


class Chunk(Pattern):
    """A query attends within its own chunk of `stride` positions, causally (fixed pattern, head 1)."""

    stride: int

    def __call__(self, i: PositionIds, j: PositionIds) -> Any:
        return (j <= i) & (i // self.stride == j // self.stride)


class ChunkEnds(Pattern):
    """A query attends to the last `count` positions of every chunk so far (fixed pattern, head 2)."""

    stride: int
    count: int

    def __call__(self, i: PositionIds, j: PositionIds) -> Any:
        return (j <= i) & (j % self.stride >= self.stride - self.count)


class Prefix(Pattern):
    """Causal, but every query attends to the first `length` positions."""

    length: int

    def __call__(self, i: PositionIds, j: PositionIds) -> Any:
        return (j <= i) | (j < self.length)


class MemoryWindow(Pattern):
    """A query attends no further back than the memory is long (XLNet's `same_length`)."""

    def with_memory(self, length: int) -> Pattern:
        return Banded(length + 1)


class And(Pattern):
    left: Pattern
    right: Pattern

    def __call__(self, i: PositionIds, j: PositionIds) -> Any:
        return self.left(i, j) & self.right(i, j)


class Or(Pattern):
    left: Pattern
    right: Pattern

    def __call__(self, i: PositionIds, j: PositionIds) -> Any:
        return self.left(i, j) | self.right(i, j)


class PerHead(Pattern):
    """One pattern for each head."""

    patterns: tuple[Pattern, ...]


full = Full()
causal = Causal()


@dataclass_transform(frozen_default=True, kw_only_default=True)
class SpecPart:
    """A part of a spec: a frozen dataclass with keyword-only fields."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)


class NormSpec(SpecPart):
    type: Literal["layer", "rms"] = "layer"
    eps: float = 1e-5
    bias: bool = True


class RotarySpec(SpecPart):
    """Rotary position embedding. `scaling` is Llama's rope_parameters as sorted pairs."""

    theta: float = 10000.0
    scaling: tuple[tuple[str, Any], ...] = ()


class RelativeXLSpec(SpecPart):
    """Learned relative positions (Transformer-XL, XLNet); `segment_bias` adds XLNet's segment term."""

    width: int
    clamp_length: int = -1
    segment_bias: bool = False
    share_biases: bool = False  # one pair of biases for all layers
    dropout: float = 0.0


class AttentionSpec(SpecPart):
    heads: int
    head_dim: int
    kv_heads: int | None = None  # None: as many as heads
    pattern: Pattern = full
    scale: float | None = None  # None: 1 / sqrt(head_dim)
    bias: bool = True
    relative_position: RotarySpec | RelativeXLSpec | None = None
    dropout: float = 0.0


class FeedForwardSpec(SpecPart):
    """down(activation(up(x))), or down(activation(gate(x)) * up(x)) if gated."""

    width: int
    activation: str = "gelu"
    is_gated: bool = False
    bias: bool = True
    dropout: float = 0.0


class MixtureOfExpertsSpec(SpecPart):
    """Switch routing: each token goes to one expert, which takes at most `capacity` tokens of a row."""

    expert: FeedForwardSpec
    num_experts: int
    capacity: int
    router_bias: bool = False
    router_jitter: float = 0.0


class LayerSpec(SpecPart):
    attention: AttentionSpec
    feed_forward: FeedForwardSpec | MixtureOfExpertsSpec
    cross_attention: AttentionSpec | None = None
    norm: NormSpec
    norm_position: str = "pre"  # or "post": before or after each sublayer
    skip_first_norm: bool = False  # no norm before the attention (ModernBERT's first layer)
    dropout: float = 0.0
    attention_output_dropout: float | None = None  # None: the same as `dropout`


class LearnedPositions(SpecPart):
    count: int
    offset: int = 0


class SinusoidalPositions(SpecPart):
    """Layouts: "halves" (sines, then cosines), "pairs" (alternating), "ends" (halves, the last
    frequency is 1/10000)."""

    layout: str = "halves"
    offset: int = 0


class RelativeBucketsSpec(SpecPart):
    """T5's relative position bias: one learned bias for each bucket of distances, one table a stack."""

    heads: int
    num_buckets: int = 32
    max_distance: int = 128
    is_bidirectional: bool = True


class AlibiSpec(SpecPart):
    heads: int


class PatchSpec(SpecPart):
    """An image as a sequence: a class token, then square patches."""

    image_size: int
    patch_size: int
    channels: int = 3


class EmbeddingSpec(SpecPart):
    vocab_size: int
    width: int | None = None  # None: the width of the stack; else a projection follows
    padding_idx: int | None = None  # this token's vector gets no gradient
    positions: LearnedPositions | SinusoidalPositions | None = None
    token_types: int | Literal["tokens"] = 0  # "tokens": looked up in the token table (GPT)
    scale: float = 1.0
    scale_inputs_embeds: bool = False  # whether `inputs_embeds` are scaled too
    norm: NormSpec | None = None
    dropout: float = 0.0
    patches: PatchSpec | None = None
    query_stream: bool = False  # XLNet's learned vector of the query stream
    cutoffs: tuple[int, ...] | None = None  # adaptive embedding: rarer tokens in narrower tables
    div_val: int = 1


class SegmentRecurrence(SpecPart):
    """The hidden states of the last `memory_length` tokens are attended to by the next segment."""

    memory_length: int | None
    reuse_length: int | None = None  # keep only the first states of each segment
    starts_with_zeros: bool = False  # the first segment attends to a memory of zeros


class StackSpec(SpecPart):
    """An encoder or a decoder."""

    width: int
    layers: tuple[LayerSpec, ...]
    embedding: EmbeddingSpec
    layer_order: tuple[int, ...] | None = None  # the stored layer at each depth; None: each once
    final_norm: NormSpec | None = None
    position_bias: RelativeBucketsSpec | AlibiSpec | None = None
    recurrence: SegmentRecurrence | None = None
    dropout: float = 0.0  # after the last layer

    @property
    def max_positions(self) -> int | None:
        """The number of learned positions; None: not limited."""
        table = self.embedding.positions
        return table.count - table.offset if isinstance(table, LearnedPositions) else None


class HeadSpec(SpecPart):
    """A head: pool the states, then dense, activation, norm and projection. BERT's pooler is one too.

    `pooling` is "none", "first", "last", "mean", "patch_mean", "mc_token" (at mc_token_ids), "eos"
    or "first_eos" (at eos_token_id), "max_id" (at the largest id), or the output of an earlier
    head."""

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
    tie_embeddings: bool = False  # the projection is the token table
    scale: float = 1.0
    dropout: float = 0.0
    classifier_dropout: float = 0.0
    squeeze: bool = False  # (B, T, 1) -> (B, T)


class AdaptiveSoftmaxSpec(SpecPart):
    """Transformer-XL's adaptive softmax: frequent tokens and clusters first, then each cluster."""

    name: str
    tie_embeddings: bool = True
    tie_projections: tuple[bool, ...] = ()


class SpanBeamSpec(SpecPart):
    """XLNet's answer head: end logits for each of the best `num_starts` starts, and answerability."""

    name: str
    num_starts: int
    eps: float


class ShiftRight(NamedTuple):
    """How decoder inputs are made from labels. Mode "start": `start_token_id` comes first; "wrap":
    the last token comes first."""

    start_token_id: int
    mode: str = "start"


class Spec(SpecPart):
    """A model: an encoder, a decoder or both, and the heads on the last of them."""

    family: str
    encoder: StackSpec | None = None
    decoder: StackSpec | None = None
    heads: tuple[HeadSpec | AdaptiveSoftmaxSpec | SpanBeamSpec, ...] = ()
    share_embeddings: bool = True  # the decoder uses the encoder's token table
    shift_right: ShiftRight | None = None  # makes decoder_input_ids from input_ids
    init: tuple[
        tuple[str, float | Literal["xavier"]], ...
    ]  # pattern -> std; the first match counts
    init_truncation: float | None = None  # cut the normal distribution at so many std
    norm_init_std: float = 0.0  # std of norm weights around one

    @property
    def is_multiple_choice(self) -> bool:
        """Whether input_ids are (B, C, T)."""
        return any(
            isinstance(head, HeadSpec) and "mc_logits" in head.outputs for head in self.heads
        )


class DualSpec(SpecPart):
    """A text encoder and an image encoder in one embedding space (CLIP), or one of the two."""

    family: str
    text: Spec | None = None
    image: Spec | None = None
    logit_scale: float | None = None


def head_width(width: int, heads: int) -> int:
    """The dimension of one head, if the heads share the width."""
    if width % heads:
        raise ValueError(f"width {width} is not a multiple of {heads} heads: change one of the two")
    return width // heads


def with_patterns(spec: Spec, patterns: tuple[Pattern, ...]) -> Spec:
    """The same decoder with these attention patterns, repeated over its layers."""
    assert spec.decoder is not None
    layers = tuple(
        replace(layer, attention=replace(layer.attention, pattern=patterns[i % len(patterns)]))
        for i, layer in enumerate(spec.decoder.layers)
    )
    return replace(spec, decoder=replace(spec.decoder, layers=layers))
