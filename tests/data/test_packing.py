"""Packing loses no token, respects its budget, wastes little, and is deterministic."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from qkv.data.batches import packing
from qkv.data.batches.packing import (
    bucket_by_length,
    compute_block_starts,
    compute_segment_starts,
    pack_sequences,
    partition_by_tokens,
)

Array = NDArray[Any]


def make_rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def sample_lengths(count: int, rng: np.random.Generator) -> Array:
    return np.ceil(rng.lognormal(5.5, 1.0, count)).astype(np.int64)


def check_rows(rows: list[Array], lengths: Array, max_length: int) -> None:
    """Check that every token is there once, no row is too long, and only long documents are
    split."""
    assert all(0 < (row[:, 2] - row[:, 1]).sum() <= max_length for row in rows)
    pieces = np.concatenate([np.empty((0, 3), np.int64), *rows])
    pieces = pieces[np.lexsort((pieces[:, 1], pieces[:, 0]))]
    num_pieces = np.maximum(-(-lengths // max_length), 0)
    assert np.array_equal(pieces[:, 0], np.repeat(np.arange(len(lengths)), num_pieces))
    covered = np.zeros(len(lengths), np.int64)
    for document, start, stop in pieces.tolist():
        assert start == covered[document]
        covered[document] = stop
    assert np.array_equal(covered, lengths)


@pytest.mark.parametrize("max_length", [1, 7, 512])
@pytest.mark.parametrize("max_open_rows", [1, 4, 64])
def test_rows_hold_every_token_once(
    max_length: int, max_open_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "MAX_OPEN_ROWS", max_open_rows)
    for seed in range(5):
        lengths = make_rng(seed).integers(0, 20, 300)
        rows = pack_sequences(lengths, max_length)
        check_rows(rows, lengths, max_length)
        repeated = pack_sequences(lengths, max_length)
        assert all(np.array_equal(x, y) for x, y in zip(rows, repeated, strict=True))


def test_longer_documents_are_split() -> None:
    assert [row.tolist() for row in pack_sequences(np.array([25, 4, 0, 10]), 10)] == [
        [[0, 0, 10]],
        [[0, 10, 20]],
        [[0, 20, 25], [1, 0, 4]],
        [[3, 0, 10]],
    ]


def test_a_document_goes_to_the_fullest_row_with_space(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pack_sequences(np.array([6, 8, 5, 2, 4, 5]), 10)
    assert [row[:, 0].tolist() for row in rows] == [[0, 4], [1, 3], [2, 5]]
    # With one open row, the first is closed before the last document comes.
    monkeypatch.setattr(packing, "MAX_OPEN_ROWS", 1)
    rows = pack_sequences(np.array([6, 8, 4]), 10)
    assert [row[:, 0].tolist() for row in rows] == [[0], [1], [2]]


def test_documents_of_a_row_come_in_order() -> None:
    for row in pack_sequences(sample_lengths(2000, make_rng()), 1024):
        assert (np.diff(row[:, 0]) > 0).all()


DISTRIBUTIONS: dict[str, Callable[[np.random.Generator, int], Array]] = {
    "articles": lambda rng, n: sample_lengths(n, rng),
    "sentences": lambda rng, n: rng.poisson(25, n) + 1,
    "anything": lambda rng, n: rng.integers(1, 2049, n),
    "long and short": lambda rng, n: np.where(
        rng.random(n) < 0.3, rng.integers(500, 2049, n), sample_lengths(n, rng)
    ),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("max_length", [512, 2048])
def test_rows_are_full(name: str, max_length: int) -> None:
    lengths = DISTRIBUTIONS[name](make_rng(), 60_000)
    rows = pack_sequences(lengths, max_length)
    assert lengths.sum() / (len(rows) * max_length) >= 0.97


def test_empty_documents_make_no_rows() -> None:
    assert pack_sequences(np.empty(0, np.int64), 8) == []
    assert pack_sequences(np.zeros(3, np.int64), 8) == []
    with pytest.raises(ValueError, match="max_length 0, expected at least 1"):
        pack_sequences(np.array([3]), 0)


@pytest.mark.parametrize("num_tokens", [0, 1, 9, 10, 11, 50, 53])
@pytest.mark.parametrize("offset", [0, 3])
def test_blocks_predict_every_token_but_those_at_the_ends(num_tokens: int, offset: int) -> None:
    starts = compute_block_starts(num_tokens, 10, offset=offset)
    labels = [token for start in starts.tolist() for token in range(start + 1, start + 11)]
    num_blocks = max((num_tokens - offset - 1) // 10, 0)
    assert labels == list(range(offset + 1, offset + 1 + 10 * num_blocks))
    assert all(label < num_tokens for label in labels)
    assert len(compute_block_starts(num_tokens, 10, lookahead=0)) == num_tokens // 10


def test_each_row_reads_its_own_part_of_a_stream() -> None:
    stream = np.arange(107)
    starts = compute_segment_starts(107, 4, 5)  # parts of 26 tokens: 25 labels
    assert starts.shape == (5, 4)
    segments = np.stack(
        [[stream[start : start + 6] for start in row] for row in starts]
    )  # (S, B, 6)
    assert np.array_equal(
        segments[1:, :, 0], segments[:-1, :, 5]
    )  # a segment continues the last one
    for row in range(4):
        assert np.array_equal(segments[:, row, :5].reshape(-1), np.arange(26 * row, 26 * row + 25))
        assert segments[:, row].max() < 26 * (row + 1)  # no label is of the next row
    assert compute_segment_starts(3, 4, 5).shape == (0, 4)


@pytest.mark.parametrize("num_fields", [0, 1, 2])
@pytest.mark.parametrize("pool_size", [1, 50, 10_000])
def test_batches_hold_every_example_once_within_the_budget(
    num_fields: int, pool_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "BUCKET_POOL_SIZE", pool_size)
    lengths = make_rng().integers(0, 100, (700, num_fields) if num_fields else 700)
    batches = bucket_by_length(lengths, 400, make_rng(1))
    assert sorted(np.concatenate(batches).tolist()) == list(range(700))
    assert all(len(batch) and len(batch) * lengths[batch].max() <= 400 for batch in batches)


def test_batches_depend_on_the_seed_and_are_shuffled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "BUCKET_POOL_SIZE", 1000)
    lengths = make_rng().integers(1, 100, (3000, 2))
    first, second, other = (bucket_by_length(lengths, 1000, make_rng(seed)) for seed in (1, 1, 2))
    assert all(np.array_equal(x, y) for x, y in zip(first, second, strict=True))
    assert any(not np.array_equal(x, y) for x, y in zip(first, other, strict=False))
    longest = np.array([lengths[batch].max() for batch in first])
    assert abs(np.corrcoef(np.arange(len(longest)), longest)[0, 1]) < 0.2  # not sorted by length


def test_batches_waste_little() -> None:
    rng = make_rng()
    source = rng.poisson(25, 50_000) + 1
    lengths = np.stack([source, np.maximum(source + rng.integers(-3, 4, 50_000), 1)], axis=1)
    batches = bucket_by_length(lengths, 4096, rng)
    num_padded = sum(len(batch) * lengths[batch].max(axis=0).sum() for batch in batches)
    assert lengths.sum() / num_padded > 0.9
    assert np.mean([len(batch) * lengths[batch].max() for batch in batches]) > 0.98 * 4096


def test_an_example_longer_than_a_batch_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"example 2 has 9 tokens, expected at most the 8 of a batch"
    ):
        bucket_by_length(np.array([[3, 8], [1, 1], [2, 9]]), 8, make_rng())
    with pytest.raises(ValueError, match=r"example 0 has 9 tokens \(and 1 more\)"):
        bucket_by_length(np.array([9, 10]), 8, make_rng())
    assert bucket_by_length(np.empty((0, 2), np.int64), 8, make_rng()) == []
    assert bucket_by_length(np.empty(0, np.int64), 8, make_rng()) == []


@pytest.mark.parametrize("num_parts", [1, 2, 3, 8, 40])
def test_a_batch_is_split_evenly(num_parts: int) -> None:
    for seed in range(20):
        lengths = make_rng(seed).integers(0, 200, 32)
        parts = partition_by_tokens(lengths, num_parts)
        assert len(parts) == num_parts
        assert sorted(np.concatenate(parts).tolist()) == list(range(32))
        assert all((np.diff(rows) > 0).all() for rows in parts)
        loads = np.array([lengths[rows].sum() for rows in parts])
        assert loads.max() - loads.min() <= lengths.max()  # else a row would be in the smaller part
        repeated = partition_by_tokens(lengths, num_parts)
        assert all(np.array_equal(x, y) for x, y in zip(parts, repeated, strict=True))
    if num_parts <= 8:
        assert loads.max() <= 1.05 * loads.mean()


def test_rows_of_one_length_are_distributed_evenly() -> None:
    assert [len(rows) for rows in partition_by_tokens(np.full(7, 0), 3)] == [3, 2, 2]
    assert [len(rows) for rows in partition_by_tokens(np.full(2, 5), 4)] == [1, 1, 0, 0]
    assert [len(rows) for rows in partition_by_tokens(np.empty(0, np.int64), 2)] == [0, 0]
    with pytest.raises(ValueError, match="num_parts 0, expected at least 1"):
        partition_by_tokens(np.array([1]), 0)
