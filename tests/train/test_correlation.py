"""Pearson and Spearman correlation against known values."""

from __future__ import annotations

import pytest

from qkv.correlation import pearsonr, rankdata, spearmanr


def test_pearson_and_spearman() -> None:
    x = [1.0, 2.0, 3.0, 4.0, 5.0]
    y = [2.0, 1.0, 4.0, 3.0, 50.0]
    assert pearsonr(x, y) == pytest.approx(98 / (10 * 1810) ** 0.5)
    assert spearmanr(x, y) == pytest.approx(1 - 6 * 4 / (5 * 24))
    assert rankdata([7.0, 1.0, 7.0, 3.0]) == [3.5, 1, 3.5, 2]
    assert spearmanr([1, 1, 2], [1, 2, 3]) == pytest.approx(3**0.5 / 2)  # a tie
    assert pearsonr([1.0, 1.0], [1.0, 2.0]) == spearmanr([1.0], [2.0]) == 0
