"""FamilyArguments: the names and types of `qkv.build` are those of the families."""

from __future__ import annotations

import inspect
from types import NoneType, UnionType
from typing import Any, Union, Unpack, get_args, get_origin, get_type_hints

import pytest

import qkv
from qkv.families import list_families
from qkv.families.arguments import FamilyArguments

INTERNAL_ARGUMENTS = {"family"}  # of spec functions that several families share


def list_members(annotation: Any) -> set[Any]:
    """Return the members of a union, or the annotation itself."""
    is_union = get_origin(annotation) in (Union, UnionType)
    return {*get_args(annotation)} if is_union else {annotation}


def collect_argument_types() -> dict[str, set[Any]]:
    """Return the types of every argument, of all families together."""
    types: dict[str, set[Any]] = {}
    for family in list_families():
        hints: dict[str, Any] = {}
        for function in (family.base_function, family.build_spec):
            hints |= get_type_hints(function) if function else {}
        for name in family.parameters.keys() - INTERNAL_ARGUMENTS:
            types.setdefault(name, set()).update(list_members(hints[name]))
    return types


def test_names_and_types_are_those_of_the_families() -> None:
    declared = {name: list_members(hint) for name, hint in get_type_hints(FamilyArguments).items()}
    assert declared == collect_argument_types()


def test_build_takes_them() -> None:
    annotation = get_type_hints(qkv.build)["arguments"]
    assert annotation == Unpack[FamilyArguments]
    assert (
        inspect.signature(qkv.build).parameters["arguments"].kind is inspect.Parameter.VAR_KEYWORD
    )
    assert NoneType in list_members(get_type_hints(FamilyArguments)["head_dim"])


def test_mypy_rejects_other_names_and_types() -> None:
    """An ignored error that does not occur is an error of mypy."""
    with pytest.raises(ValueError, match="widht is unknown; did you mean width"):
        qkv.build("bert", widht=8)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="width is '8', expected an integer"):
        qkv.build("bert", width="8")  # type: ignore[arg-type]
