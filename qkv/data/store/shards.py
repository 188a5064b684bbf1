"""Shards: texts as token ids in files, mapped into memory and read by document or by place. Knows no text.

folder/
  shards.json         what they were made from, and what each shard holds; written last
  00000.tokens.bin    ids of the field `tokens`, little-endian, one document after the other
  00000.tokens.idx    where each document starts, and the end: int64, one more than documents
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FORMAT = 1
INDEX = "shards.json"
STARTS = np.dtype("<i8")
Ids = NDArray[Any]  # uint16, or uint32 where the vocabulary needs it


def dtype(size: int) -> np.dtype[Any]:
    """The narrowest type for ids below `size`."""
    return np.dtype("<u2" if size <= 2**16 else "<u4")


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one shard holds."""

    documents: int
    tokens: dict[str, int]  # by field


@dataclass(frozen=True, kw_only=True)
class Index:
    """What a folder of shards holds, and what it was made from."""

    made_from: dict[str, Any]
    fields: dict[str, int]  # the number of different ids, by field
    shard_tokens: int
    complete: bool = False
    parts: tuple[Part, ...] = ()
    format: int = FORMAT

    @property
    def documents(self) -> int:
        return sum(part.documents for part in self.parts)

    @property
    def tokens(self) -> int:
        return sum(sum(part.tokens.values()) for part in self.parts)

    @staticmethod
    def read(folder: Path) -> "Index | None":
        """The index of a folder, if it has one."""
        path = folder / INDEX
        try:
            held = json.loads(path.read_bytes())
            if held["format"] != FORMAT:
                raise ValueError(f"format {held['format']!r}, expected {FORMAT}")
            index = Index(**held | {"parts": tuple(Part(**part) for part in held["parts"])})
            if any(part.tokens.keys() != index.fields.keys() for part in index.parts):
                raise ValueError("a shard lacks a field")
            return index
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, KeyError, TypeError, ValueError) as error:
            cause = " ".join(str(error).split())[:100]
            raise ValueError(
                f"{path}: not an index of shards ({cause}); remove it to make them anew"
            ) from None

    def write(self, folder: Path) -> None:
        """Put this in the place of the old index, which stays until the new one is whole."""
        temporary = folder / f"{INDEX}.tmp"
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(asdict(self), file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(folder / INDEX)
        sync(folder)

    def whole(self, folder: Path) -> "Index":
        """The same with only the shards up to the first one that is not there as it should be."""
        good = 0
        while good < len(self.parts) and not problems(folder, good, self):
            good += 1
        return self if good == len(self.parts) else replace(self, parts=self.parts[:good], complete=False)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def names(number: int, field: str) -> tuple[str, str]:
    """The file of ids and the file of starts."""
    return f"{number:05}.{field}.bin", f"{number:05}.{field}.idx"


def problems(folder: Path, number: int, index: Index) -> list[str]:
    """What is wrong with the files of a shard, by their sizes."""
    part = index.parts[number]
    found = []
    for field, size in index.fields.items():
        sizes = (part.tokens[field] * dtype(size).itemsize, (part.documents + 1) * STARTS.itemsize)
        for name, expected in zip(names(number, field), sizes, strict=True):
            path = folder / name
            if not path.exists():
                found.append(f"{name} is missing")
            elif path.stat().st_size != expected:
                found.append(f"{name} has {path.stat().st_size} bytes, expected {expected}")
    return found


class Shards:
    """Documents of token ids, in the order they were read; each may have several fields (source, target)."""

    def __init__(self, folder: Path, index: Index) -> None:
        self.folder, self.index = folder, index
        self._documents = np.cumsum([0, *(part.documents for part in index.parts)])  # (shards + 1,)
        self._tokens = {
            field: np.cumsum([0, *(part.tokens[field] for part in index.parts)]) for field in index.fields
        }
        self._map = cache(self._mapped)

    @staticmethod
    def open(folder: str | os.PathLike[str]) -> "Shards":
        """The shards in a folder; ValueError if they are not finished, cut or missing."""
        home = Path(folder)
        index = Index.read(home)
        if index is None:
            raise ValueError(f"{home}: no {INDEX}; expected a folder of token shards; is the path right?")
        wrong = [each for number in range(len(index.parts)) for each in problems(home, number, index)]
        if wrong:
            listed = f"{'; '.join(wrong[:5])}{' ...' if wrong[5:] else ''}"
            raise ValueError(f"{home}: {listed}; the files are cut or lost: prepare them again, or copy them")
        if not index.complete:
            found = f"{len(index.parts)} shards, not the last"
            raise ValueError(f"{home}: {found}; preparing them was interrupted: run it again to go on")
        return Shards(home, index)

    def __reduce__(self) -> tuple[Any, ...]:
        return Shards.open, (self.folder,)  # another process maps the files itself

    @property
    def fields(self) -> Mapping[str, int]:
        """The number of different ids of each field, by its name."""
        return self.index.fields

    def __len__(self) -> int:
        """The number of documents."""
        return int(self._documents[-1])

    def tokens(self, field: str = "tokens") -> int:
        """The number of tokens of all documents."""
        return int(self._starts(field)[-1])

    def lengths(self, field: str = "tokens") -> NDArray[np.int64]:
        """The number of tokens of every document."""
        self._starts(field)
        return np.concatenate([np.diff(self._map(n, field)[1]) for n in range(len(self.index.parts))])

    def document(self, number: int, field: str = "tokens") -> Ids:
        """One document, as a view of the file."""
        self._starts(field)
        if not 0 <= number < len(self):
            raise IndexError(f"document {number}, expected 0 to {len(self) - 1}")
        shard = int(np.searchsorted(self._documents, number, side="right")) - 1
        ids, starts = self._map(shard, field)
        place = number - int(self._documents[shard])
        return ids[starts[place] : starts[place + 1]]

    def record(self, number: int) -> dict[str, Ids]:
        """All fields of one document."""
        return {field: self.document(number, field) for field in self.fields}

    def slice(self, start: int, stop: int, field: str = "tokens") -> Ids:
        """The tokens from `start` up to `stop`, all documents being one row; a view within one shard."""
        ends = self._starts(field)
        if not 0 <= start <= stop <= ends[-1]:
            raise IndexError(f"tokens {start} to {stop}, expected a range within 0 to {ends[-1]}")
        pieces = []
        shard = int(np.searchsorted(ends, start, side="right")) - 1
        while start < stop:
            first, end = int(ends[shard]), min(stop, int(ends[shard + 1]))
            pieces.append(self._map(shard, field)[0][start - first : end - first])
            start, shard = end, shard + 1
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate([np.empty(0, dtype(self.fields[field])), *pieces])

    def _starts(self, field: str) -> NDArray[np.int64]:
        if field not in self._tokens:
            raise ValueError(f"{self.folder}: no field {field!r}; the shards hold {', '.join(self.fields)}")
        return self._tokens[field]

    def _mapped(self, number: int, field: str) -> tuple[Ids, NDArray[np.int64]]:
        bodies, starts = (self.folder / name for name in names(number, field))
        kind = dtype(self.fields[field])
        empty = not self.index.parts[number].tokens[field]  # nothing cannot be mapped
        ids = np.empty(0, kind) if empty else np.memmap(bodies, kind, mode="r")
        return np.asarray(ids), np.asarray(np.memmap(starts, STARTS, mode="r"))  # plain views slice faster
