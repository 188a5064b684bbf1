"""What a model is: frozen dataclasses, and the patterns that say who sees whom. Knows no tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, dataclass_transform

# A position is an int, a numpy array or a tensor: whatever has comparison and arithmetic.
Position = Any


@dataclass_transform(frozen_default=True)
class Pattern:
    """A rule on two positions: may the query at `i` see the key at `j`? A frozen dataclass, every one."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)

    def __call__(self, i: Position, j: Position) -> Any:
        raise TypeError(f"{type(self).__name__} is no rule")

    def __and__(self, other: Pattern) -> Pattern:
        return Both(self, other)

    def __or__(self, other: Pattern) -> Pattern:
        return Either(self, other)

    def given(self, memory: int) -> Pattern:
        """The rule once the length of the memory before this segment is known."""
        return self


class Everyone(Pattern):
    def __call__(self, i: Position, j: Position) -> Any:
        return (i == i) & (j == j)


class Causal(Pattern):
    def __call__(self, i: Position, j: Position) -> Any:
        return j <= i


class Local(Pattern):
    """Both sides, no further than `width` away."""

    width: int

    def __call__(self, i: Position, j: Position) -> Any:
        return (i - j <= self.width) & (j - i <= self.width)


class Banded(Pattern):
    """The last `width` positions, oneself included."""

    width: int

    def __call__(self, i: Position, j: Position) -> Any:
        return (j <= i) & (i - j < self.width)


class Strided(Pattern):
    """Every `stride`-th position back (Sparse Transformer, section 4.3)."""

    stride: int

    def __call__(self, i: Position, j: Position) -> Any:
        return (j <= i) & ((i - j) % self.stride == 0)


class Chunk(Pattern):
    """One's own chunk of `stride` positions, up to oneself (the first head of the fixed pattern)."""

    stride: int

    def __call__(self, i: Position, j: Position) -> Any:
        return (j <= i) & (i // self.stride == j // self.stride)


class Summary(Pattern):
    """The last `cells` positions of every chunk so far (the second head of the fixed pattern)."""

    stride: int
    cells: int

    def __call__(self, i: Position, j: Position) -> Any:
        return (j <= i) & (j % self.stride >= self.stride - self.cells)


class Prefix(Pattern):
    """The first `length` positions see and are seen by all."""

    length: int

    def __call__(self, i: Position, j: Position) -> Any:
        return (j <= i) | (j < self.length)


class Recent(Pattern):
    """No further back than the memory is long (XLNet's `same_length`)."""

    def given(self, memory: int) -> Pattern:
        return Banded(memory + 1)


class Both(Pattern):
    one: Pattern
    two: Pattern

    def __call__(self, i: Position, j: Position) -> Any:
        return self.one(i, j) & self.two(i, j)


class Either(Pattern):
    one: Pattern
    two: Pattern

    def __call__(self, i: Position, j: Position) -> Any:
        return self.one(i, j) | self.two(i, j)


class ByHead(Pattern):
    """One rule a head."""

    rules: tuple[Pattern, ...]


everyone, causal = Everyone(), Causal()


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Part:
    """A piece of a spec: every one is a frozen dataclass, its fields given by name."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)


class Norm(Part):
    kind: Literal["layer", "rms"] = "layer"
    eps: float = 1e-5
    bias: bool = True


class Rotary(Part):
    """Positions turn the queries and keys. `scaling` is Llama's rope_parameters, sorted as pairs."""

    base: float = 10000.0
    scaling: tuple[tuple[str, Any], ...] = ()


class XL(Part):
    """Relative positions as Transformer-XL and XLNet learn them; `segments` adds XLNet's segment term."""

    width: int
    clamp: int = -1
    segments: bool = False
    shared: bool = False  # one pair of biases for all layers
    drop: float = 0.0


class Attend(Part):
    heads: int
    head_dim: int
    kv_heads: int | None = None  # None: heads
    pattern: Pattern = everyone
    scale: float | None = None  # None: 1/sqrt(head_dim)
    bias: bool = True
    relate: Rotary | XL | None = None
    drop: float = 0.0


class Dense(Part):
    """down(act(up(x))), or down(act(gate(x)) * up(x))."""

    width: int
    act: str = "gelu"
    gated: bool = False
    bias: bool = True
    drop: float = 0.0


class Experts(Part):
    """Switch: every token goes to one of `count` feeds, no more than `capacity` tokens of a row to each."""

    each: Dense
    count: int
    capacity: int
    router_bias: bool = False
    jitter: float = 0.0


class Layer(Part):
    attend: Attend
    feed: Dense | Experts
    cross: Attend | None = None
    norm: Norm
    place: str = "before"  # or "after" every step
    bare: bool = False  # no norm before its attention (ModernBERT's first layer)
    drop: float = 0.0
    attend_drop: float | None = None  # after attention; None: as after the feed


class Learned(Part):
    count: int
    offset: int = 0


class Sinusoid(Part):
    layout: str = "halves"  # sines, then cosines; "pairs": in turn; "ends": halves, the last rate 1/10000
    offset: int = 0


class Buckets(Part):
    """T5: a learned bias for each bucket of distances, one table a stack."""

    heads: int
    count: int = 32
    reach: int = 128
    both_ways: bool = True


class Alibi(Part):
    heads: int


class Patches(Part):
    """An image as a row: a class token, then square patches."""

    image: int
    size: int
    channels: int = 3


class Embed(Part):
    vocab: int
    width: int | None = None  # given: narrower or wider than the stack, with a projection after it
    pad: int | None = None  # a token that learns nothing from being looked up
    positions: Learned | Sinusoid | None = None
    types: int | Literal["tokens"] = 0  # "tokens": types are looked up among the tokens (GPT)
    scale: float = 1.0
    scales_given: bool = False  # vectors given in place of ids are scaled too
    norm: Norm | None = None
    drop: float = 0.0
    patches: Patches | None = None
    query: bool = False  # XLNet's vector that stands for an unseen token
    cutoffs: tuple[int, ...] | None = None  # adaptive: rarer words in narrower tables
    divide: int = 1


class Recall(Part):
    """Segment recurrence: the states of the last `length` tokens, before every layer, are seen again."""

    length: int | None
    reuse: int | None = None  # of a segment, only the first `reuse` states are kept
    zeros: bool = False  # the first segment sees a memory of zeros


class Stack(Part):
    width: int
    layers: tuple[Layer, ...]
    embed: Embed
    order: tuple[int, ...] | None = None  # which stored layer runs at each depth; None: each once
    final: Norm | None = None
    distance: Buckets | Alibi | None = None
    recall: Recall | None = None
    drop: float = 0.0  # after the last layer


class Head(Part):
    """take states -> dense, act, norm -> project: every head, and BERT's pooler, is one of these."""

    name: str
    out: tuple[str, ...] = ("logits",)
    take: str = "all"  # all first last mean rest choice, end (see `end`), or an earlier output
    end: int | None = None
    dense: int | None = None
    dense_bias: bool = True
    act: str = "linear"
    norm: Norm | None = None
    size: int | None = None  # None: no projection
    bias: bool | Literal["fixed"] = True  # "fixed": kept and added, never trained (BART's final_logits_bias)
    tied: bool = False  # the projection is the token table
    scale: float = 1.0
    drop: float = 0.0
    mid_drop: float = 0.0
    flat: bool = False  # one number a state: (B, T, 1) -> (B, T)


class AdaptiveHead(Part):
    """Transformer-XL's softmax: frequent words and the rarer bands first, then the words of each band."""

    name: str
    tied: bool = True
    tied_projects: tuple[bool, ...] = ()


class BeamSpan(Part):
    """XLNet's answer span: for each of the best `starts` where it would end, and whether there is one."""

    name: str
    starts: int
    eps: float


class Shift(NamedTuple):
    """One to the right: `first` stands in front, or the last token wraps around to it."""

    first: int
    how: str = "start"


class Spec(Part):
    family: str
    encoder: Stack | None = None
    decoder: Stack | None = None
    heads: tuple[Head | AdaptiveHead | BeamSpan, ...] = ()
    shared: bool = True  # the decoder looks tokens up in the encoder's table
    shift: Shift | None = None  # makes the decoder's input out of ids
    init: tuple[tuple[str, float | Literal["xavier"]], ...]  # name -> deviation; the first match
    init_cut: float | None = None  # no value further off than so many deviations
    norm_std: float = 0.0  # norms start so far around one

    @property
    def choices(self) -> bool:
        """Are ids (B, C, T)?"""
        return any(isinstance(head, Head) and "choice" in head.out for head in self.heads)


class Two(Part):
    """Two towers and the temperature between them (CLIP); one alone is its half."""

    family: str
    text: Spec | None = None
    image: Spec | None = None
    temperature: float | None = None


def per_head(width: int, heads: int) -> int:
    """The size of one head, where heads share the width."""
    if width % heads:
        raise ValueError(f"width {width} is no multiple of {heads} heads: change one of the two")
    return width // heads


def patterned(spec: Spec, patterns: tuple[Pattern, ...]) -> Spec:
    """The same decoder, its layers taking these patterns in turn."""
    assert spec.decoder is not None
    turns = [(layer, patterns[i % len(patterns)]) for i, layer in enumerate(spec.decoder.layers)]
    layers = tuple(replace(layer, attend=replace(layer.attend, pattern=pattern)) for layer, pattern in turns)
    return replace(spec, decoder=replace(spec.decoder, layers=layers))
