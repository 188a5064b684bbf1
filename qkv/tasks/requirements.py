"""Which models support which task, by their heads and architecture. Knows no text."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from qkv.families import list_families
from qkv.model.model import Model
from qkv.spec import Causal, DualSpec, Spec

SpecPredicate = Callable[[Spec], bool]


class TaskRequirement(NamedTuple):
    """What a task requires of a model: a description, a test and the `head=` of the families."""

    description: str
    predicate: SpecPredicate
    heads: tuple[str, ...]


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
    """Return a test for a head, by the name of its module."""
    return lambda spec: head in list_head_names(spec)


def is_causal_spec(spec: Spec) -> bool:
    """Return whether every token attends only to itself and earlier tokens."""
    if spec.decoder is not None:
        return spec.encoder is None and spec.decoder.layers[0].cross_attention is None
    assert spec.encoder is not None
    return isinstance(spec.encoder.layers[0].attention.pattern, Causal)


def is_bidirectional_spec(spec: Spec) -> bool:
    """Return whether a masked token is predicted from both sides.

    XLNet's is not: that would need its query stream."""
    return (
        spec.encoder is not None
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
    return "lm" in list_head_names(spec) and spec.encoder is not None and spec.decoder is not None


def can_complete_text(spec: Spec) -> bool:
    """Return whether the model predicts the next token; XLNet does with its query stream."""
    is_xlnet = (
        spec.decoder is None and spec.encoder is not None and spec.encoder.embedding.query_stream
    )
    return "lm" in list_head_names(spec) and (is_causal_spec(spec) or is_xlnet)


SPAN_REQUIREMENT = TaskRequirement(
    "a question-answering head", require_head("question_answering"), ("question-answering",)
)
SEQ2SEQ_REQUIREMENT = TaskRequirement(
    "an encoder-decoder with the head lm", can_rewrite_text, ("lm",)
)
TASK_REQUIREMENTS = {
    "classify": TaskRequirement(
        "a sequence-classification head",
        require_head("sequence_classification"),
        ("sequence-classification",),
    ),
    "tag": TaskRequirement(
        "a token-classification head",
        require_head("token_classification"),
        ("token-classification",),
    ),
    "fill": TaskRequirement("a masked-lm head", can_fill_masks, ("masked-lm",)),
    "answer": TaskRequirement(
        f"{SPAN_REQUIREMENT.description}, or {SEQ2SEQ_REQUIREMENT.description}",
        lambda spec: SPAN_REQUIREMENT.predicate(spec) or can_rewrite_text(spec),
        ("question-answering", "lm"),
    ),
    "embed": TaskRequirement(
        "an encoder or a decoder alone",
        lambda spec: not (spec.encoder and spec.decoder),
        ("none",),
    ),
    "match": TaskRequirement("two towers, for texts and images", lambda spec: False, ("both",)),
    "detect": TaskRequirement(
        "a replaced-token-detection head",
        require_head("replaced_token_detection"),
        ("replaced-token-detection",),
    ),
    "score": TaskRequirement(
        "a decoder with the head lm, or a masked-lm head", can_score_text, ("lm", "masked-lm")
    ),
    "translate": SEQ2SEQ_REQUIREMENT,
    "complete": TaskRequirement(
        "a decoder with the head lm, or XLNet with it", can_complete_text, ("lm",)
    ),
    "summarize": SEQ2SEQ_REQUIREMENT,
}


def check_model_supports_task(
    model: Model, task: str, requirement: TaskRequirement | None = None
) -> None:
    """Raise ValueError if the model does not support the task.

    `requirement` replaces that of the task, for one of several ways to do it."""
    requirement = requirement or TASK_REQUIREMENTS[task]
    spec = model.spec
    if isinstance(spec, DualSpec):
        has_both = spec.text is not None and spec.image is not None
        is_supported = (task == "match" and has_both and spec.logit_scale is not None) or (
            task == "embed" and spec.text is not None
        )
    else:
        is_supported = requirement.predicate(spec)
    if is_supported:
        return
    if model.tokenizer_folder:
        subject = f"{model.tokenizer_folder}: this model is"
    else:
        subject = f"this {model.family.name} is"
    raise ValueError(
        f"{subject} {describe_architecture(spec)}; `{task}` needs {requirement.description}. "
        f"Supported: {describe_supporting_families(task, requirement)}"
    )


def describe_supporting_families(task: str, requirement: TaskRequirement | None = None) -> str:
    """Return the names of the families that support a task, and the head they need."""
    _, predicate, heads = requirement or TASK_REQUIREMENTS[task]
    names: dict[str, None] = {}
    for family in list_families():
        for head in heads:
            if head not in family.heads:
                continue
            spec = family.build_spec(**family.arguments(head=head))
            is_supported = task == "match" if isinstance(spec, DualSpec) else predicate(spec)
            if is_supported:
                names[family.name] = None
    head_description = "any head" if heads == ("none",) else f"the head {' or '.join(heads)}"
    return f"{', '.join(names)}, with {head_description}"
