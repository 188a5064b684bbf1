"""Attention patterns described in words and drawn with characters. Does not depend on networks.

A row of a drawing is a query, a column a key. A window of the last 2 positions:

    ■ · · ·
    ■ ■ · ·
    · ■ ■ ·
    · · ■ ■
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, zip_longest
from typing import Any

from qkv import spec
from qkv.spec import Pattern

GRID_SIZE = 8
VISIBLE_MARK = "■"
MASKED_MARK = "·"


def describe_pattern(pattern: Pattern) -> str:
    """Return the positions that a token attends to, in words."""
    match pattern:
        case spec.Full():
            return "attends to all tokens"
        case spec.Causal():
            return "attends to itself and earlier tokens"
        case spec.Local():
            return f"attends to {pattern.window:,} tokens on either side"
        case spec.Banded(window=1):
            return "attends to itself"
        case spec.Banded():
            return f"attends to the last {pattern.window:,} tokens"
        case spec.Strided():
            return f"attends to one in every {pattern.stride:,} earlier tokens"
        case spec.Chunk():
            return f"attends to earlier tokens of its chunk of {pattern.stride:,}"
        case spec.ChunkEnds():
            return (
                f"attends to the last {pattern.count:,} of every {pattern.stride:,} earlier tokens"
            )
        case spec.Prefix():
            return f"attends to itself, earlier tokens and the first {pattern.length:,} tokens"
        case spec.MemoryWindow():
            return "attends to as many earlier tokens as the memory has"
        case spec.And():
            right = describe_pattern(pattern.right).removeprefix("attends to ")
            return f"{describe_pattern(pattern.left)}, limited to {right}"
        case spec.Or():
            right = describe_pattern(pattern.right).removeprefix("attends to ")
            return f"{describe_pattern(pattern.left)}, and to {right}"
        case spec.PerHead():
            return "; ".join(
                f"{format_index_ranges('head', heads)}: {describe_pattern(head_pattern)}"
                for head_pattern, heads in group_heads_by_pattern(pattern).items()
            )
    return repr(pattern)


def draw_pattern(pattern: Pattern) -> list[str]:
    """Return the lines of a drawing; if heads differ, one drawing per pattern, two in each row."""
    blocks = []
    for head_pattern, heads in group_heads_by_pattern(pattern).items():
        title = [format_index_ranges("head", heads)] if isinstance(pattern, spec.PerHead) else []
        blocks.append(title + draw_grid(head_pattern))
    lines = []
    for left, right in zip_longest(blocks[::2], blocks[1::2], fillvalue=[""]):
        width = max(map(len, left)) + 4
        lines += [f"{a:<{width}}{b}".rstrip() for a, b in zip_longest(left, right, fillvalue="")]
    return lines


def group_heads_by_pattern(pattern: Pattern) -> dict[Pattern, list[int]]:
    """Return every distinct pattern with the indices of the heads that use it."""
    head_patterns = pattern.patterns if isinstance(pattern, spec.PerHead) else (pattern,)
    heads_by_pattern: dict[Pattern, list[int]] = {}
    for head, head_pattern in enumerate(head_patterns):
        heads_by_pattern.setdefault(head_pattern, []).append(head)
    return heads_by_pattern


def draw_grid(pattern: Pattern) -> list[str]:
    """Return the lines of the first positions, and the scale if the pattern was scaled down."""
    visibility, factor = compute_visibility(pattern)
    lines = [
        " ".join(VISIBLE_MARK if is_visible else MASKED_MARK for is_visible in row)
        for row in visibility
    ]
    return [*lines, f"drawn {factor:.0f} times smaller"] if factor > 1 else lines


def compute_visibility(
    pattern: Pattern, size: int = GRID_SIZE, memory_length: int = 0
) -> tuple[list[list[bool]], float]:
    """Return which of the first keys each of the first queries attends to, and the scale factor.

    `memory_length` keys precede the first query."""
    pattern = pattern.with_memory(memory_length or size // 2 - 1)
    factor = max(1.0, find_largest_extent(pattern) / (size // 2))
    shrunk = shrink_pattern(pattern, factor)
    visibility = [
        [bool(shrunk(i + memory_length, j)) for j in range(size + memory_length)]
        for i in range(size)
    ]
    return visibility, factor


def find_largest_extent(pattern: Pattern) -> int:
    """Return the largest number of a pattern; a window on both sides counts twice."""
    extents = [
        find_largest_extent(value) if isinstance(value, Pattern) else value
        for value in vars(pattern).values()
    ]
    return max([0, *extents]) * (2 if isinstance(pattern, spec.Local) else 1)


def shrink_pattern(pattern: Pattern, factor: float) -> Pattern:
    """Return the pattern with all its numbers divided by the factor."""
    changes: dict[str, Any] = {
        name: shrink_pattern(value, factor)
        if isinstance(value, Pattern)
        else max(1, round(value / factor))
        for name, value in vars(pattern).items()
    }
    return replace(pattern, **changes)  # type: ignore[type-var]


def format_index_ranges(name: str, indices: list[int]) -> str:
    """Return `layer 3`, `layers 0-11 ×12` or `layers 0, 2 … 22 ×12`."""
    if not indices[1:]:
        return f"{name} {indices[0]}"
    runs = [indices[:1]]
    for previous, index in pairwise(indices):
        if index == previous + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    ranges = [f"{run[0]}-{run[-1]}" if run[1:] else str(run[0]) for run in runs]
    if len(ranges) > 3:
        ranges = [f"{', '.join(ranges[:2])} … {ranges[-1]}"]
    return f"{name}s {', '.join(ranges)} ×{len(indices)}"
