"""What users give to tasks: texts, labels and settings; what is wrong with them is said in one line."""

from __future__ import annotations

from collections.abc import Sequence

from qkv.check import number


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


def one_of(what: str, value: object, known: Sequence[str]) -> None:
    if value not in known:
        raise ValueError(f"{what} is {value!r}, expected one of {', '.join(known)}")


def check_top(top: int | None) -> None:
    if top is not None:
        number("top", top, whole=True, at_least=1)


def candidates(labels: str | Sequence[str]) -> tuple[str, ...]:
    """Labels in a list, or in one text with commas between them; each once, none empty."""
    found = [part.strip() for part in labels.split(",")] if isinstance(labels, str) else list(labels)
    for label in found:
        checked(label, "a label")
        if found.count(label) > 1:
            raise ValueError(f"label {label!r} is there twice, expected each once")
    return tuple(found)


def check_template(template: str) -> None:
    if "{}" not in template:
        raise ValueError(f"template {template!r}: expected a text with {{}} where the label goes")
