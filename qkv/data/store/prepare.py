"""Prepare: texts become token shards in one pass, by several processes, and go on where they were stopped.
Knows no tokenizer: what encodes is given.
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

from qkv.data.store.shards import STARTS, Index, Part, Shards, dtype, names, sync
from qkv.data.store.workers import in_order

LOCK = "lock"
OURS = re.compile(r"\d{5,}\.\w+\.(bin|idx)(\.tmp)?")
# A batch ends at whichever comes first. Shards end where batches do, so these are a part of the format.
BATCH_ITEMS = 1024
BATCH_CHARACTERS = 2**20

Item = TypeVar("Item")
Row = Mapping[str, Sequence[int] | NDArray[Any]]
Encode = Callable[[list[Item]], Sequence[Row]]
Progress = Callable[[int, int], None]
Packed = dict[str, tuple[NDArray[Any], NDArray[np.int64]]]  # by field: ids of all rows, and each row's length


def prepare(
    items: Iterable[Item],
    encode: Encode[Item],
    folder: str | os.PathLike[str],
    *,
    fields: Mapping[str, int],
    made_from: Mapping[str, object],
    shard_tokens: int = 2**26,
    workers: int = 0,
    progress: Progress = lambda documents, tokens: None,
) -> Shards:
    """The shards of these items (texts, or records); made now unless they are there already.

    `encode` turns a list of items into a row each, token ids by field. `fields` gives the number of different
    ids of each field. `made_from` says what the items and `encode` are (fingerprints, settings): where it is
    not what it was, the shards are made anew. The bytes are the same for any number of workers, and after any
    number of interruptions. `progress` is told the documents and tokens so far.
    """
    home = Path(folder)
    told = json.loads(json.dumps(made_from))  # as the file gives it back
    wanted = Index(made_from=told, fields=dict(fields), shard_tokens=shard_tokens)
    _check(wanted, workers)
    if _ready(home, wanted).complete:
        return Shards.open(home)
    try:
        home.mkdir(parents=True, exist_ok=True)
        with _locked(home):
            index = _ready(home, wanted)
            if not index.complete:
                index.write(home)
                _clear(home, len(index.parts))
                _build(home, index, items, encode, workers, progress)
    except OSError as error:
        raise OSError(f"{home}: not finished, whole shards are kept: {error}") from error
    return Shards.open(home)


def _check(index: Index, workers: int) -> None:
    if not index.fields or not all(re.fullmatch(r"\w+", field) for field in index.fields):
        raise ValueError(f"fields {index.fields!r}, expected names of letters, each with a number of ids")
    wrong = {field: size for field, size in index.fields.items() if not 0 < size <= 2**32}
    if wrong:
        raise ValueError(f"fields {wrong!r}, expected from 1 to 2**32 different ids")
    if index.shard_tokens < 1:
        raise ValueError(f"shard_tokens {index.shard_tokens}, expected at least 1")
    if workers < 0:
        raise ValueError(f"workers {workers}, expected 0 (in this process) or more")


def _ready(folder: Path, wanted: Index) -> Index:
    """What is there of the wanted shards."""
    held = Index.read(folder)
    if held is None or replace(held, parts=(), complete=False) != wanted:
        return wanted
    return held.whole(folder)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """No other process prepares this folder within; the lock goes when the process does, however it ends."""
    with (folder / LOCK).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            advice = "wait until it is done, or prepare in another folder"
            raise ValueError(f"{folder}: process {holder} is preparing these shards; {advice}") from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def _clear(folder: Path, kept: int) -> None:
    """Remove what is left of shards that do not count: old ones, and a half-written one."""
    for path in folder.iterdir():
        if OURS.fullmatch(path.name) and (path.suffix == ".tmp" or int(path.name.partition(".")[0]) >= kept):
            path.unlink()


def _build(
    folder: Path,
    index: Index,
    items: Iterable[Item],
    encode: Encode[Item],
    workers: int,
    progress: Progress,
) -> None:
    batches = _batches(_after(items, index.documents, folder))
    with closing(in_order(partial(_pack, encode, index.fields), batches, workers)) as stream:
        for first in stream:
            part = _write(folder, index, chain([first], stream), progress)
            index = replace(index, parts=(*index.parts, part))
            index.write(folder)
    if not index.parts:
        raise ValueError(f"{folder}: no texts; expected at least one; is the source empty?")
    replace(index, complete=True).write(folder)


def _after(items: Iterable[Item], done: int, folder: Path) -> Iterator[Item]:
    """The items after those that finished shards hold."""
    rest = iter(items)
    skipped = sum(1 for _ in islice(rest, done))
    if skipped < done:
        advice = "has the source changed? remove the folder to make them anew"
        raise ValueError(f"{folder}: shards of {done} texts, but the source has only {skipped}; {advice}")
    return rest


def _batches(items: Iterable[Item]) -> Iterator[list[Item]]:
    batch: list[Item] = []
    room = BATCH_CHARACTERS
    for item in items:
        batch.append(item)
        room -= _characters(item)
        if room <= 0 or len(batch) == BATCH_ITEMS:
            yield batch
            batch, room = [], BATCH_CHARACTERS
    if batch:
        yield batch


def _characters(item: object) -> int:
    if isinstance(item, Mapping):
        return sum(map(_characters, item.values()))
    return len(item) if isinstance(item, str | list) else 1


def _pack(encode: Encode[Item], fields: Mapping[str, int], batch: list[Item]) -> Packed:
    rows = encode(batch)
    if len(rows) != len(batch):
        raise ValueError(f"encode gave {len(rows)} rows for {len(batch)} texts; expected one each")
    packed: Packed = {}
    for field, size in fields.items():
        try:
            held = [np.asarray(row[field], dtype=np.int64) for row in rows]
        except KeyError:
            found = ", ".join(sorted({name for row in rows for name in row}))
            expected = ", ".join(fields)
            raise ValueError(f"encode gave no field {field!r} but {found}; expected {expected}") from None
        ids = np.concatenate(held)
        if len(ids) and not 0 <= ids.min() <= ids.max() < size:
            wrong = int(ids.max() if ids.max() >= size else ids.min())
            expected = f"0 to {size - 1}; is the vocabulary larger?"
            raise ValueError(f"field {field!r}: id {wrong}, expected {expected}")
        packed[field] = ids.astype(dtype(size)), np.array([len(each) for each in held], dtype=np.int64)
    return packed


def _write(folder: Path, index: Index, stream: Iterator[Packed], progress: Progress) -> Part:
    """The next shard: batches until it is full, under temporary names until it is on disk."""
    documents, tokens = 0, dict.fromkeys(index.fields, 0)
    before = index.documents, index.tokens
    paths = [folder / name for field in index.fields for name in names(len(index.parts), field)]
    hidden = [path.with_name(f"{path.name}.tmp") for path in paths]
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("wb")) for path in hidden]
        for starts in files[1::2]:
            starts.write(np.zeros(1, STARTS).tobytes())
        for packed in stream:
            for field, body, starts in zip(index.fields, files[::2], files[1::2], strict=True):
                ids, lengths = packed[field]
                body.write(ids.tobytes())
                starts.write((tokens[field] + np.cumsum(lengths)).astype(STARTS).tobytes())
                tokens[field] += len(ids)
            documents += len(lengths)
            total = sum(tokens.values())
            progress(before[0] + documents, before[1] + total)
            if total >= index.shard_tokens:
                break
        for file in files:
            file.flush()
            os.fsync(file.fileno())
    for old, new in zip(hidden, paths, strict=True):
        old.replace(new)
    sync(folder)
    return Part(documents=documents, tokens=tokens)
