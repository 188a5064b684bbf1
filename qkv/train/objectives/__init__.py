"""Training objectives: data transforms and losses, built by name from the rows of `registry`."""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import partial
from typing import Any

from qkv.hints import find_closest_name
from qkv.train.objectives.objective import Objective
from qkv.train.objectives.vocabulary import VocabularyInfo as VocabularyInfo
from qkv.train.objectives.vocabulary import build_vocabulary_info as build_vocabulary_info


def build_objective(name: str, vocab: VocabularyInfo, **settings: Any) -> Objective:
    """Build the objective of this name; an error about a setting lists the known settings."""
    # Imported here, because the registry imports evaluators, which import this package.
    from qkv.train.objectives.registry import find_objective_spec

    build = find_objective_spec(name).build_objective
    parameters = inspect.signature(build).parameters.values()
    defaults = {
        parameter.name: parameter.default for parameter in parameters if parameter.name != "vocab"
    }
    for key, value in settings.items():
        if key not in defaults:
            closest = find_closest_name(key, defaults)
            hint = f"; did you mean {closest}?" if closest else ""
            known = ", ".join(defaults) or "none"
            raise ValueError(f"objective.{key}: {name} has no such setting; it has {known}{hint}")
        expected_type = type(defaults[key])
        is_integer_for_float = expected_type is float and type(value) is int
        is_collection = expected_type is tuple and isinstance(value, list | dict)
        if type(value) is not expected_type and not is_integer_for_float and not is_collection:
            raise ValueError(
                f"objective.{key} is {value!r}, expected a value such as {defaults[key]!r}"
            )
    return replace(
        build(vocab, **settings), rebuild=partial(build_objective, name, vocab, **settings)
    )
