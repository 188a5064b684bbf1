"""Pack: which tokens stand together in a row or a batch. Knows lengths and places, no ids."""

import heapq
from bisect import bisect_left, insort
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Lengths = NDArray[Any]
Places = NDArray[np.int64]


def pack(
    lengths: Lengths, size: int, *, longer: Literal["split", "cut"] = "split", rows: int = 64
) -> list[Places]:
    """Rows of at most `size` tokens, each as (n, 3): document, start, stop.

    In the order of the documents, each goes to the fullest row that has room, of the `rows` that are open;
    where there is none, the fullest is closed and a new one opened. Only a document longer than a row is
    split over several, or cut to one. An empty one is left out.
    """
    _at_least_one(size=size, rows=rows)
    lengths = np.asarray(lengths, np.int64)
    pieces = -(-lengths // size) if longer == "split" else np.minimum(lengths, 1)
    document = np.repeat(np.arange(len(lengths)), pieces)
    start = size * (np.arange(len(document)) - (np.cumsum(pieces) - pieces)[document])
    stop = np.minimum(start + size, lengths[document])
    row: list[int] = []
    made = 0
    opened: list[tuple[int, int]] = []  # the room of a row and its number, the fullest first
    for length in (stop - start).tolist():
        place = bisect_left(opened, (length,))
        if place < len(opened):
            room, number = opened.pop(place)
        else:
            if len(opened) == rows:
                del opened[0]
            room, number = size, made
            made += 1
        row.append(number)
        if room > length:
            insort(opened, (room - length, number))
    order = np.argsort(np.array(row, np.int64), kind="stable")
    held = np.stack([document, start, stop], axis=1)[order]
    counts = np.bincount(np.array(row, np.int64), minlength=made)
    ends = np.cumsum(counts)
    return [held[begin:end] for begin, end in zip((ends - counts).tolist(), ends.tolist(), strict=True)]


def blocks(total: int, size: int, *, offset: int = 0, ahead: int = 1) -> Places:
    """Where blocks of `size` tokens begin in a stream of `total`; each reads `ahead` more, its last labels.

    An `offset` below `size`, another for each epoch, moves the cuts. What does not fill a block is left out.
    """
    _at_least_one(size=size)
    return np.arange(offset, max(total - size - ahead + 1, offset), size)


def streams(total: int, rows: int, size: int, *, ahead: int = 1) -> Places:
    """Where segments of `size` tokens begin (segments, rows): each row reads its own part of a stream.

    Segment s + 1 of a row goes on where s ended, so that s can be its memory (Transformer-XL). Each reads
    `ahead` more, its last labels. What does not fill a segment is left out.
    """
    _at_least_one(rows=rows)
    part = total // rows
    return blocks(part, size, ahead=ahead)[:, None] + part * np.arange(rows)


def buckets(lengths: Lengths, tokens: int, rng: np.random.Generator, *, pool: int = 2**17) -> list[Places]:
    """Batches of examples of like length, all examples once: rows × the longest ≤ `tokens` in each.

    `lengths` is (N,), or (N, fields) where an example has several, such as source and target: the longest is
    that of any field. The examples are shuffled, sorted by length within pools of so many, and cut into
    batches, which are shuffled.
    """
    _at_least_one(pool=pool)
    fields = np.asarray(lengths, np.int64)
    fields = fields if fields.ndim == 2 else fields[:, None]  # (N, fields)
    longest = fields.max(axis=1, initial=1)
    wrong = np.flatnonzero(longest > tokens)
    if len(wrong):
        first = int(wrong[0])
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        found = f"example {first} has {longest[first]} tokens{more}"
        raise ValueError(f"{found}, expected at most the {tokens} of a batch; cut it, or take larger batches")
    total = fields.sum(axis=1)
    shuffled = rng.permutation(len(longest))
    batches = []
    for start in range(0, len(shuffled), pool):
        part = shuffled[start : start + pool]
        part = part[np.lexsort((total[part], longest[part]))]
        batches += np.split(part, _cuts(longest[part].tolist(), tokens))
    return [batches[number] for number in rng.permutation(len(batches))]


def _cuts(rising: list[int], tokens: int) -> list[int]:
    """Where to begin a new batch, that no batch is larger than `tokens`."""
    cuts = []
    start = 0
    for place, length in enumerate(rising):
        if (place + 1 - start) * length > tokens:
            cuts.append(place)
            start = place
    return cuts


def split(lengths: Lengths, parts: int) -> list[Places]:
    """The rows of a batch in `parts` of nearly equal numbers of tokens; some have no row if there are few.

    The longest row is dealt out first, each to the part that has the fewest tokens.
    """
    _at_least_one(parts=parts)
    loads = [(0, 0, part) for part in range(parts)]  # tokens and rows; sorted, so already a heap
    given = np.zeros(len(lengths), np.int64)
    for row in np.argsort(-np.asarray(lengths, np.int64), kind="stable").tolist():
        tokens, rows, part = loads[0]
        given[row] = part
        heapq.heapreplace(loads, (tokens + int(lengths[row]), rows + 1, part))
    return [np.flatnonzero(given == part) for part in range(parts)]


def _at_least_one(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(f"{name} {number}, expected at least 1")
