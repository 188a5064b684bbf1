"""Stratified selection: examples to hold out such that every label keeps its share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def select_stratified(labels: NDArray[np.integer], count: int, seed: int) -> NDArray[np.int64]:
    """Return the sorted indices of `count` random examples that have the labels in their proportion.

    Every label with two or more examples is among the selected and among the other examples, as far as
    `count` allows."""
    order = np.random.default_rng(seed).permutation(len(labels))
    names, label_ids, totals = np.unique(labels, return_inverse=True, return_counts=True)
    selected = [
        order[label_ids[order] == label_id][:number]
        for label_id, number in enumerate(allocate_proportionally(totals, count))
    ]
    return np.sort(np.concatenate(selected)) if len(names) else np.empty(0, np.int64)


def allocate_proportionally(totals: NDArray[np.integer], count: int) -> NDArray[np.int64]:
    """Divide `count` among groups in proportion to their sizes; each group of two or more examples gives
    at least one and keeps at least one, as far as `count` allows."""
    quotas = totals * count / max(totals.sum(), 1)
    is_divisible = totals >= 2
    upper = np.where(is_divisible, totals - 1, totals)
    lower = is_divisible.astype(np.int64)
    if lower.sum() > count:  # the largest groups first
        lower[np.argsort(-totals, kind="stable")[count:]] = 0
    numbers = np.clip(np.floor(quotas).astype(np.int64), lower, upper)
    while (difference := count - int(numbers.sum())) != 0:
        deficits = quotas - numbers
        if difference > 0:
            can_grow = numbers < upper if (numbers < upper).any() else numbers < totals
            numbers[np.argmax(np.where(can_grow, deficits, -np.inf))] += 1
        else:
            can_shrink = numbers > lower
            numbers[np.argmin(np.where(can_shrink, deficits, np.inf))] -= 1
    return numbers
