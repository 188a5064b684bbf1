"""ResultsTable: an append-only JSONL file with one line per finished cell, and claims on open cells.

A line is appended in one write under a lock, so that several processes may share a table. A claim is a
lock on a file of the cell, which ends with its process. Does not depend on torch."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from qkv.experiments.experiment import Cell
from qkv.validate import shorten_repr

CLAIMS_SUFFIX = ".claims"
ROW_TYPES = {
    "key": str, "measure": str, "coordinates": dict, "metrics": dict, "points": list, "device": str,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What a measure returns: numbers of the cell, and points with coordinates of their own.

    A point is a dict, such as {"length": 20, "bleu": 31.2}; a cell without points is one point."""

    metrics: dict[str, Any]
    points: tuple[dict[str, Any], ...] = ()


class ResultsTable:
    """The finished cells of an experiment, by their keys."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, dict[str, Any]]:
        """Return the rows by key; a later row replaces an earlier one, a torn last line is ignored."""
        rows: dict[str, dict[str, Any]] = {}
        try:
            lines = self.path.read_bytes().decode("utf-8").split("\n")
        except FileNotFoundError:
            return rows
        except UnicodeDecodeError:
            raise ValueError(f"{self.path}: not a results table in UTF-8") from None
        for number, line in enumerate(lines, start=1):
            if not line:
                continue
            try:
                row = parse_row(line)
            except ValueError as error:
                if number < len(lines):
                    raise ValueError(
                        f"{self.path}: line {number} is not a row of a results table ({error}); remove it"
                    ) from None
            else:
                rows[row["key"]] = row
        return rows

    def append(self, row: dict[str, Any]) -> None:
        """Append a row in one write; a torn line before it is removed."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = (json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8")
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        with os.fdopen(descriptor, "rb+", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            content = file.read() or b""
            end = content.rfind(b"\n") + 1
            if end < len(content):
                file.truncate(end)
            file.write(line)
            os.fsync(file.fileno())

    @contextmanager
    def claim(self, cell: Cell) -> Iterator[bool]:
        """Yield whether this process may measure the cell; another process may be at work on it."""
        path = self.path.with_suffix(CLAIMS_SUFFIX) / cell.key
        new_folders = [parent for parent in path.parents if not parent.exists()]
        with open_claim(path) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            try:
                # The cell may have been finished since the table was read.
                yield cell.key not in self.read()
            finally:
                path.unlink(missing_ok=True)
                for folder in new_folders or [path.parent]:
                    with suppress(OSError):  # not empty
                        folder.rmdir()


def parse_row(line: str) -> dict[str, Any]:
    """Return the row of a line; raise ValueError unless it has the columns that a figure needs."""
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError("not an object")
    for name, expected in ROW_TYPES.items():
        if not isinstance(row.get(name), expected):
            problem = f"is {shorten_repr(row[name])}" if name in row else "is missing"
            raise ValueError(f"{name} {problem}")
    if not all(isinstance(point, dict) for point in row["points"]):
        raise ValueError(f"points is {shorten_repr(row['points'])}")
    return row


def open_claim(path: Path) -> TextIO:
    """Open the file of a claim; another process may remove its empty folder at the same time."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            return path.open("a")
