"""The tables of docs/long-texts.md: default and values of `overflow` by task and by objective."""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.conftest import ROOT


class OverflowRow(NamedTuple):
    default: str | None  # None: no text is too long
    modes: tuple[str, ...]


def read_overflow_rows(heading: str) -> dict[str, OverflowRow]:
    """Return the rows of the table below a heading, by the names in their first column."""
    text = (ROOT / "docs" / "long-texts.md").read_text(encoding="utf-8")
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows: dict[str, OverflowRow] = {}
    for line in section.splitlines():
        if line.startswith("| `"):
            names, default, modes = line.split("|")[1:4]
            match = re.search(r"`(\w+)`", default)
            row = OverflowRow(match and match[1], tuple(re.findall(r"`(\w+)`", modes)))
            rows |= dict.fromkeys(re.findall(r"`([\w-]+)`", names), row)
    return rows
