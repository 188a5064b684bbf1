"""Model folders that commands write, and their printed summary. Does not depend on commands."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
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
# Files that are copied with a model for another runtime, whose format has its own config and tokenizer.
RUNTIME_COMPANION_FILES = (
    "preprocessor_config.json processor_config.json *.jinja LICENSE* README.md".split()
)
# Files of the base model that are copied when an adapter is merged into it.
BASE_COMPANION_FILES = (
    "generation_config.json preprocessor_config.json processor_config.json LICENSE*".split()
)


def check_picture_file(save: Path, suffixes: Sequence[str], inputs: Sequence[str] = ()) -> None:
    """Raise ValueError if the file of --save cannot be written, ends with another suffix, or is one
    of the inputs. An older picture is replaced."""
    if save.suffix.lower() not in suffixes:
        expected = " or ".join(suffixes)
        if save.suffix.lower() == ".png":
            raise ValueError(f"--save {save}: PNG is not supported; expected {expected}")
        raise ValueError(f"--save {save}: expected a file name that ends with {expected}")
    if not save.parent.is_dir() or (save.exists() and not save.is_file()):
        raise ValueError(f"--save {save}: expected a file in an existing folder")
    if save.exists() and any(os.path.isfile(name) and save.samefile(name) for name in inputs):
        raise ValueError(f"--save {save}: the same file as the input; expected another file")


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
