"""Requirements of tasks on the head and architecture of a model. Does not depend on tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from qkv.families import list_families
from qkv.model.model import Model
from qkv.spec import Causal, DualSpec, Spec, StackSpec, find_patches

SpecPredicate = Callable[[Spec], bool]


def reject_dual_encoder(spec: DualSpec) -> bool:
    """Return False: most tasks need a single network."""
    return False


class TaskRequirement(NamedTuple):
    """The requirement of a task on a model: a description, a predicate and the `head=` of families."""

    description: str
    predicate: SpecPredicate
    heads: tuple[str, ...]
    dual_predicate: Callable[[DualSpec], bool] = reject_dual_encoder  # predicate for dual encoders

    def is_met_by(self, spec: Spec | DualSpec) -> bool:
        """Return whether a model with this spec supports the task."""
        return self.dual_predicate(spec) if isinstance(spec, DualSpec) else self.predicate(spec)


def list_head_names(spec: Spec | DualSpec) -> list[str]:
    return [head.name for head in spec.heads] if isinstance(spec, Spec) else []


def describe_architecture(spec: Spec | DualSpec) -> str:
    """Return a description such as "an encoder with the head sequence-classification"."""
    if isinstance(spec, DualSpec):
        towers = [name for name, tower in (("text", spec.text), ("image", spec.image)) if tower]
        return (
            f"one tower, for {towers[0]}s"
            if len(towers) == 1
            else "two towers, for texts and images"
        )
    if spec.decoder is None:
        architecture = "an encoder"
    elif spec.encoder is None:
        architecture = "a decoder"
    else:
        architecture = "an encoder-decoder"
    heads = [
        name.replace("_", "-")
        for name in list_head_names(spec)
        if name not in ("pooler", "summary")
    ]
    return (
        f"{architecture} with the head {' and '.join(heads)}"
        if heads
        else f"{architecture} without a head"
    )


def require_head(head: str) -> SpecPredicate:
    """Return a predicate for a head, by the name of its module."""
    return lambda spec: head in list_head_names(spec)


def is_causal_spec(spec: Spec) -> bool:
    """Return whether every token attends only to itself and earlier tokens."""
    if spec.decoder is not None:
        has_cross_attention = any(layer.cross_attention for layer in spec.decoder.layers)
        return spec.encoder is None and not has_cross_attention
    assert spec.encoder is not None
    layers = spec.encoder.layers
    return bool(layers) and isinstance(layers[0].attention.pattern, Causal)


def is_bidirectional_spec(spec: Spec) -> bool:
    """Return whether a masked token is predicted from both sides.

    In XLNet it is not, because that would need its query stream; recurrent models have no masks."""
    return (
        isinstance(spec.encoder, StackSpec)
        and not is_causal_spec(spec)
        and not spec.encoder.embedding.query_stream
    )


def can_fill_masks(spec: Spec) -> bool:
    return (
        "lm" in list_head_names(spec)
        and is_bidirectional_spec(spec)
        and (spec.decoder is None or spec.shift_right is not None)
    )


def can_score_text(spec: Spec) -> bool:
    return "lm" in list_head_names(spec) and (
        is_causal_spec(spec) or (is_bidirectional_spec(spec) and spec.decoder is None)
    )


def can_rewrite_text(spec: Spec) -> bool:
    return is_encoder_decoder_lm(spec) and find_patches(spec) is None


def can_caption_images(spec: Spec) -> bool:
    return is_encoder_decoder_lm(spec) and find_patches(spec) is not None


def is_encoder_decoder_lm(spec: Spec) -> bool:
    return "lm" in list_head_names(spec) and spec.encoder is not None and spec.decoder is not None


def can_complete_text(spec: Spec) -> bool:
    """Return whether the model predicts the next token; XLNet does with its query stream."""
    is_xlnet = (
        spec.decoder is None and spec.encoder is not None and spec.encoder.embedding.query_stream
    )
    return "lm" in list_head_names(spec) and (is_causal_spec(spec) or is_xlnet)


def combine_requirements(first: TaskRequirement, second: TaskRequirement) -> TaskRequirement:
    """Return the requirement of a task that either model supports."""
    return TaskRequirement(
        f"{first.description}, or {second.description}",
        lambda spec: first.predicate(spec) or second.predicate(spec),
        (*first.heads, *second.heads),
        lambda spec: first.dual_predicate(spec) or second.dual_predicate(spec),
    )


IMAGE_CLASSIFICATION_REQUIREMENT = TaskRequirement(
    "an image-classification head",
    require_head("image_classification"),
    ("image-classification",),
    lambda spec: spec.image is not None and "image_classification" in list_head_names(spec.image),
)
FRAME_CLASSIFICATION_REQUIREMENT = TaskRequirement(
    "a frame-classification head", require_head("frame_classification"), ("frame-classification",)
)


def can_draw(spec: Spec) -> bool:
    """Return whether a decoder has positions of its own for the codes of an image."""
    return (
        is_causal_spec(spec)
        and "lm" in list_head_names(spec)
        and spec.decoder is not None
        and spec.decoder.max_positions is not None
    )


SPAN_REQUIREMENT = TaskRequirement(
    "a question-answering head", require_head("question_answering"), ("question-answering",)
)
SEQ2SEQ_REQUIREMENT = TaskRequirement(
    "an encoder-decoder with the head lm", can_rewrite_text, ("lm",)
)
CAPTION_REQUIREMENT = TaskRequirement(
    "an encoder of images and a decoder with the head lm", can_caption_images, ("lm",)
)


def check_model_supports_task(model: Model, task: str, requirement: TaskRequirement) -> None:
    """Raise ValueError if the model does not meet the requirement of the task."""
    spec = model.spec
    if requirement.is_met_by(spec):
        return
    if model.tokenizer_folder:
        subject = f"{model.tokenizer_folder}: this model is"
    else:
        subject = f"this {model.family.name} is"
    raise ValueError(
        f"{subject} {describe_architecture(spec)}; `{task}` needs {requirement.description}. "
        f"Supported: {describe_supporting_families(requirement)}"
    )


def describe_supporting_families(requirement: TaskRequirement) -> str:
    """Return the names of the families that meet a requirement, and the head they need."""
    names: dict[str, None] = {}
    for family in list_families():
        for head in requirement.heads:
            if head in family.heads and requirement.is_met_by(
                family.build_spec(**family.arguments(head=head))
            ):
                names[family.name] = None
    heads = requirement.heads
    head_description = "any head" if heads == ("none",) else f"the head {' or '.join(heads)}"
    return f"{', '.join(names)}, with {head_description}"
