"""Attention patterns described in words and drawn with characters."""

import pytest

from qkv.pictures.models.patterns import describe_pattern, draw_pattern, format_index_ranges
from qkv.spec import (
    Banded,
    Chunk,
    ChunkEnds,
    Local,
    MemoryWindow,
    Pattern,
    PerHead,
    Prefix,
    Strided,
    causal,
    full,
)


def test_small_patterns_are_drawn_to_scale() -> None:
    assert draw_pattern(causal)[0] == "■ · · · · · · ·"
    assert draw_pattern(causal)[-1] == draw_pattern(full)[0] == "■ ■ ■ ■ ■ ■ ■ ■"
    assert draw_pattern(Banded(2)) == [
        "■ · · · · · · ·",
        "■ ■ · · · · · ·",
        "· ■ ■ · · · · ·",
        "· · ■ ■ · · · ·",
        "· · · ■ ■ · · ·",
        "· · · · ■ ■ · ·",
        "· · · · · ■ ■ ·",
        "· · · · · · ■ ■",
    ]


def test_large_patterns_are_shrunk() -> None:
    assert draw_pattern(Banded(256)) == [*draw_pattern(Banded(4)), "drawn 64 times smaller"]
    assert draw_pattern(Local(64)) == [*draw_pattern(Local(2)), "drawn 32 times smaller"]
    assert draw_pattern(Chunk(128) | ChunkEnds(128, 8)) == [
        *draw_pattern(Chunk(4) | ChunkEnds(4, 1)),
        "drawn 32 times smaller",
    ]
    assert draw_pattern(MemoryWindow()) == draw_pattern(Banded(4))


def test_different_heads_are_drawn_side_by_side() -> None:
    lines = draw_pattern(PerHead((Chunk(4), ChunkEnds(4, 1)) * 3))
    assert lines[0].split("    ") == ["heads 0, 2, 4 ×3", "heads 1, 3, 5 ×3"]
    assert lines[5].split("     ") == ["· · · · ■ · · ·", "· · · ■ · · · ·"]
    assert len(lines) == 9
    mixed = draw_pattern(PerHead((causal, Banded(64), Strided(2))))
    assert mixed[9].strip() == "drawn 16 times smaller"
    assert mixed[10] == "head 2"


@pytest.mark.parametrize(
    ("pattern", "description"),
    [
        (full, "attends to all tokens"),
        (causal, "attends to itself and earlier tokens"),
        (Local(64), "attends to 64 tokens on either side"),
        (Banded(1600), "attends to the last 1,600 tokens"),
        (Banded(1), "attends to itself"),
        (Prefix(5), "attends to itself, earlier tokens and the first 5 tokens"),
        (MemoryWindow(), "attends to as many earlier tokens as the memory has"),
        (
            Banded(8) | Strided(8),
            "attends to the last 8 tokens, and to one in every 8 earlier tokens",
        ),
        (
            Chunk(8) & ChunkEnds(4, 2),
            "attends to earlier tokens of its chunk of 8, limited to the last 2 of every 4 earlier tokens",
        ),
        (
            PerHead((causal, Chunk(8))),
            "head 0: attends to itself and earlier tokens; "
            "head 1: attends to earlier tokens of its chunk of 8",
        ),
    ],
)
def test_patterns_are_described_in_words(pattern: Pattern, description: str) -> None:
    assert describe_pattern(pattern) == description


@pytest.mark.parametrize(
    ("indices", "text"),
    [
        ([7], "layer 7"),
        ([0, 1], "layers 0-1 ×2"),
        (list(range(12)), "layers 0-11 ×12"),
        (list(range(1, 24, 2)), "layers 1, 3 … 23 ×12"),
        ([0, 3], "layers 0, 3 ×2"),
        ([1, 2, 4, 5, 7, 8, 10, 11], "layers 1-2, 4-5 … 10-11 ×8"),
        ([0, 1, 5, 8, 9], "layers 0-1, 5, 8-9 ×5"),
    ],
)
def test_indices_are_written_as_ranges(indices: list[int], text: str) -> None:
    assert format_index_ranges("layer", indices) == text
