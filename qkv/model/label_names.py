"""Label names of a classification head: `id2label` and `label2id` in config.json."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from qkv.model.model import Model

DEFAULT_LABEL_PATTERN = re.compile(r"LABEL_\d+")  # Hugging Face's default label names
LABEL_COUNT_KEYS = ("num_labels", "_num_labels")  # in older files, beside `id2label`


def set_label_names(model: Model, label_names: Sequence[str]) -> None:
    """Store label names in the model's config."""
    model.config = replace_label_names(model.config, label_names)


def replace_label_names(config: Mapping[str, Any], label_names: Sequence[str]) -> dict[str, Any]:
    """Return the config with these label names."""
    other_keys = {key: value for key, value in config.items() if key not in LABEL_COUNT_KEYS}
    id2label = {str(number): name for number, name in enumerate(label_names)}
    label2id = {name: number for number, name in enumerate(label_names)}
    return {**other_keys, "id2label": id2label, "label2id": label2id}


def get_label_names(model: Model) -> tuple[str, ...]:
    """Return the label names in the model's config, by label id."""
    id2label: dict[str, str] = model.config.get("id2label") or {}
    return tuple(id2label[number] for number in sorted(id2label, key=int))


def has_default_label_names(model: Model) -> bool:
    """Return whether the model's config has no label names, or only LABEL_0, LABEL_1 ..."""
    return all(DEFAULT_LABEL_PATTERN.fullmatch(name) for name in get_label_names(model))


def warn_about_renamed_labels(model: Model, label_names: Sequence[str], name: str) -> None:
    """Warn if the labels of a trained head get other names: the head keeps its weights."""
    old_names = get_label_names(model)
    is_trained = not model.new_parameters and not has_default_label_names(model)
    if is_trained and len(old_names) == len(label_names) and old_names != tuple(label_names):
        warnings.warn(
            f"{name}: the labels {', '.join(old_names[:10])} are renamed to "
            f"{', '.join(label_names[:10])}, and the head keeps its weights: train the model if the "
            "meaning of a label changes",
            stacklevel=3,
        )


def complete_label_names(config: Mapping[str, Any], num_labels: int) -> dict[str, Any]:
    """Return the config with a name for each label: its own names, then LABEL_2, LABEL_3 ..."""
    id2label = config.get("id2label") or {}
    names = [str(id2label.get(str(number), f"LABEL_{number}")) for number in range(num_labels)]
    return replace_label_names(config, names)


def check_label_names(label_names: object) -> None:
    """Raise ValueError unless label names are a list of different strings, at least one."""
    is_list = isinstance(label_names, list | tuple)
    if not is_list or not label_names or not all(isinstance(name, str) for name in label_names):  # type: ignore[attr-defined]
        raise ValueError(f"label_names is {label_names!r}, expected a list of strings, one a label")
    if len({*label_names}) < len(label_names):  # type: ignore[misc, arg-type]
        raise ValueError(f"label_names is {label_names!r}, expected each name once")


def check_label_order(config: Mapping[str, Any], label_names: Sequence[str]) -> None:
    """Raise ValueError if label names are those of a trained head in another order."""
    names = [str(name) for name in (config.get("id2label") or {}).values()]
    if sorted(names) == sorted(label_names) and names != list(label_names):
        raise ValueError(
            f"label_names are {', '.join(label_names)}, expected the order of the label ids: "
            f"{', '.join(names)}; the head would give wrong names"
        )
