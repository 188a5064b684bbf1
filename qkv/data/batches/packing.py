"""Packing of documents into rows and of rows into batches. Depends on lengths only, not on ids."""

import heapq
from bisect import bisect_left, insort
from typing import Any

import numpy as np
from numpy.typing import NDArray

LengthArray = NDArray[Any]
IndexArray = NDArray[np.int64]

MAX_OPEN_ROWS = 64  # rows that packing may still fill; more rows are slower and hardly fuller
BUCKET_POOL_SIZE = 2**17  # examples that are sorted by length together


def pack_sequences(lengths: LengthArray, max_length: int) -> list[IndexArray]:
    """Pack documents into rows of at most `max_length` tokens: (n, 3) document, start, stop.

    Online best-fit: each document, in order, is added to the fullest open row with enough space. If
    there is none, the fullest row is closed and a new one is opened. Only a document longer than a
    row is split. Empty documents are omitted.
    """
    _check_positive(max_length=max_length)
    lengths = np.asarray(lengths, np.int64)
    num_pieces = -(-lengths // max_length)
    document = np.repeat(np.arange(len(lengths)), num_pieces)
    first_pieces = np.cumsum(num_pieces) - num_pieces
    start = max_length * (np.arange(len(document)) - first_pieces[document])
    stop = np.minimum(start + max_length, lengths[document])
    row_of_piece: list[int] = []
    num_rows = 0
    open_rows: list[tuple[int, int]] = []  # (free tokens, row), the fullest first
    for length in (stop - start).tolist():
        position = bisect_left(open_rows, (length,))
        if position < len(open_rows):
            free, row = open_rows.pop(position)
        else:
            if len(open_rows) == MAX_OPEN_ROWS:
                del open_rows[0]
            free = max_length
            row = num_rows
            num_rows += 1
        row_of_piece.append(row)
        if free > length:
            insort(open_rows, (free - length, row))
    rows = np.array(row_of_piece, np.int64)
    pieces = np.stack([document, start, stop], axis=1)[np.argsort(rows, kind="stable")]
    counts = np.bincount(rows, minlength=num_rows)
    ends = np.cumsum(counts)
    begins = ends - counts
    return [pieces[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]


def compute_block_starts(
    num_tokens: int, block_size: int, *, offset: int = 0, lookahead: int = 1
) -> IndexArray:
    """Return the starts of the blocks of a token stream.

    A block has `lookahead` additional tokens, for its last labels. An `offset` below `block_size`,
    different in each epoch, shifts the boundaries. Tokens that do not fill a block are dropped.
    """
    _check_positive(block_size=block_size)
    return np.arange(offset, max(num_tokens - block_size - lookahead + 1, offset), block_size)


def compute_segment_starts(
    num_tokens: int, batch_size: int, segment_length: int, *, lookahead: int = 1
) -> IndexArray:
    """Return the starts of segments (segments, batch_size); each row reads a part of the stream.

    Segment s + 1 of a row continues segment s, which can be its memory (Transformer-XL). A segment
    has `lookahead` additional tokens, for its last labels. Tokens that do not fill a segment are
    dropped.
    """
    _check_positive(batch_size=batch_size)
    part_length = num_tokens // batch_size
    starts = compute_block_starts(part_length, segment_length, lookahead=lookahead)
    return starts[:, None] + part_length * np.arange(batch_size)


def bucket_by_length(
    lengths: LengthArray, batch_tokens: int, rng: np.random.Generator
) -> list[IndexArray]:
    """Batch examples of similar length, each example once: rows × longest ≤ `batch_tokens`.

    `lengths` is (N,), or (N, fields) for examples with several fields, such as source and target;
    the longest is then the maximum over all fields. The examples are shuffled, sorted by length
    within pools of BUCKET_POOL_SIZE, and split into batches, which are shuffled.
    """
    field_lengths = np.asarray(lengths, np.int64)
    if field_lengths.ndim == 1:
        field_lengths = field_lengths[:, None]  # (N, fields)
    longest = field_lengths.max(axis=1, initial=1)
    too_long = np.flatnonzero(longest > batch_tokens)
    if len(too_long):
        first = int(too_long[0])
        others = f" (and {len(too_long) - 1} more)" if len(too_long) > 1 else ""
        raise ValueError(
            f"example {first} has {longest[first]} tokens{others}, expected at most the "
            f"{batch_tokens} of a batch; truncate it or use larger batches"
        )
    total = field_lengths.sum(axis=1)
    shuffled = rng.permutation(len(longest))
    batches = []
    for start in range(0, len(shuffled), BUCKET_POOL_SIZE):
        pool = shuffled[start : start + BUCKET_POOL_SIZE]
        pool = pool[np.lexsort((total[pool], longest[pool]))]
        batches += np.split(pool, _find_batch_boundaries(longest[pool].tolist(), batch_tokens))
    return [batches[i] for i in rng.permutation(len(batches))]


def _find_batch_boundaries(sorted_lengths: list[int], batch_tokens: int) -> list[int]:
    """Return the starts of batches, such that no padded batch exceeds `batch_tokens`."""
    boundaries = []
    start = 0
    for i, length in enumerate(sorted_lengths):
        if (i + 1 - start) * length > batch_tokens:
            boundaries.append(i)
            start = i
    return boundaries


def partition_by_tokens(lengths: LengthArray, num_parts: int) -> list[IndexArray]:
    """Split the rows of a batch into parts with nearly equal numbers of tokens.

    Greedy: rows are assigned in order of decreasing length to the part with the fewest tokens. With
    fewer rows than parts, some parts are empty.
    """
    _check_positive(num_parts=num_parts)
    loads = [(0, 0, part) for part in range(num_parts)]  # a heap of (tokens, rows, part)
    part_of_row = np.zeros(len(lengths), np.int64)
    for row in np.argsort(-np.asarray(lengths, np.int64), kind="stable").tolist():
        num_tokens, num_rows, part = loads[0]
        part_of_row[row] = part
        heapq.heapreplace(loads, (num_tokens + int(lengths[row]), num_rows + 1, part))
    return [np.flatnonzero(part_of_row == part) for part in range(num_parts)]


def _check_positive(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(f"{name} {number}, expected at least 1")
