"""Token shards: memory-mapped files of token ids, read by document or token range.

folder/
  shards.json         the index: provenance, and the size of each shard; written last
  00000.tokens.bin    ids of the field `tokens`, little-endian, one document after another
  00000.tokens.idx    int64 offsets of the documents, and the end
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

from qkv.files import sync_file

SHARD_FORMAT_VERSION = 3
SHARD_INDEX_FILE = "shards.json"
OFFSET_DTYPE = np.dtype("<i8")
TokenIdArray = NDArray[Any]  # uint8, uint16 or uint32, by the size of the vocabulary


def choose_id_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the smallest dtype for ids below `vocab_size`."""
    if vocab_size <= 2**8:  # pixels, labels, bytes
        return np.dtype("<u1")
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


@dataclass(frozen=True, kw_only=True)
class ShardInfo:
    """The size of one shard."""

    num_documents: int
    num_tokens: dict[str, int]  # by field


@dataclass(frozen=True, kw_only=True)
class ShardIndex:
    """The content of shards.json."""

    provenance: dict[str, Any]  # the source of the shards
    field_sizes: dict[str, int]  # number of different ids, by field
    shard_tokens: int
    is_complete: bool = False
    shards: tuple[ShardInfo, ...] = ()
    format: int = SHARD_FORMAT_VERSION

    @property
    def num_documents(self) -> int:
        return sum(shard.num_documents for shard in self.shards)

    @property
    def num_tokens(self) -> int:
        return sum(sum(shard.num_tokens.values()) for shard in self.shards)

    @staticmethod
    def read(folder: Path) -> "ShardIndex | None":
        """Read the index of a folder; return None if it does not exist."""
        path = folder / SHARD_INDEX_FILE
        try:
            values = json.loads(path.read_bytes())
            if values["format"] != SHARD_FORMAT_VERSION:
                raise ValueError(f"format {values['format']!r}, expected {SHARD_FORMAT_VERSION}")
            shards = tuple(ShardInfo(**shard) for shard in values["shards"])
            index = ShardIndex(**values | {"shards": shards})
            if any(shard.num_tokens.keys() != index.field_sizes.keys() for shard in index.shards):
                raise ValueError("a shard lacks a field")
            return index
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, KeyError, TypeError, ValueError) as error:
            cause = " ".join(str(error).split())[:100]
            raise ValueError(
                f"{path}: not an index of token shards ({cause}); remove it to prepare them again"
            ) from None

    def write(self, folder: Path) -> None:
        """Replace the index of a folder atomically."""
        temporary = folder / f"{SHARD_INDEX_FILE}.tmp"
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(asdict(self), file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(folder / SHARD_INDEX_FILE)
        sync_file(folder)

    def drop_invalid_shards(self, folder: Path) -> "ShardIndex":
        """Return the index up to the first shard whose files are missing or have the wrong size."""
        num_valid = 0
        while num_valid < len(self.shards) and not find_shard_problems(folder, num_valid, self):
            num_valid += 1
        if num_valid == len(self.shards):
            return self
        return replace(self, shards=self.shards[:num_valid], is_complete=False)


def get_shard_file_names(shard_index: int, field: str) -> tuple[str, str]:
    """Return the file of ids and the file of offsets."""
    return f"{shard_index:05}.{field}.bin", f"{shard_index:05}.{field}.idx"


def find_shard_problems(folder: Path, shard_index: int, index: ShardIndex) -> list[str]:
    """Return the missing files of a shard and those of the wrong size, as messages."""
    shard = index.shards[shard_index]
    problems = []
    for field, size in index.field_sizes.items():
        expected_sizes = (
            shard.num_tokens[field] * choose_id_dtype(size).itemsize,
            (shard.num_documents + 1) * OFFSET_DTYPE.itemsize,
        )
        names = get_shard_file_names(shard_index, field)
        for name, expected in zip(names, expected_sizes, strict=True):
            path = folder / name
            if not path.exists():
                problems.append(f"{name} is missing")
            elif path.stat().st_size != expected:
                problems.append(f"{name} has {path.stat().st_size} bytes, expected {expected}")
    return problems


class Shards:
    """Documents of token ids in reading order, with one or more fields (source, target)."""

    def __init__(self, folder: Path, index: ShardIndex) -> None:
        self.folder = folder
        self.index = index
        num_documents = [shard.num_documents for shard in index.shards]
        self._document_offsets = np.cumsum([0, *num_documents])  # (shards + 1,)
        self._token_offsets = {
            field: np.cumsum([0, *(shard.num_tokens[field] for shard in index.shards)])
            for field in index.field_sizes
        }
        self._memory_map = cache(self._open_memory_map)

    @staticmethod
    def open(folder: str | os.PathLike[str]) -> "Shards":
        """Open the shards of a folder; raise ValueError if they are unfinished, damaged or missing."""
        path = Path(folder)
        index = ShardIndex.read(path)
        if index is None:
            raise ValueError(
                f"{path}: no {SHARD_INDEX_FILE}; expected a folder of token shards; is the path right?"
            )
        problems = [
            problem
            for shard_index in range(len(index.shards))
            for problem in find_shard_problems(path, shard_index, index)
        ]
        if problems:
            summary = f"{'; '.join(problems[:5])}{' ...' if problems[5:] else ''}"
            raise ValueError(
                f"{path}: {summary}; the files are truncated or lost: prepare them again, or copy them"
            )
        if not index.is_complete:
            raise ValueError(
                f"{path}: only the first {len(index.shards)} shards; "
                "preparation was interrupted: run it again to continue"
            )
        return Shards(path, index)

    def __reduce__(self) -> tuple[Any, ...]:
        return Shards.open, (self.folder,)  # each process maps the files itself

    @property
    def field_sizes(self) -> Mapping[str, int]:
        """The number of different ids of each field."""
        return self.index.field_sizes

    def __len__(self) -> int:
        """Return the number of documents."""
        return int(self._document_offsets[-1])

    def count_tokens(self, field: str = "tokens") -> int:
        """Return the number of tokens of all documents."""
        return int(self._get_token_offsets(field)[-1])

    def lengths(self, field: str = "tokens") -> NDArray[np.int64]:
        """Return the number of tokens of every document (N,)."""
        self._get_token_offsets(field)
        return np.concatenate(
            [np.diff(self._memory_map(i, field)[1]) for i in range(len(self.index.shards))]
        )

    def get_document(self, document_index: int, field: str = "tokens") -> TokenIdArray:
        """Return a document as a view of the file."""
        self._get_token_offsets(field)
        if not 0 <= document_index < len(self):
            raise IndexError(f"document {document_index}, expected 0 to {len(self) - 1}")
        shard = int(np.searchsorted(self._document_offsets, document_index, side="right")) - 1
        ids, offsets = self._memory_map(shard, field)
        i = document_index - int(self._document_offsets[shard])
        return ids[offsets[i] : offsets[i + 1]]

    def get_fields(self, document_index: int) -> dict[str, TokenIdArray]:
        """Return all fields of a document."""
        return {field: self.get_document(document_index, field) for field in self.field_sizes}

    def get_token_range(self, start: int, stop: int, field: str = "tokens") -> TokenIdArray:
        """Return the tokens from `start` to `stop` of all documents as one stream.

        The range is a view of the file if it is within one shard."""
        offsets = self._get_token_offsets(field)
        if not 0 <= start <= stop <= offsets[-1]:
            raise IndexError(
                f"tokens {start} to {stop}, expected a range within 0 to {offsets[-1]}"
            )
        parts = []
        shard = int(np.searchsorted(offsets, start, side="right")) - 1
        while start < stop:
            first = int(offsets[shard])
            end = min(stop, int(offsets[shard + 1]))
            parts.append(self._memory_map(shard, field)[0][start - first : end - first])
            start = end
            shard += 1
        if len(parts) == 1:
            return parts[0]
        return np.concatenate([np.empty(0, choose_id_dtype(self.field_sizes[field])), *parts])

    def _get_token_offsets(self, field: str) -> NDArray[np.int64]:
        if field not in self._token_offsets:
            raise ValueError(
                f"{self.folder}: no field {field!r}; the fields are {', '.join(self.field_sizes)}"
            )
        return self._token_offsets[field]

    def _open_memory_map(
        self, shard_index: int, field: str
    ) -> tuple[TokenIdArray, NDArray[np.int64]]:
        id_file, offset_file = get_shard_file_names(shard_index, field)
        dtype = choose_id_dtype(self.field_sizes[field])
        is_empty = not self.index.shards[shard_index].num_tokens[field]  # cannot be memory-mapped
        ids = np.empty(0, dtype) if is_empty else np.memmap(self.folder / id_file, dtype, mode="r")
        offsets = np.memmap(self.folder / offset_file, OFFSET_DTYPE, mode="r")
        return np.asarray(ids), np.asarray(offsets)  # slicing arrays is faster than memmaps
