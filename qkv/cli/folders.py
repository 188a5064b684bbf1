"""Folders of models that commands write: whole or not at all, and what is told of them. Knows no command."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from qkv.cli.console import say
from qkv.formatting import human

if TYPE_CHECKING:
    from qkv.model.model import Model

# What stands beside weights, and goes with them unchanged.
BESIDE = """
    *token*.json *vocab*.json *vocab*.txt merges.txt dict.txt *.model *.spm *.jinja generation_config.json
    preprocessor_config.json processor_config.json modules.json *sentence*.json *_*/config.json
    LICENSE* README.md
""".split()
KEPT = "generation_config.json preprocessor_config.json processor_config.json LICENSE*".split()  # of a base


def check_new(target: Path) -> None:
    """Nothing is written over what is there."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"{target}: there is something already; expected a new or an empty folder")


def described(model: Model) -> str:
    """Its family, its size and its heads."""
    from qkv.spec import Spec

    count, spec = sum(p.numel() for p in model.net.parameters()), model.spec
    heads = ", ".join(head.name for head in spec.heads) if isinstance(spec, Spec) else "contrast"
    return f"{model.family.name}, {count:,} parameters, heads: {heads or 'none'}"


def listed(folder: Path) -> list[tuple[str, str]]:
    """A row for each file of a folder: how large it is."""
    units, entries = (" B", " kB", " MB", " GB", " TB"), sorted(folder.iterdir())
    longest = max(len(each.name) for each in entries)
    return [("", f"{each.name:<{longest}}  {human(each.stat().st_size, units):>8}") for each in entries]


def tell(*rows: tuple[str, str], copied: list[str]) -> None:
    """What was read and written, and what was copied beside it."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for row in [*rows, *([("copied", ", ".join(copied))] if copied else [])]:
        table.add_row(*row)
    say(table)


@contextmanager
def whole(target: Path) -> Iterator[Path]:
    """A folder to write into that becomes `target` at the end, or nothing does."""
    near = next(each for each in target.absolute().parents if each.is_dir())
    if not os.access(near, os.W_OK):
        raise ValueError(f"{target}: nothing can be written in {near}; expected a folder of yours")
    with tempfile.TemporaryDirectory(prefix=".qkv-", dir=near) as room:
        folder = Path(room) / "whole"
        yield folder
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            target.rmdir()
        folder.rename(target)


def copy_beside(source: Path, target: Path, patterns: Sequence[str] = BESIDE) -> list[str]:
    """Copies what belongs to the weights and is none; returns the names. No link leads out of the folder."""
    from qkv.weights import tensors

    found = [each for pattern in patterns for each in sorted(source.glob(pattern)) if each.is_file()]
    names = [each.relative_to(source) for each in dict.fromkeys(found)]
    for name in names:
        (target / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(tensors._inside((source / name).parent, name.name), target / name)
    return [str(name) for name in names]
