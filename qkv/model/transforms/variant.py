"""Variant: parts of a model that differ from those of its family. A change of the family's spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar, overload

from qkv.families.family import lookup
from qkv.model.transforms.positions import replace_positions
from qkv.nn.scores import SCORES
from qkv.nn.selections import SELECTIONS
from qkv.spec import (
    AttentionSpec,
    DualSpec,
    ScoreSpec,
    SelectionSpec,
    Spec,
    StackSpec,
)
from qkv.validate import shorten_repr

# The name of a score or selection, or a table of its name and settings.
AttentionFunction = str | Mapping[str, Any]
FunctionSpec = TypeVar("FunctionSpec", ScoreSpec, SelectionSpec)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Position embeddings, score and selection of attention; None: those of the family."""

    position_embedding_type: str | None = None
    attention_score: AttentionFunction | None = None
    attention_select: AttentionFunction | None = None

    def __post_init__(self) -> None:
        if self.attention_score == ScoreSpec().name:
            object.__setattr__(self, "attention_score", None)
        if self.attention_select == SelectionSpec().name:
            object.__setattr__(self, "attention_select", None)

    def to_config(self) -> dict[str, Any]:
        """Return the parts that differ from the family, as keys of config.json."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Variant:
        """Return the variant of a config.json in qkv's format."""
        parts = {name: config.get(name) for name in VARIANT_KEYS}
        # Hugging Face's word for the positions of the family, in a config.json that was converted.
        is_default = parts["position_embedding_type"] == "absolute"
        return cls(**(parts | {"position_embedding_type": None} if is_default else parts))

    def describe(self) -> str:
        """Return the parts as `name=value, ...`; empty for the family itself."""
        return ", ".join(f"{name}={value!r}" for name, value in self.to_config().items())

    @overload
    def apply(self, spec: Spec) -> Spec: ...
    @overload
    def apply(self, spec: DualSpec) -> DualSpec: ...
    def apply(self, spec: Spec | DualSpec) -> Spec | DualSpec:
        """Return the spec with the parts of the variant."""
        if self.position_embedding_type is not None:
            spec = replace_positions(spec, self.position_embedding_type)
        score = parse_function("attention_score", self.attention_score, SCORES, ScoreSpec)
        select = parse_function(
            "attention_select", self.attention_select, SELECTIONS, SelectionSpec
        )
        if score == ScoreSpec() and select == SelectionSpec():
            return spec
        return replace_attention(spec, score, select)


VARIANT_KEYS = tuple(Variant.__dataclass_fields__)
FAMILY_VARIANT = Variant()


def parse_function(
    key: str,
    value: AttentionFunction | None,
    known: Mapping[str, object],
    spec_class: type[FunctionSpec],
) -> FunctionSpec:
    """Return the spec of a score or a selection, given by its name or a table of its settings."""
    if value is None:
        return spec_class()
    if isinstance(value, str):
        lookup(key, value, known)
        return spec_class(name=value)
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise ValueError(
            f"{key} is {shorten_repr(value)}, expected a name, such as {spec_class().name!r}, "
            "or a table with the key `name` and settings"
        )
    lookup(key, value["name"], known)
    settings = sorted((name, each) for name, each in value.items() if name != "name")
    return spec_class(name=value["name"], settings=tuple(settings))


@overload
def replace_attention(spec: Spec, score: ScoreSpec, select: SelectionSpec) -> Spec: ...
@overload
def replace_attention(spec: DualSpec, score: ScoreSpec, select: SelectionSpec) -> DualSpec: ...
def replace_attention(
    spec: Spec | DualSpec, score: ScoreSpec, select: SelectionSpec
) -> Spec | DualSpec:
    """Return the spec with this score and selection in every attention."""
    if isinstance(spec, DualSpec):
        return replace(
            spec,
            text=spec.text and replace_attention(spec.text, score, select),
            image=spec.image and replace_attention(spec.image, score, select),
        )
    return replace(
        spec,
        encoder=spec.encoder and replace_stack_attention(spec.encoder, score, select),
        decoder=spec.decoder and replace_stack_attention(spec.decoder, score, select),
    )


def replace_stack_attention(stack: StackSpec, score: ScoreSpec, select: SelectionSpec) -> StackSpec:
    def change(attention: AttentionSpec) -> AttentionSpec:
        return replace(attention, score=score, select=select)

    layers = tuple(
        replace(
            layer,
            attention=change(layer.attention),
            cross_attention=layer.cross_attention and change(layer.cross_attention),
        )
        for layer in stack.layers
    )
    return replace(stack, layers=layers)
