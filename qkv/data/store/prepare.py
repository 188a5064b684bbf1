"""Preparation of token shards: items are encoded in one pass by several processes; an interrupted
preparation is resumed. Does not depend on tokenizers: the caller passes the encode function.
"""

import fcntl
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from qkv.data.store.shards import (
    OFFSET_DTYPE,
    ShardIndex,
    ShardInfo,
    Shards,
    choose_id_dtype,
    get_shard_file_names,
)
from qkv.data.store.workers import map_in_order
from qkv.files import sync_file

SHARD_LOCK_FILE = "lock"
SHARD_FILE_PATTERN = re.compile(r"\d{5,}\.\w+\.(bin|idx)(\.tmp)?")
# Limits of a batch. Shards end at the ends of batches, so these limits are part of the format.
MAX_BATCH_ITEMS = 1024
MAX_BATCH_CHARACTERS = 2**20

Item = TypeVar("Item")
ShardRow = Mapping[str, Sequence[int] | NDArray[Any]]
EncodeFunction = Callable[[list[Item]], Sequence[ShardRow]]
ShardProgress = Callable[[int, int], None]
# By field: the ids of all rows, and the length of each row.
EncodedBatch = dict[str, tuple[NDArray[Any], NDArray[np.int64]]]


def prepare_shards(
    items: Iterable[Item],
    encode: EncodeFunction[Item],
    folder: str | os.PathLike[str],
    *,
    field_sizes: Mapping[str, int],
    provenance: Mapping[str, object],
    shard_tokens: int = 2**26,
    num_workers: int = 0,
    progress: ShardProgress = lambda documents, tokens: None,
) -> Shards:
    """Encode items (texts or records) to shards; finished shards of the same items are reused.

    `encode` maps a list of items to one row each, token ids by field. `field_sizes` is the number of
    different ids of each field. `provenance` describes the items and `encode` (fingerprints,
    settings): if it differs from that of the existing shards, they are prepared again. The files are
    identical for any number of workers and after any number of interruptions. `progress` receives
    the number of documents and tokens so far.
    """
    path = Path(folder)
    expected = ShardIndex(
        provenance=json.loads(json.dumps(provenance)),  # as it is read back from the file
        field_sizes=dict(field_sizes),
        shard_tokens=shard_tokens,
    )
    _check_settings(expected, num_workers)
    if _load_finished_index(path, expected).is_complete:
        return Shards.open(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with _lock_folder(path):
            index = _load_finished_index(path, expected)
            if not index.is_complete:
                index.write(path)
                _remove_unfinished(path, len(index.shards))
                _build_shards(path, index, items, encode, num_workers, progress)
    except OSError as error:
        raise OSError(f"{path}: not finished; complete shards are kept: {error}") from error
    return Shards.open(path)


def _check_settings(index: ShardIndex, num_workers: int) -> None:
    sizes = index.field_sizes
    if not sizes or not all(re.fullmatch(r"\w+", field) for field in sizes):
        raise ValueError(
            f"field_sizes {sizes!r}, expected field names of letters, each with a number of ids"
        )
    invalid = {field: size for field, size in sizes.items() if not 0 < size <= 2**32}
    if invalid:
        raise ValueError(f"field_sizes {invalid!r}, expected from 1 to 2**32 different ids")
    if index.shard_tokens < 1:
        raise ValueError(f"shard_tokens {index.shard_tokens}, expected at least 1")
    if num_workers < 0:
        raise ValueError(f"num_workers {num_workers}, expected 0 (this process) or more")


def _load_finished_index(folder: Path, expected: ShardIndex) -> ShardIndex:
    """Return the index of the existing shards, or `expected` if there are none or others."""
    index = ShardIndex.read(folder)
    if index is None or replace(index, shards=(), is_complete=False) != expected:
        return expected
    return index.drop_invalid_shards(folder)


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Lock the folder against other processes; the lock is released when the process ends."""
    with (folder / SHARD_LOCK_FILE).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise ValueError(
                f"{folder}: process {holder} is preparing these shards; "
                "wait until it is finished, or use another folder"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def _remove_unfinished(folder: Path, num_kept: int) -> None:
    """Remove the files of invalid and unfinished shards."""
    for path in folder.iterdir():
        if not SHARD_FILE_PATTERN.fullmatch(path.name):
            continue
        if path.suffix == ".tmp" or int(path.name.partition(".")[0]) >= num_kept:
            path.unlink()


def _build_shards(
    folder: Path,
    index: ShardIndex,
    items: Iterable[Item],
    encode: EncodeFunction[Item],
    num_workers: int,
    progress: ShardProgress,
) -> None:
    item_batches = _batch_items(_skip_items(items, index.num_documents, folder))
    encode_batch = partial(_encode_batch, encode, index.field_sizes)
    with closing(map_in_order(encode_batch, item_batches, num_workers)) as batches:
        for first in batches:
            shard = _write_shard(folder, index, chain([first], batches), progress)
            index = replace(index, shards=(*index.shards, shard))
            index.write(folder)
    if not index.shards:
        raise ValueError(f"{folder}: no texts; expected at least one; is the source empty?")
    replace(index, is_complete=True).write(folder)


def _skip_items(items: Iterable[Item], num_done: int, folder: Path) -> Iterator[Item]:
    """Return the items after those of the finished shards."""
    iterator = iter(items)
    num_skipped = sum(1 for _ in islice(iterator, num_done))
    if num_skipped < num_done:
        raise ValueError(
            f"{folder}: shards of {num_done} texts, but the source has only {num_skipped}; "
            "has the source changed? remove the folder to prepare it again"
        )
    return iterator


def _batch_items(items: Iterable[Item]) -> Iterator[list[Item]]:
    batch: list[Item] = []
    num_characters = 0
    for item in items:
        batch.append(item)
        num_characters += _count_characters(item)
        if num_characters >= MAX_BATCH_CHARACTERS or len(batch) == MAX_BATCH_ITEMS:
            yield batch
            batch = []
            num_characters = 0
    if batch:
        yield batch


def _count_characters(item: object) -> int:
    if isinstance(item, Mapping):
        return sum(map(_count_characters, item.values()))
    return len(item) if isinstance(item, str | list) else 1


def _encode_batch(
    encode: EncodeFunction[Item], field_sizes: Mapping[str, int], batch: list[Item]
) -> EncodedBatch:
    rows = encode(batch)
    if len(rows) != len(batch):
        raise ValueError(
            f"encode returned {len(rows)} rows for {len(batch)} texts; expected one row per text"
        )
    encoded: EncodedBatch = {}
    for field, size in field_sizes.items():
        try:
            arrays = [
                row[field]
                if isinstance(row[field], np.ndarray)
                else np.asarray(row[field], np.int64)
                for row in rows
            ]
        except KeyError:
            names = ", ".join(sorted({name for row in rows for name in row}))
            raise ValueError(
                f"encode returned {names} without the field {field!r}; expected {', '.join(field_sizes)}"
            ) from None
        ids = np.concatenate(arrays)
        if len(ids) and not 0 <= ids.min() <= ids.max() < size:
            invalid = int(ids.max() if ids.max() >= size else ids.min())
            raise ValueError(
                f"field {field!r}: id {invalid}, expected 0 to {size - 1}; is the vocabulary larger?"
            )
        lengths = np.array([len(array) for array in arrays], dtype=np.int64)
        encoded[field] = (ids.astype(choose_id_dtype(size)), lengths)
    return encoded


def _write_shard(
    folder: Path, index: ShardIndex, batches: Iterator[EncodedBatch], progress: ShardProgress
) -> ShardInfo:
    """Write batches to the next shard until it is full; the files are renamed when complete."""
    num_documents = 0
    num_tokens = dict.fromkeys(index.field_sizes, 0)
    paths = [
        folder / name
        for field in index.field_sizes
        for name in get_shard_file_names(len(index.shards), field)
    ]
    temporary_paths = [path.with_name(f"{path.name}.tmp") for path in paths]
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("wb")) for path in temporary_paths]
        id_files = files[::2]
        offset_files = files[1::2]
        for offset_file in offset_files:
            offset_file.write(np.zeros(1, OFFSET_DTYPE).tobytes())
        for batch in batches:
            for field, id_file, offset_file in zip(
                index.field_sizes, id_files, offset_files, strict=True
            ):
                ids, lengths = batch[field]
                id_file.write(ids.tobytes())
                offsets = num_tokens[field] + np.cumsum(lengths)
                offset_file.write(offsets.astype(OFFSET_DTYPE).tobytes())
                num_tokens[field] += len(ids)
            num_documents += len(lengths)
            shard_tokens = sum(num_tokens.values())
            progress(index.num_documents + num_documents, index.num_tokens + shard_tokens)
            if shard_tokens >= index.shard_tokens:
                break
        for file in files:
            file.flush()
            os.fsync(file.fileno())
    for temporary_path, path in zip(temporary_paths, paths, strict=True):
        temporary_path.replace(path)
    sync_file(folder)
    return ShardInfo(num_documents=num_documents, num_tokens=num_tokens)
