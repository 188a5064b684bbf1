"""Standard input as a training file, saved in the run folder because it can be read only once."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

from qkv.data.read.lines import STDIN
from qkv.staging import write_file
from qkv.train.recipe import Recipe

STDIN_FILE = "stdin"


def replace_stdin(recipe: Recipe) -> Recipe:
    """Return the recipe with standard input replaced by its file in the run folder."""
    train = recipe.data.train
    validation = recipe.data.validation
    file = str(Path(recipe.run) / STDIN_FILE)
    if not isinstance(validation, float):
        if all(replace_stdin_path(path, file) != path for path in (train, validation)):
            raise ValueError(
                "data.train and data.validation are both standard input ('-'), expected only one of the two"
            )
        validation = replace_stdin_path(validation, file)
    train = replace_stdin_path(train, file)
    return replace(recipe, data=replace(recipe.data, train=train, validation=validation))


def replace_stdin_path(path: str | list[str], file: str) -> str | list[str]:
    if isinstance(path, str):
        return file if path == STDIN else path
    return [file if item == STDIN else item for item in path]


def save_stdin(folder: Path) -> None:
    """Save standard input in the run folder, completely or not at all."""
    with write_file(folder / STDIN_FILE) as temporary, temporary.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)


def has_saved_stdin(folder: Path) -> bool:
    """Return whether the run folder contains saved standard input."""
    return (folder / STDIN_FILE).exists()
