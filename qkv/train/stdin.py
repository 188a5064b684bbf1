"""Spool: standard input, which can be read once, as a file of the run, which is read again and again."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

from qkv.data.read.lines import STDIN
from qkv.train.recipe import Recipe

NAME = "stdin"


def from_file(recipe: Recipe) -> Recipe:
    """The recipe with the file of its run in the place of standard input."""
    train, valid = recipe.data.train, recipe.data.valid
    file = str(Path(recipe.run) / NAME)
    if not isinstance(valid, float):
        if all(in_place(path, file) != path for path in (train, valid)):
            raise ValueError("data.train and data.valid are standard input, '-', expected one of them")
        valid = in_place(valid, file)
    return replace(recipe, data=replace(recipe.data, train=in_place(train, file), valid=valid))


def in_place(path: str | list[str], file: str) -> str | list[str]:
    if isinstance(path, str):
        return file if path == STDIN else path
    return [file if each == STDIN else each for each in path]


def read(folder: Path) -> None:
    """Writes standard input down, whole or not at all."""
    room = folder / f"{NAME}.tmp"
    with room.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    room.rename(folder / NAME)


def held(folder: Path) -> bool:
    """Whether a run has it already."""
    return (folder / NAME).exists()
