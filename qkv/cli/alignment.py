"""What a text was made of: the options that ask for it, a matrix of characters, and files. Knows no model."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from qkv.cli.console import console, say
from qkv.cli.tokenizers import visible

if TYPE_CHECKING:
    from rich.text import Text

    from qkv.tasks.alignment import Alignment

SHADES = {0.0: "·", 0.1: "░", 0.2: "▒", 0.4: "▓", 0.7: "█"}  # from this weight on
TALLEST, LONGEST = 12, 16  # letters of a word above a column, and beside a row


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Aligned:
    """What the words were made of.

    Parameters
    ----------
    alignment
        show how much each word looked at each word of the source
    layer
        the decoder's layer that tells it: a number from 0 on, penultimate, or mean: all of them
    page
        write it as a page: a file .html
    picture
        write it as a picture: a file .svg
    """

    alignment: Annotated[bool, Parameter(negative="")] = False
    layer: str | None = None
    page: Path | None = None
    picture: Path | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """What the task is asked for; a file that cannot be written is said before."""
        for name, path, suffix in (("page", self.page, ".html"), ("picture", self.picture, ".svg")):
            if path is not None and path.suffix != suffix:
                raise ValueError(f"--{name} {path}: expected a name that ends in {suffix}")
            if path is not None and (path.is_dir() or not path.parent.is_dir()):
                raise ValueError(f"--{name} {path}: expected a file, in a folder that is there")
        if not (self.alignment or self.page or self.picture):
            if self.layer is not None:
                raise ValueError(f"--layer {self.layer}: expected --alignment, --page or --picture too")
            return {}
        layer = self.layer or "penultimate"
        return {"alignment": int(layer) if layer.removeprefix("-").isdecimal() else layer}

    def write(self, title: str, found: Iterable[Alignment]) -> None:
        """The files that are asked for; that they are there is said beside the results."""
        if self.page is None and self.picture is None:
            return
        from qkv.view.page import page
        from qkv.view.pictures import picture

        words = [one.words() for one in found]
        for path, made in ((self.page, page), (self.picture, picture)):
            if path is not None:
                path.write_text(made(title, words), encoding="utf-8")
                print(f"wrote {path}", file=sys.stderr)


UNASKED = Aligned()


def show(found: Sequence[Alignment]) -> None:
    """Words and what they looked at, on the screen; in parts where it is too narrow."""
    from rich.text import Text

    width = console().width
    for part in (part for one in found for part in parts(one.words(), width)):
        say(Text(), *part)
    shades = "  ".join(f"{shaded(weight)} {weight}" for weight in SHADES if weight)
    say(Text(), Text(f"weights from {shades}", "dim"))


def parts(matrix: Alignment, width: int) -> Iterator[list[Text]]:
    """Lines of so many columns as fit: a row for each word of the target, which ends with the word of the
    source that it looked at most, where that is among the columns."""
    from rich.text import Text

    names = [fitted(piece.text) for piece in matrix.source]
    rows = [fitted(piece.text) for piece in matrix.target]
    left, right = (max((each.cell_len for each in some), default=0) for some in (rows, names))
    room = max((width - left - right - len(" 0.00") - 3) // 2, 1)
    count = math.ceil(len(names) / room)
    for part in range(count):
        columns = range(len(names) * part // count, len(names) * (part + 1) // count)
        heads = upright([matrix.source[column].text for column in columns])
        lines = [Text(" " * (left + 1) + head) for head in heads]
        for name, weights, best in zip(rows, matrix.weights, matrix.best(), strict=True):
            line = Text(" " * (left - name.cell_len)) + name + Text(" ")
            for column in columns:
                weak = weights[column] < 0.1
                line.append(shaded(weights[column]), "green" if column == best else "dim" if weak else "cyan")
            if best is not None and best in columns:
                line = line + Text("  ") + names[best] + Text(f" {weights[best]:.2f}", "dim")
            lines.append(line)
        yield lines


def fitted(word: str) -> Text:
    from rich.text import Text

    text = Text(visible(word))
    text.truncate(LONGEST, overflow="ellipsis")
    return text


def shaded(weight: float) -> str:
    shade = SHADES[max(least for least in SHADES if least <= weight)]
    return shade * 2 if shade != SHADES[0.0] else f"{shade} "


def upright(words: Sequence[str]) -> list[str]:
    """Lines in which words stand side by side, a letter below the other, two places each."""
    from rich.cells import cell_len, set_cell_size

    columns = []
    for word in map(visible, words):
        letters: list[str] = []
        for letter in word:  # an accent that is a character of its own stays with its letter
            if letters and not cell_len(letter):
                letters[-1] += letter
            else:
                letters.append(letter)
        columns.append(letters if len(letters) <= TALLEST else [*letters[: TALLEST - 1], "⋮"])
    tall = max(map(len, columns), default=0)
    filled = [[" "] * (tall - len(letters)) + letters for letters in columns]
    return ["".join(set_cell_size(letter, 2) for letter in line) for line in zip(*filled, strict=True)]
