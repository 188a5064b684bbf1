"""Pearson and Spearman correlation of two lists of numbers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import groupby


def pearsonr(predictions: Sequence[float], references: Sequence[float]) -> float:
    """Return the Pearson correlation; 0 if one side is constant."""
    try:
        return statistics.correlation(predictions, references)
    except statistics.StatisticsError:
        return 0.0


def spearmanr(predictions: Sequence[float], references: Sequence[float]) -> float:
    """Return the Spearman correlation: the Pearson correlation of the ranks."""
    return pearsonr(rankdata(predictions), rankdata(references))


def rankdata(values: Sequence[float]) -> list[float]:
    """Return the rank of each value, from 1; equal values have the mean of their ranks."""
    ranks = [0.0] * len(values)
    num_ranked = 0
    order = sorted(range(len(values)), key=lambda i: values[i])
    for _, group in groupby(order, key=lambda i: values[i]):
        indices = list(group)
        for index in indices:
            ranks[index] = num_ranked + (len(indices) + 1) / 2
        num_ranked += len(indices)
    return ranks
