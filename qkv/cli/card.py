"""The card of a model: the README.md of its folder, as the screen can show it."""

from __future__ import annotations

import re

from qkv.cli.screen import say
from qkv.cli.told import as_json as print_json

FRONT = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)  # what the hub reads, not people


def tell_card(model: str, as_json: bool = False) -> None:
    """Prints what a model's folder says of it."""
    from rich.markdown import Markdown

    from qkv.model import find
    from qkv.weights.files import read_text

    folder = find(model, None)
    file = folder / "README.md"
    if not file.is_file():
        raise ValueError(f"{folder}: no README.md in it, so that nothing is told about this model")
    text = "".join(letter for letter in read_text(file) if letter.isprintable() or letter in "\n\t")
    if as_json:
        return print_json([{"model": str(folder), "card": text}])
    say(Markdown(FRONT.sub("", text), hyperlinks=False))
