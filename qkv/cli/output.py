"""What commands tell of results: tables for people, lines of JSON for machines. Knows no task."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from qkv.cli.console import say
from qkv.cli.tokenizers import visible

MANY = 2000  # rows that are laid out in a second
NUMBERS = ("#", "gap", "score", "from", "to", "perplexity", "log-probability", "tokens")


def as_json(rows: Iterable[dict[str, Any]]) -> None:
    for row in rows:
        print(json.dumps(row, ensure_ascii=False))


def plain(result: Any) -> dict[str, Any]:
    """A result as a dict; the best of several have no best of their own."""
    found = asdict(result)
    return found | {"best": [{k: v for k, v in one.items() if k != "best"} for one in found["best"]]}


def told(machine: bool, given: Sequence[str], found: Sequence[Any], name: str, titles: str, row: Any) -> None:
    """What was found in every text: several texts have numbers."""
    if machine:
        return as_json(
            {"text": text, name: [asdict(one) for one in every]}
            for text, every in zip(given, found, strict=True)
        )
    rows = [(number, *row(one)) for number, every in enumerate(found, 1) for one in every]
    alone = len(given) == 1
    table(titles if alone else f"# {titles}", [each[1:] if alone else each for each in rows])


def score(value: float) -> str:
    return f"{value:.4f}"


def table(titles: str, rows: Iterable[Sequence[object]]) -> None:
    """Rows under titles; numbers stand to the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    rows = list(rows)
    if not rows:
        return print("nothing found")
    if len(rows) > MANY:
        return print_plainly(titles.split(), rows)
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    for title in titles.split():
        right = title in NUMBERS
        shown.add_column(title, justify="right" if right else "left", no_wrap=right)
    for row in rows:
        shown.add_row(*(Text(visible(str(cell))) for cell in row))
    say(shown)


def print_plainly(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """The same as plain lines, a cell never in two: quick, for more rows than people read."""
    lines = [[*titles], *([visible(str(cell)) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = zip(line, widths, titles, strict=True)
        print("  ".join(c.rjust(width) if t in NUMBERS else c.ljust(width) for c, width, t in cells).rstrip())
