"""Training objectives: data transforms and losses, built by name from the rows of `registry`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from qkv.hints import find_closest_name
from qkv.train.objectives.objective import Objective
from qkv.train.objectives.vocabulary import VocabularyInfo as VocabularyInfo
from qkv.train.objectives.vocabulary import build_vocabulary_info as build_vocabulary_info
from qkv.validate import shorten_repr


def check_objective_settings(
    name: str,
    build: Callable[..., Objective],
    settings: Mapping[str, Any],
    extra_settings: Sequence[str] = (),
) -> None:
    """Raise ValueError for a setting that the objective does not have, or of another type.

    `extra_settings` are further names, whose types are not known here."""
    parameters = inspect.signature(build).parameters.values()
    defaults = {
        parameter.name: parameter.default for parameter in parameters if parameter.name != "vocab"
    }
    known_names = [*defaults, *extra_settings]
    for key, value in settings.items():
        if key not in known_names:
            closest = find_closest_name(key, known_names)
            hint = f"; did you mean {closest}?" if closest else ""
            known = ", ".join(known_names) or "none"
            raise ValueError(f"objective.{key}: {name} has no such setting; it has {known}{hint}")
        if key in extra_settings:
            continue
        expected_type = type(defaults[key])
        is_integer_for_float = expected_type is float and type(value) is int
        is_collection = expected_type is tuple and isinstance(value, list | dict)
        if type(value) is not expected_type and not is_integer_for_float and not is_collection:
            raise ValueError(
                f"objective.{key} is {shorten_repr(value)}, "
                f"expected a value such as {defaults[key]!r}"
            )
        if isinstance(value, int | float) and not math.isfinite(value):
            raise ValueError(f"objective.{key} is {value!r}, expected a finite number")


def build_objective(name: str, vocab: VocabularyInfo, **settings: Any) -> Objective:
    """Build the objective of this name; an error about a setting lists the known settings."""
    # Imported here, because the registry imports evaluators, which import this package.
    from qkv.train.objectives.registry import find_objective_spec

    build = find_objective_spec(name).build_objective
    check_objective_settings(name, build, settings)
    return replace(
        build(vocab, **settings), rebuild=partial(build_objective, name, vocab, **settings)
    )
