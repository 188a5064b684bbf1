"""What users give to tasks: texts, labels and settings; what is wrong with them is said in one line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from qkv.validate import number

T = TypeVar("T")


def checked(text: object, what: str) -> str:
    """A text that says something."""
    if not isinstance(text, str):
        raise ValueError(f"{what} is a {type(text).__name__}, expected a string")
    if not text.strip():
        raise ValueError(f"{what} is {'only blanks' if text else 'empty'}, expected some words")
    return text


def check_strings(**values: object) -> None:
    """Settings that are strings where they are given."""
    for name, value in values.items():
        if value is not None and not isinstance(value, str):
            raise ValueError(f"{name} is {value!r}, expected a string")


def check_flags(task: Any) -> None:
    """Settings that are true or false, as their types say."""
    for field in fields(task):
        value = getattr(task, field.name)
        good = {"bool": (True, False), "bool | None": (True, False, None)}.get(str(field.type), (value,))
        if not any(value is one for one in good):
            raise ValueError(f"{field.name} is {value!r}, expected true or false")


def listed(what: str, given: Iterable[T], of: str = "texts") -> list[T]:
    """A list of what was given; one text is none, and not a list of its letters."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        shown = "one text" if isinstance(given, str) else f"a {type(given).__name__}"
        raise ValueError(f"{what}: {shown}, expected a list of {of}")
    return list(given)


def one_of(what: str, value: object, known: Sequence[str]) -> None:
    if value not in known:
        raise ValueError(f"{what} is {value!r}, expected one of {', '.join(known)}")


def check_top(top: int | None) -> None:
    if top is not None:
        number("top", top, whole=True, at_least=1)


def candidates(labels: str | Sequence[str]) -> tuple[str, ...]:
    """Labels in a list, or in one text with commas between them; each once, none empty."""
    if isinstance(labels, str):
        labels = [part.strip() for part in labels.split(",")]
    found = listed("labels", labels)
    for label in found:
        checked(label, "a label")
        if found.count(label) > 1:
            raise ValueError(f"label {label!r} is there twice, expected each once")
    return tuple(found)


def check_template(template: str) -> None:
    if not isinstance(template, str) or "{}" not in template:
        raise ValueError(f"template {template!r}: expected a text with {{}} where the label goes")
