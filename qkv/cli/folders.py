"""Model folders that commands write atomically, and their printed summary. Does not depend on commands."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from qkv.cli.console import print_rich
from qkv.formatting import format_count

if TYPE_CHECKING:
    from qkv.model.model import Model

# Files of a model folder that are copied unchanged with the weights.
COMPANION_FILES = """
    *token*.json *vocab*.json *vocab*.txt merges.txt dict.txt *.model *.spm *.jinja
    generation_config.json preprocessor_config.json processor_config.json modules.json
    *sentence*.json *_*/config.json LICENSE* README.md
""".split()
# Files of the base model that are copied when an adapter is merged into it.
BASE_COMPANION_FILES = (
    "generation_config.json preprocessor_config.json processor_config.json LICENSE*".split()
)


def check_picture_file(save: Path, suffixes: Sequence[str]) -> None:
    """Raise ValueError if the file of --save cannot be written, or ends with another suffix."""
    if save.suffix not in suffixes:
        expected = " or ".join(suffixes)
        if save.suffix == ".png":
            raise ValueError(f"--save {save}: PNG is not supported; expected {expected}")
        raise ValueError(f"--save {save}: expected a file name that ends with {expected}")
    if save.is_dir() or not save.parent.is_dir():
        raise ValueError(f"--save {save}: expected a file in an existing folder")


def check_new_folder(target: Path) -> None:
    """Raise ValueError unless `target` is missing or an empty folder."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"{target}: already exists; expected a new or an empty folder")


def describe_model(model: Model) -> str:
    """Return the family, number of parameters and heads of a model."""
    from qkv.spec import Spec

    num_parameters = sum(p.numel() for p in model.net.parameters())
    spec = model.spec
    heads = (
        ", ".join(head.name.replace("_", "-") for head in spec.heads)
        if isinstance(spec, Spec)
        else "contrastive"
    )
    return f"{model.family.name}, {num_parameters:,} parameters, heads: {heads or 'none'}"


def list_file_sizes(folder: Path) -> list[tuple[str, str]]:
    """Return a summary row with the name and size of each file of a folder."""
    units = (" B", " kB", " MB", " GB", " TB")
    files = sorted(folder.iterdir())
    name_width = max(len(file.name) for file in files)
    return [
        ("", f"{file.name:<{name_width}}  {format_count(file.stat().st_size, units):>8}")
        for file in files
    ]


def print_summary(*rows: tuple[str, str], copied_files: list[str]) -> None:
    """Print a summary of the files that were read, written and copied."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for row in rows:
        table.add_row(*row)
    if copied_files:
        table.add_row("copied", ", ".join(copied_files))
    print_rich(table)


@contextmanager
def write_atomically(target: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `target`, or removed after an error."""
    parent = next(folder for folder in target.absolute().parents if folder.is_dir())
    if not os.access(parent, os.W_OK):
        raise ValueError(f"{target}: {parent} is not writable; expected a writable folder")
    with tempfile.TemporaryDirectory(prefix=".qkv-", dir=parent) as temporary:
        folder = Path(temporary) / "model"
        yield folder
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            target.rmdir()
        folder.rename(target)


def copy_companion_files(
    source: Path, target: Path, patterns: Sequence[str] = COMPANION_FILES
) -> list[str]:
    """Copy the files that belong to the weights and return their names.

    A symbolic link out of the source folder is an error."""
    from qkv.files import resolve_inside

    files = [
        file for pattern in patterns for file in sorted(source.glob(pattern)) if file.is_file()
    ]
    names = [file.relative_to(source) for file in dict.fromkeys(files)]
    for name in names:
        (target / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(resolve_inside((source / name).parent, name.name), target / name)
    return [str(name) for name in names]
