"""Alignment of a generated text with its source: options, a character matrix, and files."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cyclopts import Parameter

from qkv.cli.console import make_console, print_rich
from qkv.cli.flags import BoolFlag, OutputPath
from qkv.cli.folders import check_picture_file
from qkv.cli.tokenizers import show_control_characters
from qkv.staging import write_file

if TYPE_CHECKING:
    from rich.text import Text

    from qkv.tasks.alignment import Alignment

SHADES = {0.0: "·", 0.1: "░", 0.2: "▒", 0.4: "▓", 0.7: "█"}  # minimum weight -> shade
MAX_COLUMN_LABEL = 12  # letters of a source word above its column
MAX_ROW_LABEL = 16  # letters of a target word at its row


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class AlignmentOptions:
    """Cross-attention alignment of the output with the source.

    Parameters
    ----------
    alignment
        print the cross-attention weights between output words and source words
    alignment_layer
        decoder layer of the weights: a number from 0, penultimate, or mean (of all layers)
    save
        write the alignment to this file: .html or .svg
    """

    alignment: BoolFlag = False
    alignment_layer: str | None = None
    save: OutputPath | None = None

    def get_settings(self, inputs: Sequence[str]) -> dict[str, Any]:
        """Return the settings for the task; raise ValueError if the file cannot be written, or is one
        of the inputs."""
        if self.save is not None:
            check_picture_file(self.save, (".html", ".svg"), inputs)
        if not self.alignment and self.save is None:
            if self.alignment_layer is not None:
                raise ValueError(
                    f"--alignment-layer {self.alignment_layer} needs --alignment or --save"
                )
            return {}
        layer = self.alignment_layer or "penultimate"
        is_number = layer.removeprefix("-").isdecimal()
        return {"alignment_layer": int(layer) if is_number else layer}

    def write_file(self, title: str, alignments: Iterable[Alignment], target_name: str) -> None:
        """Write the alignments to the file of --save, if any; report it on stderr."""
        if self.save is None:
            return
        from qkv.pictures.attention import render_svg
        from qkv.pictures.page import render_html

        render = render_html if self.save.suffix.lower() == ".html" else render_svg
        words = [alignment.merge_into_words() for alignment in alignments]
        with write_file(self.save) as temporary:
            temporary.write_text(render(title, words, target_name), encoding="utf-8")
        print(f"wrote {self.save}", file=sys.stderr)


NO_ALIGNMENT = AlignmentOptions()


def print_alignments(alignments: Sequence[Alignment]) -> None:
    """Print alignment matrices; a matrix wider than the screen is split into parts."""
    from rich.text import Text

    width = make_console().width
    for alignment in alignments:
        for lines in render_alignment(alignment.merge_into_words(), width):
            print_rich(Text(), *lines)
    shades = "  ".join(f"{shade_weight(weight)} {weight}" for weight in SHADES if weight)
    print_rich(Text(), Text(f"weights from {shades}", "dim"))


def render_alignment(alignment: Alignment, width: int) -> Iterator[list[Text]]:
    """Yield the parts of a matrix, each a list of lines of at most `width` cells.

    A row is a target word. It ends with the source word of the largest weight, in the part that
    contains its column."""
    from rich.text import Text

    source_labels = [truncate_word(span.text) for span in alignment.source]
    target_labels = [truncate_word(span.text) for span in alignment.target]
    left_width = max((label.cell_len for label in target_labels), default=0)
    right_width = max((label.cell_len for label in source_labels), default=0)
    columns_per_part = max((width - left_width - right_width - len(" 0.00") - 3) // 2, 1)
    num_parts = math.ceil(len(source_labels) / columns_per_part)
    for part in range(num_parts):
        first = len(source_labels) * part // num_parts
        columns = range(first, len(source_labels) * (part + 1) // num_parts)
        headings = stack_letters([alignment.source[column].text for column in columns])
        lines = [Text(" " * (left_width + 1) + heading) for heading in headings]
        for label, weights, best in zip(
            target_labels, alignment.weights, alignment.argmax(), strict=True
        ):
            line = Text(" " * (left_width - label.cell_len)) + label + Text(" ")
            for column in columns:
                weight = weights[column]
                style = "green" if column == best else "dim" if weight < 0.1 else "cyan"
                line.append(shade_weight(weight), style)
            if best is not None and best in columns:
                line = (
                    line + Text("  ") + source_labels[best] + Text(f" {weights[best]:.2f}", "dim")
                )
            lines.append(line)
        yield lines


def truncate_word(word: str) -> Text:
    from rich.text import Text

    text = Text(show_control_characters(word))
    text.truncate(MAX_ROW_LABEL, overflow="ellipsis")
    return text


def shade_weight(weight: float) -> str:
    shade = SHADES[max(minimum for minimum in SHADES if minimum <= weight)]
    return shade * 2 if shade != SHADES[0.0] else f"{shade} "


def stack_letters(words: Sequence[str]) -> list[str]:
    """Return lines of vertical headings: a word per column of two cells, a letter per line."""
    from rich.cells import cell_len, set_cell_size

    columns = []
    for word in map(show_control_characters, words):
        letters: list[str] = []
        for letter in word:  # a combining accent stays with its letter
            if letters and not cell_len(letter):
                letters[-1] += letter
            else:
                letters.append(letter)
        if len(letters) > MAX_COLUMN_LABEL:
            letters = [*letters[: MAX_COLUMN_LABEL - 1], "⋮"]
        columns.append(letters)
    height = max(map(len, columns), default=0)
    padded = [[" "] * (height - len(letters)) + letters for letters in columns]
    return [
        "".join(set_cell_size(letter, 2) for letter in line) for line in zip(*padded, strict=True)
    ]
