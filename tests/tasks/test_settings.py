"""The keywords of `qkv.task`: names and types are those of the tasks' settings."""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from typing import Any, Unpack, get_args, get_overloads, get_type_hints

import pytest

import qkv
from qkv.decode.settings import GenerationSettings
from qkv.tasks import registry, settings
from qkv.tasks.read.classify_image import ImageClassifyTask
from qkv.tasks.registry import TASK_CLASSES
from qkv.tasks.write.base import GenerationTask
from qkv.tasks.write.generative_answer import GenerativeAnswerTask
from tests.tasks.test_tasks import load_golden

TYPED_DICTS = {name: getattr(settings, f"{name.capitalize()}Settings") for name in TASK_CLASSES}


def get_task_class(name: str) -> Any:
    module_name, class_name = TASK_CLASSES[name]
    return getattr(import_module(f"qkv.tasks.{module_name}"), class_name)


def list_setting_types(task_class: Any) -> dict[str, Any]:
    """Return the settings of a task with their types, those of generation included."""
    hints = get_type_hints(task_class)
    types = {field.name: hints[field.name] for field in fields(task_class) if field.name != "model"}
    if issubclass(task_class, GenerationTask):
        types |= get_type_hints(GenerationSettings)
    return types


@pytest.mark.parametrize("name", TASK_CLASSES)
def test_names_and_types_are_those_of_the_task(name: str) -> None:
    expected = list_setting_types(get_task_class(name))
    if name == "answer":
        generative = list_setting_types(GenerativeAnswerTask)
        assert all(generative[key] == expected[key] for key in generative.keys() & expected.keys())
        expected |= generative | {"generative": bool | None}
    assert get_type_hints(TYPED_DICTS[name]) == expected


def test_every_task_has_an_overload_with_its_settings() -> None:
    *overloads, fallback = get_overloads(qkv.task)
    names = vars(registry) | {
        class_name: get_task_class(name) for name, (_, class_name) in TASK_CLASSES.items()
    }
    names["GenerativeAnswerTask"] = GenerativeAnswerTask
    names["ImageClassifyTask"] = ImageClassifyTask
    annotations = {}
    for overload in overloads:
        hints = get_type_hints(overload, names)
        (name,) = get_args(hints["name"])
        annotations[name] = hints["settings"]
        assert get_task_class(name) in (hints["return"], *get_args(hints["return"]))
    assert annotations == {name: Unpack[typed_dict] for name, typed_dict in TYPED_DICTS.items()}
    assert "settings" not in get_type_hints(fallback, names)


def test_mypy_rejects_other_names_and_types() -> None:
    """An ignored error that does not occur is an error of mypy."""
    model = load_golden("bert-label")
    with pytest.raises(ValueError, match="setting multilabel is unknown; did you mean multi_label"):
        qkv.task("classify", model, multilabel=True)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="top_k is '2'"):
        qkv.task("classify", model, top_k="2")  # type: ignore[call-overload]
    assert qkv.task("classify", model, top_k=2)("A film.").candidates
