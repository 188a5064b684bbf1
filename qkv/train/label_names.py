"""Label names of a training run: those of the recipe, the data or the model."""

from __future__ import annotations

from collections.abc import Iterable

from qkv.data.encode.labels import collect_label_names
from qkv.data.read.record import Record
from qkv.model.label_names import (
    check_label_order,
    get_label_names,
    has_default_label_names,
    set_label_names,
)
from qkv.model.model import Model
from qkv.train.objectives.classification import PROBLEM_TYPES
from qkv.train.objectives.registry import ObjectiveSpec
from qkv.train.recipe import Recipe


def adopt_label_names(model: Model, label_names: tuple[str, ...]) -> None:
    """Set the label names of the data in a model with default label names."""
    num_labels = model.args["num_labels"]
    if len(label_names) != num_labels:
        raise ValueError(
            f"the data has {len(label_names)} labels ({', '.join(label_names[:20])}), but the model "
            f"has {num_labels}: build it with num_labels={len(label_names)}"
        )
    set_label_names(model, label_names)


def prepare_label_names(
    model: Model, recipe: Recipe, spec: ObjectiveSpec, records: Iterable[Record]
) -> tuple[str, ...]:
    """Return the label names of the model; default ones are first replaced by those of the data."""
    if spec.label_column is None:
        return ()
    if has_default_label_names(model):
        adopt_label_names(model, resolve_label_names(recipe, spec, records))
    return get_label_names(model)


def match_label_names(
    model: Model, recipe: Recipe, label_names: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the label names of a loaded head that is trained further, in the order of its ids.

    The order of the same labels is that of the model, unless the recipe states another one, which is
    an error. Other names for as many labels replace those of the model."""
    if recipe.model.label_names:
        check_label_order(model.config, label_names)
    if {*label_names} == {*get_label_names(model)}:
        return get_label_names(model)
    return label_names


def set_problem_type(model: Model, recipe: Recipe) -> None:
    """Store the problem type of sequence classification in the model's config."""
    problem_type = recipe.objective.problem_type
    if recipe.objective.name == "sequence-classification" and problem_type in PROBLEM_TYPES:
        model.config["problem_type"] = problem_type


def resolve_label_names(
    recipe: Recipe, spec: ObjectiveSpec, records: Iterable[Record]
) -> tuple[str, ...]:
    """Return `model.label_names`, or the label names in the records, sorted; regression has one label,
    an objective without labels none."""
    label_names = recipe.model.label_names
    if spec.label_column is None:
        if label_names:
            raise ValueError(
                f"model.label_names: objective {recipe.objective.name} has no labels; remove it"
            )
        return ()
    problem_type = recipe.objective.problem_type
    if len({*label_names}) < len(label_names):
        raise ValueError(f"model.label_names {list(label_names)}, expected each name once")
    if problem_type == "regression":
        if len(label_names) > 1:
            raise ValueError(f"model.label_names {list(label_names)}, expected one for regression")
        return label_names or ("score",)
    label_names = label_names or collect_label_names(records, spec.label_column, problem_type)
    if not label_names:
        raise ValueError("the training data has no records: is the file empty?")
    if recipe.objective.has_single_label and len(label_names) == 1:
        source = "model.label_names" if recipe.model.label_names else "the training data"
        raise ValueError(f"{source} has only one label, {label_names[0]!r}; expected two or more")
    return label_names
