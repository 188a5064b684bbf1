"""Model folders that tests change, and errors of loading them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import qkv
from tests.support.limits import get_error_message

FolderOf = Callable[[str], Path]  # the model folder of a family
FILE = "model.safetensors"
DEEP_JSON = b'{"a":' * 10_000 + b"1" + b"}" * 10_000


def assert_load_fails(folder: Path, *words: object) -> None:
    """Assert that loading fails with one line that has the folder and all words."""
    message = get_error_message(lambda: qkv.load(folder))
    missing = [word for word in (folder.name, *words) if str(word) not in message]
    assert not missing, f"{missing} not in: {message}"


def change_config(folder: Path, **changes: Any) -> Path:
    """Change keys of config.json; a dot leads into a nested object."""
    path = folder / "config.json"
    content = json.loads(path.read_text())
    for key, value in changes.items():
        tower, _, inner = key.rpartition(".")
        (content[tower] if tower else content)[inner] = value
    path.write_text(json.dumps(content))
    return folder
