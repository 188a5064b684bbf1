"""Validation of the inputs of tasks: texts, labels and settings. Every error is one line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from qkv.hints import describe_unknown_name
from qkv.validate import check_number, check_text_length

T = TypeVar("T")


def check_input_text(text: object, name: str) -> str:
    """Return the text if it is a string with more than whitespace."""
    if not isinstance(text, str):
        raise ValueError(f"{name} is a {type(text).__name__}, expected a string")
    if not text.strip():
        problem = "only whitespace" if text else "empty"
        raise ValueError(f"{name} is {problem}, expected a text")
    check_text_length(name, text)
    return text


def check_string_settings(**values: object) -> None:
    """Check that settings are strings or None."""
    for name, value in values.items():
        if value is not None and not isinstance(value, str):
            raise ValueError(f"{name} is {value!r}, expected a string")


def check_boolean_settings(task: Any) -> None:
    """Check that the fields annotated as booleans are booleans."""
    choices_by_type = {"bool": (True, False), "bool | None": (True, False, None)}
    for field in fields(task):
        value = getattr(task, field.name)
        choices = choices_by_type.get(str(field.type), (value,))
        if not any(value is choice for choice in choices):
            raise ValueError(f"{field.name} is {value!r}, expected true or false")


def check_list(name: str, values: Iterable[T], item_name: str = "texts") -> list[T]:
    """Return the values as a list; a single string is an error."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        problem = "one text" if isinstance(values, str) else f"a {type(values).__name__}"
        raise ValueError(f"{name}: {problem}, expected a list of {item_name}")
    return list(values)


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}, expected one of {', '.join(choices)}")


def check_setting_names(names: Iterable[str], known_names: Sequence[str]) -> None:
    """Raise ValueError for the first name that is not a setting."""
    for name in names:
        if name not in known_names:
            raise ValueError(f"setting {describe_unknown_name(name, known_names)}")


def check_top_k(top_k: int | None) -> None:
    if top_k is not None:
        check_number("top_k", top_k, integer=True, at_least=1)


def parse_candidate_labels(labels: str | Sequence[str]) -> tuple[str, ...]:
    """Return the labels of a list or a comma-separated string; empty or repeated labels are errors."""
    if isinstance(labels, str):
        labels = [label.strip() for label in labels.split(",")]
    parsed = check_list("candidate_labels", labels)
    for label in parsed:
        check_input_text(label, "a candidate label")
        if parsed.count(label) > 1:
            raise ValueError(f"candidate label {label!r} is repeated, expected each label once")
    return tuple(parsed)


def check_hypothesis_template(hypothesis_template: str) -> None:
    if not isinstance(hypothesis_template, str) or "{}" not in hypothesis_template:
        raise ValueError(
            f"hypothesis_template is {hypothesis_template!r}, "
            "expected a text with {} for the label"
        )
