"""What commands are given: texts as arguments, in files, or from standard input; numbers. Knows no task."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter, Token

FILES = tuple(".txt .md .csv .tsv .json .jsonl .gz .xz .bz2".split())


def whole(_: object, tokens: Sequence[Token]) -> int:
    """A whole number as it is written, where half of one would be rounded in silence."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"{tokens[0].value!r}, expected a whole number") from None


Whole = Annotated[int, Parameter(converter=whole)]


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
    """Is it a file, not a text? A folder is a mistake, and so is a name as of a file that is not there."""
    if given == "-" or os.path.isfile(given):
        return True
    if os.path.isdir(given):
        raise ValueError(f"{given}: a folder; expected a text, or a file with texts")
    if given.startswith("--") or (given.endswith(FILES) and not any(map(str.isspace, given))):
        what = "unknown option" if given.startswith("--") else "no such file"
        raise ValueError(f"{given}: {what}; expected a text, or a file with texts")
    return False
