"""Replacement of a model's position embeddings: a change of its spec."""

from dataclasses import replace
from typing import overload

from qkv.families.family import lookup
from qkv.spec import (
    AlibiSpec,
    AnyStackSpec,
    DualSpec,
    Full,
    LearnedPositions,
    Local,
    RecurrentStackSpec,
    RelativeBucketsSpec,
    RelativeXLSpec,
    RotarySpec,
    SinusoidalPositions,
    Spec,
    StackSpec,
)

POSITION_EMBEDDING_TYPES = ("none", "sinusoid", "learned", "t5", "alibi", "rotary", "xl")


@overload
def replace_positions(spec: Spec, position_embedding_type: str) -> Spec: ...
@overload
def replace_positions(spec: DualSpec, position_embedding_type: str) -> DualSpec: ...
def replace_positions(spec: Spec | DualSpec, position_embedding_type: str) -> Spec | DualSpec:
    """Return the spec with other position embeddings in every stack that reads tokens."""
    lookup(
        "position_embedding_type", position_embedding_type, dict.fromkeys(POSITION_EMBEDDING_TYPES)
    )
    if isinstance(spec, DualSpec):
        if spec.text is None:
            raise ValueError(
                f"position_embedding_type {position_embedding_type!r} in {spec.family}: "
                "expected a text tower; the positions of images cannot be replaced"
            )
        return replace(spec, text=replace_positions(spec.text, position_embedding_type))
    encoder = spec.encoder and replace_stack_positions(
        spec.encoder, position_embedding_type, spec.family
    )
    decoder = spec.decoder and replace_stack_positions(
        spec.decoder, position_embedding_type, spec.family
    )
    return replace(spec, encoder=encoder, decoder=decoder)


def replace_stack_positions(
    stack: AnyStackSpec, position_embedding_type: str, family: str
) -> StackSpec:
    """Return the stack with other position embeddings."""
    if isinstance(stack, RecurrentStackSpec):
        raise ValueError(
            f"position_embedding_type {position_embedding_type!r} in {family}: "
            "a recurrent model reads tokens in order and has no position embeddings"
        )
    if stack.recurrence:
        raise ValueError(
            f"position_embedding_type {position_embedding_type!r} in {family}: "
            "segment recurrence needs the positions of the family"
        )
    attention = stack.layers[0].attention
    if position_embedding_type == "rotary" and attention.head_dim % 2:
        raise ValueError(
            f"position_embedding_type 'rotary' with heads of size {attention.head_dim}: expected an even size"
        )
    old_positions = stack.embedding.positions
    max_positions = old_positions.count if isinstance(old_positions, LearnedPositions) else 1024
    absolute: dict[str, LearnedPositions | SinusoidalPositions] = {
        "sinusoid": SinusoidalPositions(),
        "learned": LearnedPositions(count=max_positions),
    }
    relative: dict[str, RotarySpec | RelativeXLSpec] = {
        "rotary": RotarySpec(),
        "xl": RelativeXLSpec(width=stack.width),
    }
    is_bidirectional = isinstance(attention.pattern, Full | Local)
    biases: dict[str, RelativeBucketsSpec | AlibiSpec] = {
        "t5": RelativeBucketsSpec(heads=attention.heads, is_bidirectional=is_bidirectional),
        "alibi": AlibiSpec(heads=attention.heads),
    }
    relative_position = relative.get(position_embedding_type)
    layers = tuple(
        replace(layer, attention=replace(layer.attention, relative_position=relative_position))
        for layer in stack.layers
    )
    return replace(
        stack,
        embedding=replace(stack.embedding, positions=absolute.get(position_embedding_type)),
        layers=layers,
        position_bias=biases.get(position_embedding_type),
    )
