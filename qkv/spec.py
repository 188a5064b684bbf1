"""What a model is: frozen dataclasses, and the patterns that say who sees whom. Knows no tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal

# A position is an int, a numpy array or a tensor: whatever has comparison and arithmetic.
Position = Any


class Pattern:
    """A rule on two positions: may the query at `i` see the key at `j`?"""

    def __call__(self, i: Position, j: Position) -> Any:
        raise TypeError(f"{type(self).__name__} is no rule")

    def __and__(self, other: Pattern) -> Pattern:
        return Both(self, other)

    def __or__(self, other: Pattern) -> Pattern:
        return Either(self, other)

    def given(self, memory: int) -> Pattern:
        """The rule once the length of the memory before this segment is known."""
        return self


@dataclass(frozen=True)
class Everyone(Pattern):
    def __call__(self, i: Position, j: Position) -> Any:
        return (i == i) & (j == j)


@dataclass(frozen=True)
class Causal(Pattern):
    def __call__(self, i: Position, j: Position) -> Any:
        return j <= i


@dataclass(frozen=True)
class Local(Pattern):
    """Both sides, no further than `width` away."""

    width: int

    def __call__(self, i: Position, j: Position) -> Any:
        return (i - j <= self.width) & (j - i <= self.width)


@dataclass(frozen=True)
class Banded(Pattern):
    """The last `width` positions, oneself included."""

    width: int

    def __call__(self, i: Position, j: Position) -> Any:
        return (j <= i) & (i - j < self.width)


@dataclass(frozen=True)
class Strided(Pattern):
    """Every `stride`-th position back (Sparse Transformer, section 4.3)."""

    stride: int

    def __call__(self, i: Position, j: Position) -> Any:
        return (j <= i) & ((i - j) % self.stride == 0)


@dataclass(frozen=True)
class Chunk(Pattern):
    """One's own chunk of `stride` positions, up to oneself (the first head of the fixed pattern)."""

    stride: int

    def __call__(self, i: Position, j: Position) -> Any:
        return (j <= i) & (i // self.stride == j // self.stride)


@dataclass(frozen=True)
class Summary(Pattern):
    """The last `cells` positions of every chunk so far (the second head of the fixed pattern)."""

    stride: int
    cells: int

    def __call__(self, i: Position, j: Position) -> Any:
        return (j <= i) & (j % self.stride >= self.stride - self.cells)


@dataclass(frozen=True)
class Prefix(Pattern):
    """The first `length` positions see and are seen by all."""

    length: int

    def __call__(self, i: Position, j: Position) -> Any:
        return (j <= i) | (j < self.length)


@dataclass(frozen=True)
class Recent(Pattern):
    """No further back than the memory is long (XLNet's `same_length`)."""

    def given(self, memory: int) -> Pattern:
        return Banded(memory + 1)


@dataclass(frozen=True)
class Both(Pattern):
    one: Pattern
    two: Pattern

    def __call__(self, i: Position, j: Position) -> Any:
        return self.one(i, j) & self.two(i, j)


@dataclass(frozen=True)
class Either(Pattern):
    one: Pattern
    two: Pattern

    def __call__(self, i: Position, j: Position) -> Any:
        return self.one(i, j) | self.two(i, j)


@dataclass(frozen=True)
class ByHead(Pattern):
    """One rule a head."""

    rules: tuple[Pattern, ...]


everyone, causal = Everyone(), Causal()


@dataclass(frozen=True, kw_only=True)
class Norm:
    kind: Literal["layer", "rms"] = "layer"
    eps: float = 1e-5
    bias: bool = True


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """Positions turn the queries and keys. `scaling` is Llama's rope_parameters, sorted as pairs."""

    base: float = 10000.0
    layout: Literal["halves", "pairs"] = "halves"
    scaling: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True)
class XL:
    """Relative positions as Transformer-XL and XLNet learn them; `segments` adds XLNet's same-segment term."""

    width: int
    clamp: int = -1
    segments: bool = False
    shared: bool = False  # one pair of biases for all layers
    drop: float = 0.0


Relate = Rotary | XL


@dataclass(frozen=True, kw_only=True)
class Attend:
    heads: int
    head_dim: int
    kv_heads: int | None = None  # None: heads
    pattern: Pattern = everyone
    scale: float | None = None  # None: 1/sqrt(head_dim)
    bias: bool = True
    out_bias: bool | None = None  # None: as bias
    relate: Relate | None = None
    drop: float = 0.0

    def __post_init__(self) -> None:
        positive(heads=self.heads, head_dim=self.head_dim, kv_heads=self.kv_heads or self.heads)
        if self.heads % (self.kv_heads or self.heads):
            raise ValueError(f"{self.heads} heads cannot share {self.kv_heads} key heads: expected a divisor of it")


@dataclass(frozen=True, kw_only=True)
class Dense:
    """down(act(up(x))), or down(act(gate(x)) * up(x))."""

    width: int
    act: str = "gelu"
    gated: bool = False
    bias: bool = True
    drop: float = 0.0

    def __post_init__(self) -> None:
        positive(feed=self.width)


@dataclass(frozen=True, kw_only=True)
class Experts:
    """Switch: every token goes to one of `count` feeds, no more than `capacity` tokens of a row to each."""

    each: Dense
    count: int
    capacity: int
    router_bias: bool = False
    jitter: float = 0.0

    def __post_init__(self) -> None:
        positive(experts=self.count, capacity=self.capacity)


@dataclass(frozen=True, kw_only=True)
class Layer:
    attend: Attend
    feed: Dense | Experts
    cross: Attend | None = None
    before: Norm | None = None
    after: Norm | None = None
    bare: bool = False  # no norm before its attention (ModernBERT's first layer)
    drop: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Learned:
    count: int
    offset: int = 0

    def __post_init__(self) -> None:
        positive(positions=self.count)


@dataclass(frozen=True, kw_only=True)
class Sinusoid:
    layout: str = "halves"  # all sines, then all cosines; "pairs": in turn; "ends": halves, the last rate 1/10000
    offset: int = 0


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """T5: a learned bias for each bucket of distances, one table a stack."""

    heads: int
    count: int = 32
    reach: int = 128
    both_ways: bool = True


@dataclass(frozen=True, kw_only=True)
class Alibi:
    heads: int


@dataclass(frozen=True, kw_only=True)
class Patches:
    """An image as a row: a class token, then square patches."""

    image: int
    size: int
    channels: int = 3

    def __post_init__(self) -> None:
        positive(image=self.image, patch=self.size, channels=self.channels)


@dataclass(frozen=True, kw_only=True)
class Embed:
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

    def __post_init__(self) -> None:
        positive(vocab=self.vocab, embedding=self.width or 1)


@dataclass(frozen=True, kw_only=True)
class Recall:
    """Segment recurrence: the states of the last `length` tokens, before every layer, are seen again."""

    length: int | None
    reuse: int | None = None  # of a segment, only the first `reuse` states are kept
    zeros: bool = False  # the first segment sees a memory of zeros

    def __post_init__(self) -> None:
        for name, value in (("length", self.length), ("reuse", self.reuse)):
            if value is not None and not 0 <= value <= LIMIT:
                raise ValueError(f"memory {name} {value!r}: expected a whole number from 0 to {LIMIT:,}")


@dataclass(frozen=True, kw_only=True)
class Stack:
    width: int
    layers: tuple[Layer, ...]
    embed: Embed
    order: tuple[int, ...] | None = None  # which stored layer runs at each depth; None: each once
    final: Norm | None = None
    distance: Buckets | Alibi | None = None
    recall: Recall | None = None
    drop: float = 0.0  # after the last layer

    def __post_init__(self) -> None:
        positive(width=self.width)


@dataclass(frozen=True, kw_only=True)
class Head:
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
    tied: Literal["", "encoder", "decoder"] = ""  # the projection is that stack's token table
    scale: float = 1.0
    drop: float = 0.0
    mid_drop: float = 0.0
    flat: bool = False  # one number a state: (B, T, 1) -> (B, T)


@dataclass(frozen=True, kw_only=True)
class AdaptiveHead:
    """Transformer-XL's softmax: frequent words and the rarer bands first, then the words of each band."""

    name: str
    embed: Embed
    tied: bool = True
    tied_projects: tuple[bool, ...] = ()


@dataclass(frozen=True, kw_only=True)
class BeamSpan:
    """XLNet's answer span: for each of the best `starts`, where it would end, and whether there is an answer."""

    name: str
    starts: int
    eps: float


@dataclass(frozen=True, kw_only=True)
class Spec:
    family: str
    encoder: Stack | None = None
    decoder: Stack | None = None
    heads: tuple[Head | AdaptiveHead | BeamSpan, ...] = ()
    shared: bool = True  # the decoder looks tokens up in the encoder's table
    choices: bool = False  # ids are (B, C, T)
    shift: tuple[int, Literal["start", "wrap"]] | None = None  # makes the decoder's input out of ids
    init: tuple[tuple[str, float | Literal["xavier"]], ...] = (("*", 0.02),)  # name -> deviation; the first match


@dataclass(frozen=True, kw_only=True)
class Two:
    """Two towers and the temperature between them (CLIP); one alone is its half."""

    family: str
    text: Spec | None = None
    image: Spec | None = None
    temperature: float | None = None


LIMIT = 1 << 28


def positive(**values: int) -> None:
    """Refuses a size that no model has before anything is allocated."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= LIMIT:
            raise ValueError(f"{name} {value!r}: expected a whole number from 1 to {LIMIT:,}")


def per_head(width: int, heads: int) -> int:
    """The size of one head, where heads share the width."""
    positive(width=width, heads=heads)
    if width % heads:
        raise ValueError(f"width {width} is no multiple of {heads} heads: change one of the two")
    return width // heads


def change(node: Any, edit: Callable[[Any], Any]) -> Any:
    """The same spec with `edit` applied to every dataclass in it, leaves first."""
    if isinstance(node, tuple):
        return tuple(change(item, edit) for item in node)
    if not is_dataclass(node) or isinstance(node, type):
        return node
    return edit(replace(node, **{f.name: change(getattr(node, f.name), edit) for f in fields(node)}))


def with_positions(spec: Any, kind: str) -> Any:
    """The same model with another way to tell positions apart, in every stack that reads a row of tokens."""
    kinds = ("none", "sinusoid", "learned", "t5", "alibi", "rotary", "xl")
    if kind not in kinds:
        raise ValueError(f"positions {kind!r}: expected one of {', '.join(kinds)}")

    def edit(node: Any) -> Any:
        if not isinstance(node, Stack) or node.embed.patches:
            return node
        table = node.embed.positions.count if isinstance(node.embed.positions, Learned) else 1024
        embedded = {"sinusoid": Sinusoid(), "learned": Learned(count=table)}.get(kind)
        relate = {"rotary": Rotary(), "xl": XL(width=node.width)}.get(kind)
        heads = node.layers[0].attend.heads
        both = isinstance(node.layers[0].attend.pattern, Everyone | Local)
        distance = {"t5": Buckets(heads=heads, both_ways=both), "alibi": Alibi(heads=heads)}.get(kind)
        layers = tuple(replace(layer, attend=replace(layer.attend, relate=relate)) for layer in node.layers)
        return replace(node, embed=replace(node.embed, positions=embedded), layers=layers, distance=distance)

    return change(spec, edit)
