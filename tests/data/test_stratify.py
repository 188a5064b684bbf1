"""Stratified selection: proportions, small classes, and the same examples for the same seed."""

from __future__ import annotations

import numpy as np
import pytest

from qkv.data.batches.stratify import allocate_proportionally, select_stratified


@pytest.mark.parametrize(
    ("totals", "count", "expected"),
    [
        ([80, 20], 10, [8, 2]),
        ([92, 5, 3], 10, [8, 1, 1]),  # every class is in both parts
        ([95, 4, 1], 10, [9, 1, 0]),  # a single example is trained on
        ([50, 30, 20], 2, [1, 1, 0]),  # fewer places than classes: the largest
        ([3, 3], 5, [3, 2]),  # more places than the classes can give without becoming empty
        ([2, 2], 2, [1, 1]),
        ([7], 3, [3]),
    ],
)
def test_allocation(totals: list[int], count: int, expected: list[int]) -> None:
    assert allocate_proportionally(np.array(totals), count).tolist() == expected


def test_random_allocations_have_the_right_total_and_bounds() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        totals = rng.integers(1, 40, size=rng.integers(1, 9))
        count = int(rng.integers(1, totals.sum() + 1))
        numbers = allocate_proportionally(totals, count)
        assert numbers.sum() == count
        assert (numbers >= 0).all()
        assert (numbers <= totals).all()
        classes = totals >= 2
        if classes.sum() <= count <= (totals - 1)[classes].sum():
            assert (numbers[classes] >= 1).all()
            assert (numbers[classes] < totals[classes]).all()


def test_selection() -> None:
    labels = np.repeat([2, 0, 1], [50, 30, 20])
    indices = select_stratified(labels, 10, seed=3)
    assert np.bincount(labels[indices]).tolist() == [3, 2, 5]
    assert (np.diff(indices) > 0).all()
    assert (select_stratified(labels, 10, seed=3) == indices).all()
    assert (select_stratified(labels, 10, seed=4) != indices).any()
