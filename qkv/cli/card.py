"""Model cards: the README.md of a model folder, rendered for the terminal."""

from __future__ import annotations

import re
from pathlib import Path

from qkv.builtin import find_builtin, is_builtin
from qkv.cli.console import print_rich
from qkv.cli.output import print_json_lines

FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)  # metadata for the hub


def print_model_card(model: str, as_json: bool = False) -> None:
    """Print the model card of a folder, a hub id or a built-in model."""
    from rich.markdown import Markdown

    from qkv.text.files import read_utf8_text

    folder = find_card_folder(model)
    file = folder / "README.md"
    if not file.is_file():
        raise ValueError(f"{folder}: no model card; expected a README.md in the folder")
    text = "".join(
        letter for letter in read_utf8_text(file) if letter.isprintable() or letter in "\n\t"
    )
    if as_json:
        return print_json_lines([{"model": str(folder), "card": text}])
    print_rich(Markdown(FRONT_MATTER.sub("", text), hyperlinks=False))


def find_card_folder(model: str) -> Path:
    """Return the folder of a model; torch is imported only for a hub id."""
    if model and Path(model).exists():
        return Path(model)
    if is_builtin(model):
        return find_builtin(model)
    from qkv.model.hub import find_model_folder

    return find_model_folder(model, None)
