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
    VARIANT_KEYS,
    AnyStackSpec,
    AttentionSpec,
    DualSpec,
    Local,
    RecurrentStackSpec,
    ScoreSpec,
    SelectionSpec,
    Spec,
    full,
)
from qkv.validate import check_number, shorten_repr

# The name of a score or selection, or a table of its name and settings.
AttentionFunction = str | Mapping[str, Any]
FunctionSpec = TypeVar("FunctionSpec", ScoreSpec, SelectionSpec)
AttentionParts = Mapping[str, ScoreSpec | SelectionSpec]  # "score" and "select", what is replaced
LOCAL_M = "local-m"  # monotonic local attention of Luong et al. 2015
DEFAULT_WINDOW = 10


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Position embeddings, score and selection of attention; None: those of the family."""

    position_embedding_type: str | None = None
    attention_score: AttentionFunction | None = None
    attention_select: AttentionFunction | None = None

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

    def without_parts_of(self, spec: Spec | DualSpec) -> Variant:
        """Return the variant without a score and selection that the spec of the family has itself."""
        names = ("attention_score", "attention_select")
        parts = {name: Variant(**{name: getattr(self, name)}) for name in names}
        return replace(
            self, **{name: None for name, part in parts.items() if part.apply(spec) == spec}
        )

    @overload
    def apply(self, spec: Spec) -> Spec: ...
    @overload
    def apply(self, spec: DualSpec) -> DualSpec: ...
    def apply(self, spec: Spec | DualSpec) -> Spec | DualSpec:
        """Return the spec with the parts of the variant."""
        if self.position_embedding_type is not None:
            spec = replace_positions(spec, self.position_embedding_type)
        parts: dict[str, ScoreSpec | SelectionSpec] = {}
        if self.attention_score is not None:
            score = self.attention_score
            parts["score"] = parse_function("attention_score", score, SCORES, ScoreSpec)
        if self.attention_select is not None:
            known = {**SELECTIONS, LOCAL_M: None}
            select = self.attention_select
            parts["select"] = parse_function("attention_select", select, known, SelectionSpec)
        return replace_attention(spec, parts) if parts else spec


FAMILY_VARIANT = Variant()


def parse_function(
    key: str,
    value: AttentionFunction,
    known: Mapping[str, object],
    spec_class: type[FunctionSpec],
) -> FunctionSpec:
    """Return the spec of a score or a selection, given by its name or a table of its settings."""
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
def replace_attention(spec: Spec, parts: AttentionParts) -> Spec: ...
@overload
def replace_attention(spec: DualSpec, parts: AttentionParts) -> DualSpec: ...
def replace_attention(spec: Spec | DualSpec, parts: AttentionParts) -> Spec | DualSpec:
    """Return the spec with this score and selection in every attention."""
    if isinstance(spec, DualSpec):
        return replace(
            spec,
            text=spec.text and replace_attention(spec.text, parts),
            image=spec.image and replace_attention(spec.image, parts),
        )
    stack = spec.decoder or spec.encoder
    if isinstance(stack, RecurrentStackSpec) and not (stack.source and stack.source.attention):
        raise ValueError(
            f"attention_score or attention_select in {spec.family}: this model has no attention to "
            "the source; expected a family such as bahdanau or luong"
        )
    return replace(
        spec,
        encoder=spec.encoder and replace_stack_attention(spec.encoder, parts),
        decoder=spec.decoder and replace_stack_attention(spec.decoder, parts),
    )


def replace_stack_attention(stack: AnyStackSpec, parts: AttentionParts) -> AnyStackSpec:
    """Return the stack with this score and selection in every attention."""
    if isinstance(stack, RecurrentStackSpec):
        return replace_recurrent_attention(stack, parts)
    if parts.get("select", SelectionSpec()).name == LOCAL_M:
        raise ValueError(
            f"attention_select {LOCAL_M!r} is a window around the position of the target: expected a "
            "recurrent decoder, such as luong; a Transformer has attention patterns"
        )

    def change(attention: AttentionSpec) -> AttentionSpec:
        return replace(attention, **parts)  # type: ignore[arg-type]

    layers = tuple(
        replace(
            layer,
            attention=change(layer.attention),
            cross_attention=layer.cross_attention and change(layer.cross_attention),
        )
        for layer in stack.layers
    )
    return replace(stack, layers=layers)


def replace_recurrent_attention(
    stack: RecurrentStackSpec, parts: AttentionParts
) -> RecurrentStackSpec:
    """Return a decoder with this score and selection; Luong's local-m is softmax with a pattern."""
    if stack.source is None or stack.source.attention is None:
        return stack
    changes: dict[str, Any] = dict(parts)
    select = parts.get("select")
    if select is not None:
        changes["pattern"] = full
        if select.name == LOCAL_M:
            changes |= {"select": SelectionSpec(), "pattern": Local(parse_window(select))}
    attention = replace(stack.source.attention, **changes)
    return replace(stack, source=replace(stack.source, attention=attention))


def parse_window(select: ScoreSpec | SelectionSpec) -> int:
    """Return the setting `window` of local-m; raise ValueError for another one."""
    settings = dict(select.settings)
    window = settings.pop("window", DEFAULT_WINDOW)
    if settings:
        raise ValueError(
            f"attention selection {LOCAL_M!r} has no setting {next(iter(settings))!r}: expected window"
        )
    check_number("window", window, integer=True, at_least=1)
    return int(window)
