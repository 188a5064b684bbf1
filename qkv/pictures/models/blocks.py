"""The blocks of a diagram, with their words: embeddings, sublayers, norms and heads of a Spec.

Knows no coordinates."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from qkv import spec
from qkv.pictures.models import patterns
from qkv.pictures.models.descriptions import (
    POOLING_DESCRIPTIONS,
    describe_attention,
    describe_feed_forward,
    describe_relative_positions,
)
from qkv.spec import AnyStackSpec, LayerSpec, NormSpec, Pattern, StackSpec


@dataclass(frozen=True)
class Block:
    """A box of a diagram: a kind, which has a color, a title and lines of details.

    The patterns are drawn as grids."""

    kind: str
    title: str
    details: tuple[str, ...] = ()
    patterns: tuple[Pattern, ...] = ()


class Sublayer(NamedTuple):
    """Attention, cross-attention or feed-forward, and the norm before it or after the sum."""

    block: Block
    pre_norm: Block | None
    post_norm: Block | None
    is_cross: bool


@dataclass(frozen=True)
class LayerGroup:
    """Layers with the same blocks, and their depths in the stack."""

    sublayers: tuple[Sublayer, ...]
    depths: tuple[int, ...]
    is_shared: bool  # the same parameters at every depth


class HeadBlock(NamedTuple):
    """A head, the names of its outputs, and the index of the head that it reads, if any."""

    block: Block
    outputs: tuple[str, ...]
    source: int | None


def list_input_blocks(stack: AnyStackSpec, is_shared: bool) -> list[Block]:
    """Return the embeddings that are added up; `is_shared`: the table is that of the encoder."""
    embedding = stack.embedding
    width = embedding.width or stack.input_width
    details = [f"{embedding.vocab_size:,} × {width:,}", *describe_scale(embedding.scale, width)]
    title = "Tokens"
    match embedding.patches:
        case spec.PatchSpec(patch_size=size, class_token=has_class_token):
            title = "Patches"
            details = [
                f"{size} × {size} pixels → {width:,}",
                *["and a class token"] * has_class_token,
            ]
        case spec.ConvolutionSpec(image_size=size, conv_widths=conv_widths):
            title = "Convolutions"
            details = [f"{size} × {size} pixels → {width:,}", f"{len(conv_widths)} stages"]
        case spec.FrameSpec(image_size=size, conv_widths=conv_widths):
            title = "Frames"
            details = [
                f"{size} × {size} pixels → {width:,}",
                f"{len(conv_widths)} convolutional stages",
            ]
    if embedding.cutoffs and embedding.div_val > 1:
        details.append("narrower for rare tokens")
    if is_shared:
        details.append("shared with the encoder")
    blocks = [Block("embedding", title, tuple(details))]
    match embedding.positions:
        case spec.LearnedPositions(count=count):
            blocks.append(Block("embedding", "Positions", (f"{count:,} × {width:,}", "learned")))
        case spec.SinusoidalPositions():
            blocks.append(Block("embedding", "Positions", ("sines and cosines",)))
    if embedding.token_types and embedding.token_types != "tokens":
        shape = f"{embedding.token_types:,} × {width:,}"
        blocks.append(Block("embedding", "Token types", (shape,)))
    return blocks


def describe_scale(scale: float, width: int) -> tuple[str, ...]:
    if scale == 1:
        return ()
    return (f"times √{width}" if math.isclose(scale, math.sqrt(width)) else f"times {scale:.4g}",)


def list_embedding_blocks(stack: AnyStackSpec) -> Iterator[Block]:
    """Yield the norm and the projection after the sum of the embeddings, if any."""
    if stack.embedding.norm:
        yield build_norm_block(stack.embedding.norm)
    if stack.embedding.width and not stack.embedding.cutoffs:
        yield Block("embedding", "Projection", (f"{stack.embedding.width:,} → {stack.width:,}",))


def build_norm_block(norm: NormSpec) -> Block:
    return Block("norm", "RMS norm" if norm.type == "rms" else "Layer norm")


def group_layers(stack: StackSpec) -> list[LayerGroup]:
    """Return the layers of a stack; those with the same blocks are one group."""
    order = stack.layer_order or range(len(stack.layers))
    depths: dict[tuple[Sublayer, ...], list[int]] = {}
    for depth, index in enumerate(order):
        depths.setdefault(tuple(list_sublayers(stack, stack.layers[index])), []).append(depth)
    return [
        LayerGroup(sublayers, tuple(group), len({order[depth] for depth in group}) < len(group))
        for sublayers, group in depths.items()
    ]


def list_sublayers(stack: StackSpec, layer: LayerSpec) -> Iterator[Sublayer]:
    norm = build_norm_block(layer.norm)
    pre_norm = norm if layer.norm_position == "pre" else None
    post_norm = norm if layer.norm_position == "post" else None
    attention = build_attention_block(stack, layer.attention)
    if layer.skip_first_norm:
        yield Sublayer(attention, None, None, is_cross=False)
    else:
        yield Sublayer(attention, pre_norm, post_norm, is_cross=False)
    if layer.cross_attention:
        details = (describe_attention(layer.cross_attention), "keys and values from the encoder")
        cross_attention = Block("attention", "Cross-attention", details)
        yield Sublayer(cross_attention, pre_norm, post_norm, is_cross=True)
    feed_forward = build_feed_forward_block(stack.width, layer.feed_forward)
    yield Sublayer(feed_forward, pre_norm, post_norm, is_cross=False)


def build_attention_block(stack: StackSpec, attention: spec.AttentionSpec) -> Block:
    details = [
        *describe_attention(attention).split(", "),
        patterns.describe_pattern(attention.pattern),
    ]
    if stack.recurrence and stack.recurrence.memory_length:
        details[-1] += f", and to a memory of {stack.recurrence.memory_length:,} tokens"
    if not isinstance(attention.relative_position, spec.RotarySpec):
        details += describe_relative_positions(stack)
    distinct_patterns = tuple(patterns.group_heads_by_pattern(attention.pattern))
    return Block("attention", "Self-attention", tuple(details), distinct_patterns)


def build_feed_forward_block(
    width: int, feed_forward: spec.FeedForwardSpec | spec.MixtureOfExpertsSpec
) -> Block:
    expert, title = feed_forward, "Feed-forward"
    if isinstance(feed_forward, spec.MixtureOfExpertsSpec):
        expert, title = feed_forward.expert, "Mixture of experts"
    assert isinstance(expert, spec.FeedForwardSpec)
    widths = f"{width:,} → {expert.width:,} → {width:,}"
    return Block("feed-forward", title, (f"{widths}, {describe_feed_forward(feed_forward)}",))


def list_head_blocks(model_spec: spec.Spec) -> list[HeadBlock]:
    """Return the heads; a head may read an output of an earlier one."""
    heads: list[HeadBlock] = []
    for head in model_spec.heads:
        name = head.name.replace("_", " ")
        match head:
            case spec.AdaptiveSoftmaxSpec():
                details: tuple[str, ...] = ("adaptive softmax", *describe_tie(head.tie_embeddings))
                heads.append(HeadBlock(Block("head", f"Head: {name}", details), ("logits",), None))
            case spec.SpanBeamSpec():
                details = (f"ends for each of the best {head.num_starts} starts",)
                outputs = ("start_logits", "end_logits")
                heads.append(HeadBlock(Block("head", f"Head: {name}", details), outputs, None))
            case spec.HeadSpec():
                sources = (i for i, other in enumerate(heads) if head.pooling in other.outputs)
                block = Block("head", f"Head: {name}", tuple(describe_head_steps(head)))
                heads.append(HeadBlock(block, head.outputs, next(sources, None)))
    return heads


def describe_head_steps(head: spec.HeadSpec) -> Iterator[str]:
    """Yield what a head does: pooling, dense layer, activation, norm and projection."""
    if head.pooling != "none" and head.pooling in POOLING_DESCRIPTIONS:
        yield POOLING_DESCRIPTIONS[head.pooling]
    steps = [f"dense {head.dense_width:,}"] if head.dense_width else []
    steps += [head.activation] if head.activation != "linear" else []
    steps += [build_norm_block(head.norm).title.lower()] if head.norm else []
    if steps:
        yield ", ".join(steps)
    if head.out_features:
        yield f"projection to {head.out_features:,}"
    yield from describe_tie(head.tie_embeddings)


def describe_tie(tie_embeddings: bool) -> tuple[str, ...]:
    return ("tied to the token embedding",) if tie_embeddings else ()
