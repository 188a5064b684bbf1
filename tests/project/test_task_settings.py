"""docs/tasks.md has every setting of every task, with its default and meaning."""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, fields
from typing import Any

import pytest

import qkv
from qkv.tasks.base import Task
from qkv.tasks.registry import TASK_CLASSES, get_task_class
from qkv.tasks.write.base import GenerationTask
from qkv.tasks.write.generative_answer import GenerativeAnswerTask
from tests.conftest import ROOT
from tools.pages.page import split_sections

# Section of docs/tasks.md: its class, and the class whose settings are in another section.
SECTIONS: dict[str, tuple[Any, Any]] = {
    "Every task": (Task, object),
    "Tasks that generate text": (GenerationTask, Task),
    "Generative answers": (GenerativeAnswerTask, GenerationTask),
    **{
        name: (get_task_class(name), GenerationTask if module.startswith("write.") else Task)
        for name, (module, _) in TASK_CLASSES.items()
    },
}


def read_table(section: str, title: str) -> dict[str, str]:
    """Return the defaults by name of a table with a default and a meaning."""
    _, sections = split_sections((ROOT / "docs" / "tasks.md").read_text(encoding="utf-8"), 2)
    table = sections[section].partition(f"| {title} | default | meaning |\n|---|---|---|\n")[2]
    rows = table.partition("\n\n")[0].splitlines()
    cells = [re.match(r"\| `(\w+)` \| (?:`(.+?)` )?\| (.+) \|$", row) for row in rows]
    assert all(cells), f"{section}: a row without a name, a default or a meaning"
    return {match[1]: match[2] or "" for match in cells if match}


def list_defaults(task_class: Any) -> dict[str, object]:
    """Return the settings of a class with their defaults."""
    if task_class is object:
        return {}
    return {
        field.name: {} if field.default is MISSING else field.default  # a mapping has a factory
        for field in fields(task_class)
        if field.name != "model"
    }


@pytest.mark.parametrize("section", SECTIONS)
def test_settings_have_their_defaults(section: str) -> None:
    task_class, base = SECTIONS[section]
    inherited = list_defaults(base)
    expected = {
        name: default
        for name, default in list_defaults(task_class).items()
        if name not in inherited or default != inherited[name]
    }
    if section == "Generative answers":
        expected["generative"] = None  # selects the class
    documented = read_table(section, "setting")
    assert documented == {name: repr(value).replace("'", '"') for name, value in expected.items()}


def test_arguments_have_their_defaults() -> None:
    for function, title in ((qkv.task, "argument of `qkv.task`"), (Task.map, "argument of `map`")):
        parameters = [
            parameter
            for name, parameter in inspect.signature(function).parameters.items()
            if name not in ("self", "settings")
        ]
        assert read_table("Every task", title) == {
            parameter.name: ""
            if parameter.default is parameter.empty
            else repr(parameter.default).replace("'", '"')
            for parameter in parameters
        }
