"""What commands are given to read: texts as arguments, in files, or from standard input. Knows no task."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

FILES = tuple(".txt .md .csv .tsv .json .jsonl .gz .xz .bz2".split())


def read_texts(given: Sequence[str]) -> list[str]:
    """The texts of arguments: each is one, or names a file that has one a line."""
    from qkv.data.lines import File

    if not given and sys.stdin.isatty():
        raise ValueError("no text; expected one, a file with one a line, or - for standard input")
    found: list[str] = []
    for one in given or ["-"]:
        if not is_file(one):
            found.append(one)
            continue
        file = File(one)
        for number, line in file.lines():
            if not line.strip():
                raise ValueError(f"{file.place(number)}: empty, expected a text in each line; leave it out")
            found.append(line)
    return found


def read_whole(given: str) -> str:
    """A text, or all of a file as one."""
    from qkv.data.lines import File

    if given == "-" and sys.stdin.isatty():
        raise ValueError("no text; expected one, or a file")
    return File(given).text().removesuffix("\n") if is_file(given) else given


def is_file(given: str) -> bool:
    """Is it a file, not a text? One that looks like a file's name, and is none, is a mistake."""
    if given == "-" or os.path.isfile(given):
        return True
    if given.startswith("--") or (given.endswith(FILES) and not any(map(str.isspace, given))):
        what = "unknown option" if given.startswith("--") else "no such file"
        raise ValueError(f"{given}: {what}; expected a text, or a file with texts")
    return False
