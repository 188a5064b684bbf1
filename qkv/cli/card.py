"""The card of a model: the README.md of its folder, as the screen can show it."""

from __future__ import annotations

import re
from pathlib import Path

from qkv.builtin import find_builtin, is_builtin
from qkv.cli.console import say
from qkv.cli.output import as_json as print_json

FRONT = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)  # what the hub reads, not people


def tell_card(model: str, as_json: bool = False) -> None:
    """Prints what a model's folder says of it."""
    from rich.markdown import Markdown

    from qkv.text.files import read_text

    folder = found(model)
    file = folder / "README.md"
    if not file.is_file():
        raise ValueError(f"{folder}: no README.md in it, so that nothing is told about this model")
    text = "".join(letter for letter in read_text(file) if letter.isprintable() or letter in "\n\t")
    if as_json:
        return print_json([{"model": str(folder), "card": text}])
    say(Markdown(FRONT.sub("", text), hyperlinks=False))


def found(model: str) -> Path:
    """The folder of a model. What is on this machine needs no torch to be found."""
    if model and Path(model).exists():
        return Path(model)
    if is_builtin(model):
        return find_builtin(model)
    from qkv.model.hub import find

    return find(model, None)
