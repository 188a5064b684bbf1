"""Pooling: one sentence embedding per text, and its files in sentence-transformers' format."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from qkv.families.family import lookup
from qkv.files import read_json_object, read_json_value, write_json
from qkv.spec import DualSpec, HeadSpec, Spec

POOLING_CONFIG_KEYS = {
    "mean": "pooling_mode_mean_tokens",
    "first": "pooling_mode_cls_token",
    "last": "pooling_mode_lasttoken",
}
SUPPORTED_POOLING_MODULES = ("Transformer", "Pooling", "Normalize")


class Pooling(NamedTuple):
    """The pooling mode of hidden states (mean, first or last), and whether the result is normalized."""

    mode: str = "mean"
    normalize: bool = True


def add_pooling(spec: Spec | DualSpec, pooling: Pooling) -> Spec:
    """Return the spec with the output `sentence_embedding` (B, W)."""
    lookup("pooling", pooling.mode, dict.fromkeys(POOLING_CONFIG_KEYS))
    if isinstance(spec, DualSpec):
        raise ValueError(
            f"pooling {pooling.mode!r} in {spec.family}: the outputs text_embeds and image_embeds "
            "are already pooled"
        )
    head = HeadSpec(
        name="sentence_embedding",
        outputs=("sentence_embedding",),
        pooling=pooling.mode,
        activation="unit" if pooling.normalize else "linear",
    )
    return replace(spec, heads=(*spec.heads, head))


def read_pooling(folder: Path) -> Pooling | None:
    """Read modules.json and 1_Pooling; return None if they are absent or a module is not supported."""
    path = folder / "modules.json"
    if not path.is_file():
        return None
    modules = read_json_value(path)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ValueError(f"{path}: expected a JSON list of modules, each with a type")
    types = {str(module.get("type", "")).rpartition(".")[2] for module in modules}
    unsupported = sorted(types - {*SUPPORTED_POOLING_MODULES})
    if unsupported or "Pooling" not in types:
        problem = ", ".join(unsupported) or "no Pooling"
        expected = ", ".join(SUPPORTED_POOLING_MODULES)
        warnings.warn(
            f"{path}: {problem}: expected {expected}; the model is loaded without its sentence embedding",
            stacklevel=5,
        )
        return None
    path = folder / "1_Pooling" / "config.json"
    config = read_json_object(path)
    keys = [
        key for key, value in config.items() if key.startswith("pooling_mode_") and value is True
    ]
    modes = [mode for mode, key in POOLING_CONFIG_KEYS.items() if [key] == keys]
    if not modes:
        problem = " and ".join(keys) or "no pooling mode"
        raise ValueError(
            f"{path}: {problem}: expected one of {', '.join(POOLING_CONFIG_KEYS.values())}"
        )
    return Pooling(modes[0], "Normalize" in types)


def write_pooling(folder: Path, pooling: Pooling, width: int) -> None:
    """Write modules.json and 1_Pooling as sentence-transformers does."""
    keys = {key: mode == pooling.mode for mode, key in POOLING_CONFIG_KEYS.items()}
    (folder / "1_Pooling").mkdir(exist_ok=True)
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": width, **keys})
    modules = [("Transformer", ""), ("Pooling", "1_Pooling")]
    if pooling.normalize:
        modules.append(("Normalize", "2_Normalize"))
    rows = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (name, path) in enumerate(modules)
    ]
    write_json(folder / "modules.json", rows)
