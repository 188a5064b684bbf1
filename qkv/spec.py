"""Description of a model by frozen dataclasses, and attention patterns. Does not depend on torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, dataclass_transform

# An int, a numpy array or a tensor: any type with comparison and arithmetic.
PositionIds = Any

# Arguments of every family, which replace parts of its spec.
VARIANT_KEYS = ("position_embedding_type", "attention_score", "attention_select")


@dataclass_transform(frozen_default=True)
class Pattern:
    """An attention pattern: whether the query at position `i` may attend to the key at position `j`.

    Every pattern is a frozen dataclass. Patterns are combined with `&` and `|`."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)

    def __call__(self, i: PositionIds, j: PositionIds) -> Any:
        raise TypeError(f"{type(self).__name__} cannot be evaluated on two positions")

    def __and__(self, other: Pattern) -> Pattern:
        return And(self, other)

    def __or__(self, other: Pattern) -> Pattern:
        return Or(self, other)

    def with_memory(self, length: PositionIds) -> Pattern:
        """Return the pattern for a segment that follows a memory of this length."""
        return self


class Full(Pattern):
    """Every query attends to every key."""

    def __call__(self, i: PositionIds, j: PositionIds) -> Any:
        return (i == i) & (j == j)


class Causal(Pattern):
    """A query attends to its own position and to earlier positions."""

    def __call__(self, i: PositionIds, j: PositionIds) -> Any:
        return j <= i


class Local(Pattern):
    """A query attends to positions on both sides, at most `window` away."""

    window: int

    def __call__(self, i: PositionIds, j: PositionIds) -> Any:
        return (i - j <= self.window) & (j - i <= self.window)


class Banded(Pattern):
    """A query attends to the last `window` positions, including its own."""

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
    """Causal, except that every query also attends to the first `length` positions (prefix LM)."""

    length: int

    def __call__(self, i: PositionIds, j: PositionIds) -> Any:
        return (j <= i) | (j < self.length)


class MemoryWindow(Pattern):
    """A query attends to at most as many earlier positions as the memory has (XLNet's `same_length`)."""

    def with_memory(self, length: PositionIds) -> Pattern:
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
    """One pattern per head."""

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


class ScoreSpec(SpecPart):
    """How queries are compared with keys; `settings` are sorted pairs."""

    name: str = "scaled-dot"
    settings: tuple[tuple[str, float], ...] = ()


class SelectionSpec(SpecPart):
    """How scores become weights; `settings` are sorted pairs."""

    name: str = "softmax"
    settings: tuple[tuple[str, float], ...] = ()


class AttentionSpec(SpecPart):
    heads: int
    head_dim: int
    kv_heads: int | None = None  # None: equal to `heads`
    pattern: Pattern = full
    scale: float | None = None  # None: 1 / sqrt(head_dim)
    bias: bool = True
    relative_position: RotarySpec | RelativeXLSpec | None = None
    score: ScoreSpec = ScoreSpec()
    select: SelectionSpec = SelectionSpec()
    dropout: float = 0.0

    @property
    def has_fast_kernel(self) -> bool:
        """Whether the weights are the softmax of dot products, which the fast kernels compute."""
        is_dot_product = self.score in (ScoreSpec(), ScoreSpec(name="dot"))
        return is_dot_product and self.select == SelectionSpec()

    def list_replaced_parts(self) -> list[str]:
        """Return the score and the selection if they are not scaled dot product and softmax."""
        score = f"the attention score {self.score.name}" * (self.score != ScoreSpec())
        select = f"the attention selection {self.select.name}" * (self.select != SelectionSpec())
        return [part for part in (score, select) if part]


class FeedForwardSpec(SpecPart):
    """down(activation(up(x))), or down(activation(gate(x)) * up(x)) if gated."""

    width: int
    activation: str = "gelu"
    is_gated: bool = False
    bias: bool = True
    dropout: float = 0.0


class MixtureOfExpertsSpec(SpecPart):
    """Switch routing: one expert per token, and at most `capacity` tokens of a row per expert."""

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
    norm_position: str = "pre"  # "pre" or "post": before or after each sublayer
    skip_first_norm: bool = False  # no norm before the attention (ModernBERT's first layer)
    dropout: float = 0.0
    attention_output_dropout: float | None = None  # None: the same as `dropout`


class LearnedPositions(SpecPart):
    count: int
    offset: int = 0
    padding_idx: int | None = None  # tokens with this id are not counted; their row is offset - 1


class SinusoidalPositions(SpecPart):
    """Layouts: "halves" (sines, then cosines), "pairs" (alternating), "ends" (halves, the last
    frequency is 1/10000)."""

    layout: str = "halves"
    offset: int = 0


class RelativeBucketsSpec(SpecPart):
    """T5's relative position bias: one learned bias per bucket of distances, one table per stack."""

    heads: int
    num_buckets: int = 32
    max_distance: int = 128
    is_bidirectional: bool = True


class AlibiSpec(SpecPart):
    heads: int


class PatchSpec(SpecPart):
    """An image as a sequence of square patches, after a class token if there is one."""

    image_size: int
    patch_size: int
    channels: int = 3
    class_token: bool = True
    bias: bool = False  # of the projection of a patch

    @property
    def num_tokens(self) -> int:
        return (self.image_size // self.patch_size) ** 2 + self.class_token

    @property
    def pixel_shape(self) -> tuple[str | int, ...]:
        """The shape of the pixel values of one image."""
        return (self.channels, self.image_size, self.image_size)


class ConvolutionSpec(SpecPart):
    """An image as the grid of features of a convolutional network, row by row.

    A stage per width; every stage but the first halves the sides of the grid. A class token may come
    first."""

    image_size: int
    channels: int = 3
    conv_widths: tuple[int, ...] = (64, 128, 256)
    norm_groups: int = 8
    class_token: bool = False

    @property
    def num_tokens(self) -> int:
        return (self.image_size // 2 ** (len(self.conv_widths) - 1)) ** 2 + self.class_token

    @property
    def pixel_shape(self) -> tuple[int, ...]:
        """The shape of the pixel values of one image."""
        return (self.channels, self.image_size, self.image_size)


class FrameSpec(SpecPart):
    """A clip as a sequence of frames: one vector per frame, of the features of a convolutional network.

    A stage per width, which halves the sides of the frame."""

    image_size: int
    channels: int = 3
    conv_widths: tuple[int, ...] = (32, 64, 128)
    norm_groups: int = 8

    @property
    def num_tokens(self) -> int:
        """0: as many as the clip has frames."""
        return 0

    @property
    def num_features(self) -> int:
        """The number of outputs of the last stage."""
        size = self.image_size
        for _ in self.conv_widths:
            size = (size + 1) // 2
        return size**2 * (self.conv_widths[-1] if self.conv_widths else self.channels)

    @property
    def pixel_shape(self) -> tuple[str | int, ...]:
        """The shape of the pixel values of one clip."""
        return ("T", self.channels, self.image_size, self.image_size)


class EmbeddingSpec(SpecPart):
    vocab_size: int
    width: int | None = None  # None: the width of the stack; otherwise, a projection follows
    padding_idx: int | None = None  # the embedding of this token has no gradient
    positions: LearnedPositions | SinusoidalPositions | None = None
    token_types: int | Literal["tokens"] = 0  # "tokens": token types use the token embedding (GPT)
    scale: float = 1.0
    scale_inputs_embeds: bool = False  # also scale `inputs_embeds`
    norm: NormSpec | None = None
    dropout: float = 0.0
    # The stack reads pixel values, not tokens.
    patches: PatchSpec | ConvolutionSpec | FrameSpec | None = None
    query_stream: bool = False  # learned embedding of XLNet's query stream
    cutoffs: tuple[int, ...] | None = None  # adaptive embedding: rare tokens have narrower tables
    div_val: int = 1


class SegmentRecurrence(SpecPart):
    """The next segment attends to the hidden states of the last `memory_length` tokens."""

    memory_length: int | None
    reuse_length: int | None = None  # keep only the first states of each segment
    starts_with_zeros: bool = False  # the first segment attends to a memory of zeros


class StackSpec(SpecPart):
    """An encoder or a decoder."""

    width: int
    layers: tuple[LayerSpec, ...]
    embedding: EmbeddingSpec
    layer_order: tuple[int, ...] | None = None  # index of the layer at each depth; None: in order
    final_norm: NormSpec | None = None
    position_bias: RelativeBucketsSpec | AlibiSpec | None = None
    recurrence: SegmentRecurrence | None = None
    dropout: float = 0.0  # after the last layer

    @property
    def depth(self) -> int:
        """The number of layers that run."""
        return len(self.layer_order or self.layers)

    @property
    def input_width(self) -> int:
        """The width of the embeddings that the first layer reads."""
        return self.width

    @property
    def output_width(self) -> int:
        """The width of `last_hidden_state`."""
        return self.width

    @property
    def max_positions(self) -> int | None:
        """The number of learned positions; None means no limit."""
        table = self.embedding.positions
        return table.count - table.offset if isinstance(table, LearnedPositions) else None


class RecurrentAttentionSpec(SpecPart):
    """Attention of a recurrent decoder to the states of its encoder.

    `place` is "before": the query is the last state, and the context enters the first layer (Bahdanau),
    or "after": the query is the new state, and the context enters the output layer (Luong)."""

    score: ScoreSpec = ScoreSpec(name="additive")
    score_width: int | None = None  # hidden layer of the score; None: the width of a key
    select: SelectionSpec = SelectionSpec()
    place: Literal["before", "after"] = "before"
    pattern: Pattern = full  # of target and source positions; Local(window): Luong's local-m
    gate: bool = False  # the context is multiplied by a sigmoid of the query (Xu et al. 2015)


class RecurrentSourceSpec(SpecPart):
    """What a recurrent decoder reads of its encoder.

    `initial_state` is "copy": each layer starts from the final state of the encoder's layer;
    "projection": from tanh(W s), where s is the final state of the encoder's last layer, backward if
    it is bidirectional; "mean": from tanh(W m), where m is the mean of the encoder's states."""

    width: int  # of the encoder's states
    state_width: int  # of a final state, in one direction
    initial_state: Literal["copy", "projection", "mean"] = "copy"
    summary_width: int | None = None  # tanh(V s), a fixed vector in every step and the output (Cho)
    attention: RecurrentAttentionSpec | None = None

    @property
    def context_width(self) -> int:
        """The width of the context in every step: that of the attention or the fixed vector, or 0."""
        return self.width if self.attention else self.summary_width or 0


class RecurrentOutputSpec(SpecPart):
    """Output layer of a recurrent decoder: activation(W [state; embedding; context])."""

    width: int
    parts: tuple[Literal["state", "embedding", "context"], ...] = ("state", "embedding", "context")
    activation: str = "maxout"  # "maxout": the larger of two, so that W has 2 * width rows
    bias: bool = True


class RecurrentStackSpec(SpecPart):
    """A recurrent encoder or decoder.

    Cells: "rnn" (tanh), "gru", "lstm", "lstmn" (an LSTM that attends to its own past states).
    A "backward" encoder runs from the last token to the first: the reversed source of Sutskever et al."""

    width: int
    cell: Literal["rnn", "gru", "lstm", "lstmn"]
    depth: int
    embedding: EmbeddingSpec
    embedding_width: int | None = None  # None: the width of the stack
    direction: Literal["forward", "backward", "bidirectional"] = "forward"
    dropout: float = 0.0  # between layers and after the last
    source: RecurrentSourceSpec | None = None
    output: RecurrentOutputSpec | None = None
    input_feeding: bool = False  # the last output enters the first layer (Luong)

    @property
    def input_width(self) -> int:
        """The width of the embeddings that the first layer reads."""
        return self.embedding_width or self.width

    @property
    def output_width(self) -> int:
        """The width of `last_hidden_state`."""
        directions = 2 if self.direction == "bidirectional" else 1
        return self.output.width if self.output else directions * self.width

    @property
    def feed_width(self) -> int:
        """The width of what enters the first layer beside the embedding."""
        if self.input_feeding:
            return self.output_width
        if self.source is None or (
            self.source.attention and self.source.attention.place == "after"
        ):
            return 0
        return self.source.context_width

    @property
    def layers(self) -> tuple[LayerSpec, ...]:
        """Attention layers: none."""
        return ()

    @property
    def recurrence(self) -> SegmentRecurrence | None:
        """Segment recurrence: None. The recurrence of this stack is that of its cells."""
        return None

    @property
    def max_positions(self) -> int | None:
        """None: there is no limit."""
        return None


AnyStackSpec = StackSpec | RecurrentStackSpec


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
