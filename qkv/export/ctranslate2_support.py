"""Which parts of a Spec CTranslate2's format cannot hold, by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from qkv.model.foreign.ctranslate2_spec import CTRANSLATE2_ACTIVATIONS, list_stacks
from qkv.spec import (
    DualSpec,
    FeedForwardSpec,
    HeadSpec,
    LayerSpec,
    NormSpec,
    RecurrentStackSpec,
    RelativeBucketsSpec,
    RotarySpec,
    Spec,
    StackSpec,
    causal,
    full,
)


def find_unsupported_parts(spec: Spec | DualSpec) -> list[str]:
    """Return the parts of a Spec that CTranslate2's format cannot hold."""
    if isinstance(spec, DualSpec):
        return ["two towers"]
    if any(isinstance(stack, RecurrentStackSpec) for stack in (spec.encoder, spec.decoder)):
        return ["recurrent layers"]
    parts: dict[str, None] = {}
    for name, stack in list_stacks(spec).items():
        parts |= dict.fromkeys(_find_unsupported_in_stack(spec, name, stack))
    parts |= dict.fromkeys(_find_unsupported_heads(spec))
    norms = set(iter_norms(spec))
    if len(norms) > 1:
        parts[f"norms with different settings ({_format_norms(norms)})"] = None
    if any(norm.type == "layer" and not norm.bias for norm in norms):
        parts["layer norms without bias"] = None
    kinds = {
        layer.feed_forward.is_gated
        for stack in list_stacks(spec).values()
        for layer in stack.layers
        if isinstance(layer.feed_forward, FeedForwardSpec)
    }
    if len(kinds) > 1:
        parts["feed-forward layers of which some are gated"] = None
    return list(parts)


def _format_norms(norms: set[NormSpec]) -> str:
    return ", ".join(sorted(f"{norm.type}, eps {norm.eps:g}" for norm in norms))


def _find_unsupported_in_stack(spec: Spec, name: str, stack: StackSpec) -> Iterator[str]:
    embedding = stack.embedding
    if stack.layer_order is not None:
        yield "layers that share their weights"
    if stack.recurrence is not None:
        yield "segment recurrence"
    if embedding.cutoffs is not None or embedding.patches is not None:
        yield "an adaptive or patch embedding"
    elif embedding.width is not None:
        yield f"an embedding width of {embedding.width} in a model of width {stack.width}"
    if name == "decoder" and isinstance(embedding.token_types, int) and embedding.token_types:
        yield "token types in a decoder"
    if stack.position_bias is not None and not isinstance(stack.position_bias, RelativeBucketsSpec):
        yield "ALiBi"
    layers = dict.fromkeys(_without_scale(layer) for layer in stack.layers)
    parts = [part for layer in layers for part in _find_unsupported_in_layer(spec, name, layer)]
    yield from parts or [f"{name} layers that differ"] * (len(layers) > 1)


def _without_scale(layer: LayerSpec) -> LayerSpec:
    """Return a layer without the attention scales, which may differ."""
    cross_attention = layer.cross_attention
    return replace(
        layer,
        attention=replace(layer.attention, scale=None),
        cross_attention=cross_attention and replace(cross_attention, scale=None),
    )


def _find_unsupported_in_layer(spec: Spec, name: str, layer: LayerSpec) -> Iterator[str]:
    attention = layer.attention
    if not isinstance(layer.feed_forward, FeedForwardSpec):
        yield "a mixture of experts"
    elif layer.feed_forward.activation not in CTRANSLATE2_ACTIVATIONS:
        yield f"the activation {layer.feed_forward.activation}"
    yield from attention.list_replaced_parts()
    if attention.pattern != (causal if name == "decoder" else full):
        yield f"the attention pattern {attention.pattern} in the {name}"
    has_cross_attention = layer.cross_attention is not None
    if has_cross_attention != (name == "decoder" and spec.encoder is not None):
        yield f"cross-attention in a model without {'an encoder' if spec.decoder else 'a decoder'}"
    if layer.skip_first_norm:
        yield "a first layer without norm"
    position = attention.relative_position
    if isinstance(position, RotarySpec):
        rope_type = dict(position.scaling).get("rope_type", "default")
        if rope_type not in ("default", "linear"):
            yield f"rotary positions of the type {rope_type}"
    elif position is not None:
        yield "the relative positions of Transformer-XL"


def _find_unsupported_heads(spec: Spec) -> Iterator[str]:
    if spec.decoder is None:
        for head in spec.heads:
            if head.name != "pooler":
                yield f"the head {head.name}"
        return
    heads = [head for head in spec.heads if not _is_plain_lm_head(head)]
    yield from (f"the head {head.name}" for head in heads)
    if not spec.heads:
        yield "a decoder without the head lm"


def _is_plain_lm_head(head: object) -> bool:
    """Return whether a head is a projection to the vocabulary."""
    return isinstance(head, HeadSpec) and head.name == "lm" and head.dense_width is None


def iter_norms(spec: Spec) -> Iterator[NormSpec]:
    """Yield the norms of all stacks."""
    for stack in list_stacks(spec).values():
        norms = [stack.embedding.norm, stack.final_norm, *(layer.norm for layer in stack.layers)]
        yield from (norm for norm in norms if norm is not None)
