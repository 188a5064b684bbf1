"""Formats of weight files, and the names in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

FileFormat = Literal["safetensors", "bin"]
UNSHARDED = 10**9
LAYOUTS: list[tuple[FileFormat, int]] = [  # format, bytes of a shard
    ("safetensors", UNSHARDED),
    ("safetensors", 40),
    ("bin", UNSHARDED),
    ("bin", 40),
]


def list_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def write_index(folder: Path, weight_map: object) -> Path:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return path
