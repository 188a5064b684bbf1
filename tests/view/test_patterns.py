"""Attention patterns described in words and drawn with characters."""

import pytest

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
from qkv.view.patterns import describe_pattern, draw_pattern, format_index_ranges


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
        (full, "sees all"),
        (causal, "sees itself and all before"),
        (Local(64), "sees 64 to either side"),
        (Banded(1600), "sees the last 1,600"),
        (Banded(1), "sees itself"),
        (Prefix(5), "sees itself and all before, and the first 5"),
        (MemoryWindow(), "sees as far back as the memory is long"),
        (Banded(8) | Strided(8), "sees the last 8, and one in every 8 before"),
        (
            Chunk(8) & ChunkEnds(4, 2),
            "sees its chunk of 8 so far, of which it sees the last 2 of every 4 before",
        ),
        (
            PerHead((causal, Chunk(8))),
            "head 0: sees itself and all before; head 1: sees its chunk of 8 so far",
        ),
    ],
)
def test_descriptions(pattern: Pattern, description: str) -> None:
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
def test_index_ranges(indices: list[int], text: str) -> None:
    assert format_index_ranges("layer", indices) == text
