"""RecipeDraft: a recipe with comments, written as TOML. Does not depend on data."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import NamedTuple

from qkv.train.recipe import BARE_TOML_KEY


class Setting(NamedTuple):
    """A key of a table, its value and a comment behind it; a comment without a key is a line."""

    key: str
    value: object = None
    comment: str = ""


@dataclass(frozen=True, kw_only=True)
class RecipeDraft:
    """A recipe, what was found in the data, and the tables of the recipe in order."""

    title: str
    facts: dict[str, str]  # what was found in the data, by name
    tables: dict[str, list[Setting]] = field(default_factory=dict)

    def format(self) -> str:
        """Return the recipe as TOML."""
        lines = [f"# {self.title}"]
        lines += [f"# {name}: {fact}" for name, fact in self.facts.items()]
        for name, settings in self.tables.items():
            lines += ["", f"[{name}]"]
            lines += map(format_setting, settings)
        return "\n".join(lines) + "\n"


def format_setting(setting: Setting) -> str:
    if not setting.key:
        return f"# {setting.comment}"
    text = f"{format_key(setting.key)} = {format_value(setting.value)}"
    return f"{text}  # {setting.comment}" if setting.comment else text


def format_key(key: str) -> str:
    return key if BARE_TOML_KEY.fullmatch(key) else format_value(key)


def format_value(value: object) -> str:
    """Return a value as TOML: a string, number, boolean, list or inline table."""
    if isinstance(value, dict):
        items = ", ".join(
            f"{format_key(key)} = {format_value(item)}" for key, item in value.items()
        )
        return f"{{ {items} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(format_value, value))}]"
    if isinstance(value, str):  # a JSON string is a TOML string
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value)
