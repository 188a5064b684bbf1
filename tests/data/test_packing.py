"""Packing loses no token, keeps to its budget, wastes little, and is the same each time."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from qkv.data.batches.packing import blocks, buckets, pack, split, streams

Array = NDArray[Any]


def seeded(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def texts(number: int, rng: np.random.Generator) -> Array:
    return np.ceil(rng.lognormal(5.5, 1.0, number)).astype(np.int64)


def check_rows(rows: list[Array], lengths: Array, size: int) -> None:
    """Every token once, no row too full, no document split that fits."""
    assert all(0 < (row[:, 2] - row[:, 1]).sum() <= size for row in rows)
    held = np.concatenate([np.empty((0, 3), np.int64), *rows])
    held = held[np.lexsort((held[:, 1], held[:, 0]))]
    pieces = np.maximum(-(-lengths // size), 0)
    assert np.array_equal(held[:, 0], np.repeat(np.arange(len(lengths)), pieces))
    covered = np.zeros(len(lengths), np.int64)
    for document, start, stop in held.tolist():
        assert start == covered[document]
        covered[document] = stop
    assert np.array_equal(covered, lengths)


@pytest.mark.parametrize("size", [1, 7, 512])
@pytest.mark.parametrize("rows", [1, 4, 64])
def test_rows_hold_every_token_once(size: int, rows: int) -> None:
    for seed in range(5):
        lengths = seeded(seed).integers(0, 20, 300)
        packed = pack(lengths, size, rows=rows)
        check_rows(packed, lengths, size)
        again = pack(lengths, size, rows=rows)
        assert all(np.array_equal(x, y) for x, y in zip(packed, again, strict=True))


def test_longer_documents_are_split_or_cut() -> None:
    lengths = np.array([25, 4, 0, 10])
    assert [row.tolist() for row in pack(lengths, 10)] == [
        [[0, 0, 10]],
        [[0, 10, 20]],
        [[0, 20, 25], [1, 0, 4]],
        [[3, 0, 10]],
    ]
    assert [row.tolist() for row in pack(lengths, 10, longer="cut")] == [
        [[0, 0, 10]],
        [[1, 0, 4]],
        [[3, 0, 10]],
    ]


def test_a_document_goes_to_the_fullest_row_that_has_room() -> None:
    rows = pack(np.array([6, 8, 5, 2, 4, 5]), 10)
    assert [row[:, 0].tolist() for row in rows] == [[0, 4], [1, 3], [2, 5]]
    # With one row open, the first is closed before the last document comes.
    assert [row[:, 0].tolist() for row in pack(np.array([6, 8, 4]), 10, rows=1)] == [[0], [1], [2]]


def test_documents_of_a_row_come_in_order() -> None:
    for row in pack(texts(2000, seeded()), 1024):
        assert (np.diff(row[:, 0]) > 0).all()


MIXES: dict[str, Callable[[np.random.Generator, int], Array]] = {
    "articles": lambda rng, n: texts(n, rng),
    "sentences": lambda rng, n: rng.poisson(25, n) + 1,
    "anything": lambda rng, n: rng.integers(1, 2049, n),
    "long and short": lambda rng, n: np.where(rng.random(n) < 0.3, rng.integers(500, 2049, n), texts(n, rng)),
}


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("size", [512, 2048])
def test_rows_are_full(mix: str, size: int) -> None:
    lengths = MIXES[mix](seeded(), 60_000)
    packed = pack(lengths, size)
    assert lengths.sum() / (len(packed) * size) >= 0.97


def test_nothing_is_packed_into_nothing() -> None:
    assert pack(np.empty(0, np.int64), 8) == []
    assert pack(np.zeros(3, np.int64), 8) == []
    with pytest.raises(ValueError, match="size 0, expected at least 1"):
        pack(np.array([3]), 0)
    with pytest.raises(ValueError, match="rows 0, expected at least 1"):
        pack(np.array([3]), 8, rows=0)


@pytest.mark.parametrize("total", [0, 1, 9, 10, 11, 50, 53])
@pytest.mark.parametrize("offset", [0, 3])
def test_blocks_predict_every_token_but_those_at_the_ends(total: int, offset: int) -> None:
    begins = blocks(total, 10, offset=offset)
    labels = [token for begin in begins.tolist() for token in range(begin + 1, begin + 11)]
    assert labels == list(range(offset + 1, offset + 1 + 10 * max((total - offset - 1) // 10, 0)))
    assert all(label < total for label in labels)
    assert len(blocks(total, 10, ahead=0)) == total // 10


def test_rows_read_their_own_parts_of_a_stream() -> None:
    stream = np.arange(107)
    begins = streams(107, 4, 5)  # parts of 26 tokens: 25 labels
    assert begins.shape == (5, 4)
    read = np.stack([[stream[begin : begin + 6] for begin in segment] for segment in begins])  # (S, B, 6)
    assert np.array_equal(read[1:, :, 0], read[:-1, :, 5])  # a segment goes on where the one before ended
    for row in range(4):
        assert np.array_equal(read[:, row, :5].reshape(-1), np.arange(26 * row, 26 * row + 25))
        assert read[:, row].max() < 26 * (row + 1)  # no label is of the next row
    assert streams(3, 4, 5).shape == (0, 4)


@pytest.mark.parametrize("fields", [0, 1, 2])
@pytest.mark.parametrize("pool", [1, 50, 10_000])
def test_batches_hold_every_example_once_within_the_budget(fields: int, pool: int) -> None:
    lengths = seeded().integers(0, 100, (700, fields) if fields else 700)
    found = buckets(lengths, 400, seeded(1), pool=pool)
    assert sorted(np.concatenate(found).tolist()) == list(range(700))
    assert all(len(batch) and len(batch) * lengths[batch].max() <= 400 for batch in found)


def test_batches_are_their_seeds_and_shuffled() -> None:
    lengths = seeded().integers(1, 100, (3000, 2))
    first, second, other = (buckets(lengths, 1000, seeded(seed), pool=1000) for seed in (1, 1, 2))
    assert all(np.array_equal(x, y) for x, y in zip(first, second, strict=True))
    assert any(not np.array_equal(x, y) for x, y in zip(first, other, strict=False))
    longest = np.array([lengths[batch].max() for batch in first])
    assert abs(np.corrcoef(np.arange(len(longest)), longest)[0, 1]) < 0.2  # short ones do not come first


def test_batches_waste_little() -> None:
    rng = seeded()
    source = rng.poisson(25, 50_000) + 1
    lengths = np.stack([source, np.maximum(source + rng.integers(-3, 4, 50_000), 1)], axis=1)
    found = buckets(lengths, 4096, rng)
    read = sum(len(batch) * lengths[batch].max(axis=0).sum() for batch in found)
    assert lengths.sum() / read > 0.9
    assert np.mean([len(batch) * lengths[batch].max() for batch in found]) > 0.98 * 4096


def test_an_example_longer_than_a_batch_is_named() -> None:
    with pytest.raises(ValueError, match=r"example 2 has 9 tokens, expected at most the 8 of a batch"):
        buckets(np.array([[3, 8], [1, 1], [2, 9]]), 8, seeded())
    with pytest.raises(ValueError, match=r"example 0 has 9 tokens \(and 1 more\)"):
        buckets(np.array([9, 10]), 8, seeded())
    assert buckets(np.empty((0, 2), np.int64), 8, seeded()) == []
    assert buckets(np.empty(0, np.int64), 8, seeded()) == []


@pytest.mark.parametrize("parts", [1, 2, 3, 8, 40])
def test_a_batch_is_split_evenly(parts: int) -> None:
    for seed in range(20):
        lengths = seeded(seed).integers(0, 200, 32)
        found = split(lengths, parts)
        assert len(found) == parts
        assert sorted(np.concatenate(found).tolist()) == list(range(32))
        assert all((np.diff(rows) > 0).all() for rows in found)
        loads = np.array([lengths[rows].sum() for rows in found])
        assert loads.max() - loads.min() <= lengths.max()  # else a row would have gone to the lesser part
        assert all(np.array_equal(x, y) for x, y in zip(found, split(lengths, parts), strict=True))
    if parts <= 8:
        assert loads.max() <= 1.05 * loads.mean()


def test_rows_of_one_length_are_dealt_out_evenly() -> None:
    assert [len(rows) for rows in split(np.full(7, 0), 3)] == [3, 2, 2]
    assert [len(rows) for rows in split(np.full(2, 5), 4)] == [1, 1, 0, 0]
    assert [len(rows) for rows in split(np.empty(0, np.int64), 2)] == [0, 0]
    with pytest.raises(ValueError, match="parts 0, expected at least 1"):
        split(np.array([1]), 0)
