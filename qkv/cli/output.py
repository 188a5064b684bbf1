"""Output of results as text, tables or JSON lines. Does not depend on tasks.

A terminal executes escape sequences, which a model or a file may contain: they are removed from what is
printed on a terminal. Files and pipes receive the text as it is."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, fields
from typing import Any

from qkv.cli.console import print_rich
from qkv.cli.tokenizers import show_control_characters

MAX_RICH_ROWS = 2000  # rich needs about a second for this many rows
# A control sequence, a string for the terminal such as its title, any other escape sequence, and all
# other control characters but tab and line feed.
ESCAPE_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[PX\]^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
NUMERIC_TITLES = ("#", "mask", "score", "start", "end", "perplexity", "log-probability", "tokens")


def remove_escape_sequences(text: str) -> str:
    """Return a text without escape sequences and control characters but tab and line feed."""
    return ESCAPE_SEQUENCE.sub("", text)


def print_text(text: str, end: str = "\n") -> None:
    """Print a text at once, on a terminal without escape sequences."""
    print(remove_escape_sequences(text) if sys.stdout.isatty() else text, end=end, flush=True)


def print_json_lines(rows: Iterable[dict[str, Any]]) -> None:
    for row in rows:
        line = json.dumps(row, ensure_ascii=False)
        # JSON escapes the control characters of ASCII; these are the others.
        print(re.sub("[\x7f-\x9f]", lambda match: f"\\u{ord(match[0]):04x}", line))


def result_to_dict(result: Any, result_class: type) -> dict[str, Any]:
    """Return a result as a dict; its candidates do not contain candidates.

    None, the result of a blank text, has empty texts, empty lists, and null for numbers."""
    if result is None:
        types = {item.name: str(item.type) for item in fields(result_class)}
        return {
            name: [] if name_of_type.startswith("tuple") else "" if name_of_type == "str" else None
            for name, name_of_type in types.items()
        }
    row = asdict(result)
    if "candidates" not in row:
        return row
    row["candidates"] = [
        {name: value for name, value in candidate.items() if name != "candidates"}
        for candidate in row["candidates"]
    ]
    return row


def print_results(
    as_json: bool,
    texts: Sequence[str],
    results: Sequence[Any],
    key: str,
    titles: str,
    make_row: Callable[[Any], Sequence[object]],
    *,
    input_key: str = "text",
) -> None:
    """Print a list of items per text; several texts are numbered, a blank text has no items."""
    results = [items or () for items in results]
    if as_json:
        return print_json_lines(
            {input_key: text, key: [asdict(item) for item in items]}
            for text, items in zip(texts, results, strict=True)
        )
    rows = [(number, *make_row(item)) for number, items in enumerate(results, 1) for item in items]
    if len(texts) == 1:
        return print_table(titles, [row[1:] for row in rows])
    print_table(f"# {titles}", rows)


def format_score(value: float) -> str:
    return f"{value:.4f}"


def print_table(titles: str, rows: Iterable[Sequence[object]]) -> None:
    """Print rows under titles, numbers right-aligned."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    rows = list(rows)
    if not rows:
        return print("nothing found")
    if len(rows) > MAX_RICH_ROWS:
        return print_plain_table(titles.split(), rows)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    for title in titles.split():
        is_numeric = title in NUMERIC_TITLES
        table.add_column(title, justify="right" if is_numeric else "left", no_wrap=is_numeric)
    for row in rows:
        table.add_row(*(Text(show_control_characters(str(cell))) for cell in row))
    print_rich(table)


def print_plain_table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print the same table without rich, one line per row: fast for many rows."""
    lines = [[*titles], *([show_control_characters(str(cell)) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [
            cell.rjust(width) if title in NUMERIC_TITLES else cell.ljust(width)
            for cell, width, title in zip(line, widths, titles, strict=True)
        ]
        print("  ".join(cells).rstrip())
