"""Patterns in words and in characters."""

import pytest

from qkv.spec import Banded, ByHead, Chunk, Local, Pattern, Prefix, Recent, Strided, Summary, causal, everyone
from qkv.view.patterns import drawing, numbered, words


def test_small_patterns_are_drawn_as_they_are() -> None:
    assert drawing(causal)[0] == "■ · · · · · · ·"
    assert drawing(causal)[-1] == drawing(everyone)[0] == "■ ■ ■ ■ ■ ■ ■ ■"
    assert drawing(Banded(2)) == [
        "■ · · · · · · ·",
        "■ ■ · · · · · ·",
        "· ■ ■ · · · · ·",
        "· · ■ ■ · · · ·",
        "· · · ■ ■ · · ·",
        "· · · · ■ ■ · ·",
        "· · · · · ■ ■ ·",
        "· · · · · · ■ ■",
    ]


def test_large_patterns_are_drawn_smaller() -> None:
    assert drawing(Banded(256)) == [*drawing(Banded(4)), "drawn 64 times smaller"]
    assert drawing(Local(64)) == [*drawing(Local(2)), "drawn 32 times smaller"]
    assert drawing(Chunk(128) | Summary(128, 8)) == [
        *drawing(Chunk(4) | Summary(4, 1)),
        "drawn 32 times smaller",
    ]
    assert drawing(Recent()) == drawing(Banded(4))


def test_kinds_of_heads_stand_beside_each_other() -> None:
    lines = drawing(ByHead((Chunk(4), Summary(4, 1)) * 3))
    assert lines[0].split("    ") == ["heads 0, 2, 4 ×3", "heads 1, 3, 5 ×3"]
    assert lines[5].split("     ") == ["· · · · ■ · · ·", "· · · ■ · · · ·"]
    assert len(lines) == 9
    mixed = drawing(ByHead((causal, Banded(64), Strided(2))))
    assert mixed[9].strip() == "drawn 16 times smaller"
    assert mixed[10] == "head 2"


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        (everyone, "sees all"),
        (causal, "sees itself and all before"),
        (Local(64), "sees 64 to either side"),
        (Banded(1600), "sees the last 1,600"),
        (Banded(1), "sees itself"),
        (Prefix(5), "sees itself and all before, and the first 5"),
        (Recent(), "sees as far back as the memory is long"),
        (Banded(8) | Strided(8), "sees the last 8, and one in every 8 before"),
        (
            Chunk(8) & Summary(4, 2),
            "sees its chunk of 8 so far, of which it sees the last 2 of every 4 before",
        ),
        (
            ByHead((causal, Chunk(8))),
            "head 0: sees itself and all before; head 1: sees its chunk of 8 so far",
        ),
    ],
)
def test_words(pattern: Pattern, said: str) -> None:
    assert words(pattern) == said


@pytest.mark.parametrize(
    ("numbers", "said"),
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
def test_numbers_are_folded(numbers: list[int], said: str) -> None:
    assert numbered("layer", numbers) == said
