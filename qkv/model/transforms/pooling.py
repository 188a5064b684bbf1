"""One vector a text, pooled over its tokens and of length one; sentence-transformers' files for it."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from qkv.families.family import one_of
from qkv.spec import Head, Spec, Two
from qkv.weights.tensors import read_json, read_value, write_json

MODES = {
    "mean": "pooling_mode_mean_tokens", "first": "pooling_mode_cls_token", "last": "pooling_mode_lasttoken",
}  # fmt: skip
KNOWN = ("Transformer", "Pooling", "Normalize")


class Vector(NamedTuple):
    """How a text becomes one vector: which states are taken, and whether its length becomes one."""

    take: str = "mean"
    unit: bool = True


def with_vector(spec: Spec | Two, vector: Vector) -> Spec:
    """The same model, which also gives `vector` (B, W)."""
    one_of("vector", vector.take, dict.fromkeys(MODES))
    if isinstance(spec, Two):
        raise ValueError(
            f"vector {vector.take!r} in {spec.family}: it gives vectors already, `text` and `image`"
        )
    head = Head(name="vector", out=("vector",), take=vector.take, act="unit" if vector.unit else "linear")
    return replace(spec, heads=(*spec.heads, head))


def read_vector(folder: Path) -> Vector | None:
    """What modules.json and 1_Pooling say; None: no such file, or it asks for what is not here."""
    if not (folder / "modules.json").is_file():
        return None
    modules = read_value(folder / "modules.json")
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ValueError(f"{folder / 'modules.json'}: expected a JSON list of modules, each with a type")
    kinds = {str(module.get("type", "")).rpartition(".")[2] for module in modules}
    odd = sorted(kinds - {*KNOWN})
    if odd or "Pooling" not in kinds:
        warnings.warn(
            f"{folder / 'modules.json'}: {', '.join(odd) or 'no Pooling'}: expected {', '.join(KNOWN)}; "
            "the model is opened without its sentence vector", stacklevel=4,
        )  # fmt: skip
        return None
    path = folder / "1_Pooling" / "config.json"
    asked = [mode for mode, on in read_json(path).items() if mode.startswith("pooling_mode_") and on is True]
    takes = [take for take, mode in MODES.items() if [mode] == asked]
    if not takes:
        raise ValueError(
            f"{path}: {' and '.join(asked) or 'no pooling mode'}: expected one of {', '.join(MODES.values())}"
        )
    return Vector(takes[0], "Normalize" in kinds)


def write_vector(folder: Path, vector: Vector, width: int) -> None:
    modes = {mode: mode == MODES[vector.take] for mode in MODES.values()}
    (folder / "1_Pooling").mkdir(exist_ok=True)
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": width, **modes})
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling")] + [("Normalize", "2_Normalize")] * vector.unit
    rows = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(kinds)
    ]
    write_json(folder / "modules.json", rows)
