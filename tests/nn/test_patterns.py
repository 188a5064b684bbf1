"""Attention patterns: each pattern against the enumerated keys of every query."""

from collections.abc import Callable

import pytest
import torch

from qkv.spec import (
    Banded,
    Causal,
    Chunk,
    ChunkEnds,
    Full,
    Local,
    MemoryWindow,
    Pattern,
    Prefix,
    Strided,
    causal,
    full,
)
from tests.support import compare, tiny

VisibleKeys = Callable[[int], set[int]]  # the positions that a query attends to

# Each pattern as the set of keys of query i, enumerated.
LENGTH = 40
PATTERNS: dict[str, tuple[Pattern, VisibleKeys]] = {
    "full": (full, lambda i: {*range(LENGTH)}),
    "causal": (causal, lambda i: {*range(i + 1)}),
    "local": (Local(3), lambda i: {i - 3, i - 2, i - 1, i, i + 1, i + 2, i + 3}),
    "local-0": (Local(0), lambda i: {i}),
    "banded": (Banded(4), lambda i: {i - 3, i - 2, i - 1, i}),
    "banded-1": (Banded(1), lambda i: {i}),
    "strided": (Strided(5), lambda i: {i - 5 * n for n in range(LENGTH)}),
    "strided-1": (Strided(1), lambda i: {*range(i + 1)}),
    "chunk": (Chunk(6), lambda i: {*range(i - i % 6, i + 1)}),
    "chunk-ends": (ChunkEnds(6, 2), lambda i: {j for j in range(i + 1) if j % 6 in (4, 5)}),
    "prefix": (Prefix(3), lambda i: {0, 1, 2} | {*range(i + 1)}),
    "memory-window": (MemoryWindow().with_memory(7), lambda i: {*range(i - 7, i + 1)}),
    "and": (Chunk(6) & Banded(3), lambda i: {j for j in (i - 2, i - 1, i) if j >= i - i % 6}),
    "or": (Banded(3) | Strided(4), lambda i: {i - 2, i - 1, i} | {i - 4 * n for n in range(LENGTH)}),
    "and-or": (causal & (Local(2) | Prefix(4)), lambda i: {i - 2, i - 1, i} | {*range(i + 1)}),
}  # fmt: skip


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_shows_each_query_its_keys(name: str) -> None:
    pattern, visible_keys = PATTERNS[name]
    expected = [[j in visible_keys(i) for j in range(LENGTH)] for i in range(LENGTH)]
    assert [[bool(pattern(i, j)) for j in range(LENGTH)] for i in range(LENGTH)] == expected
    positions = torch.arange(LENGTH)
    mask = pattern(positions[:, None], positions[None, :]).expand(LENGTH, LENGTH)
    assert mask.tolist() == expected


def test_patterns_are_hashable_and_comparable() -> None:
    patterns = [pattern for pattern, _ in PATTERNS.values()]
    assert {*patterns} == {pattern for pattern, _ in PATTERNS.values()}
    assert len({*patterns}) == len(patterns)
    assert Banded(3) | Strided(4) == Banded(3) | Strided(4) != Strided(4) | Banded(3)
    assert (full, causal) == (Full(), Causal())


@pytest.mark.parametrize("name", tiny.CAUSAL)
def test_no_query_of_a_decoder_attends_to_later_keys(name: str) -> None:
    family, changes = tiny.CAUSAL[name]
    model = tiny.build(family, **changes)
    ids = tiny.random_ids(1, 12)
    logits = []
    for token in (20, 40):
        ids[0, 7] = token
        if family in tiny.ENCODER_DECODERS:
            batch = tiny.build_batch(model, tiny.random_ids(1, 5), ids.clone())
        else:
            batch = tiny.build_batch(model, ids.clone())
        logits.append(model.net(batch)["logits"])
    compare.assert_bitwise_equal(logits[0][:, :7], logits[1][:, :7], because=compare.SAME_KERNELS)
    assert compare.max_difference(logits[0][:, 7], logits[1][:, 7]) > 0
