"""Who sees whom, in words and drawn in characters. Knows patterns; no network, no screen.

A row of a drawing is a query, a column a key. The last 2 positions:

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

GRID = 8
SEES, BLIND = "■", "·"


def words(pattern: Pattern) -> str:
    """What a token sees."""
    match pattern:
        case spec.Everyone():
            return "sees all"
        case spec.Causal():
            return "sees itself and all before"
        case spec.Local():
            return f"sees {pattern.width:,} to either side"
        case spec.Banded(width=1):
            return "sees itself"
        case spec.Banded():
            return f"sees the last {pattern.width:,}"
        case spec.Strided():
            return f"sees one in every {pattern.stride:,} before"
        case spec.Chunk():
            return f"sees its chunk of {pattern.stride:,} so far"
        case spec.Summary():
            return f"sees the last {pattern.cells:,} of every {pattern.stride:,} before"
        case spec.Prefix():
            return f"sees itself and all before, and the first {pattern.length:,}"
        case spec.Recent():
            return "sees as far back as the memory is long"
        case spec.Both():
            return f"{words(pattern.one)}, of which it {words(pattern.two)}"
        case spec.Either():
            return f"{words(pattern.one)}, and {words(pattern.two).removeprefix('sees ')}"
        case spec.ByHead():
            return "; ".join(
                f"{numbered('head', heads)}: {words(rule)}" for rule, heads in kinds(pattern).items()
            )
    return repr(pattern)


def drawing(pattern: Pattern) -> list[str]:
    """Its lines; where heads differ, one drawing for each kind of head, two beside each other."""
    blocks = [
        ([numbered("head", heads)] if isinstance(pattern, spec.ByHead) else []) + grid(rule)
        for rule, heads in kinds(pattern).items()
    ]
    lines = []
    for left, right in zip_longest(blocks[::2], blocks[1::2], fillvalue=[""]):
        width = max(map(len, left)) + 4
        lines += [f"{a:<{width}}{b}".rstrip() for a, b in zip_longest(left, right, fillvalue="")]
    return lines


def kinds(pattern: Pattern) -> dict[Pattern, list[int]]:
    """Each rule and the heads that follow it."""
    found: dict[Pattern, list[int]] = {}
    for head, rule in enumerate(pattern.rules if isinstance(pattern, spec.ByHead) else (pattern,)):
        found.setdefault(rule, []).append(head)
    return found


def grid(rule: Pattern) -> list[str]:
    """Lines for the first positions."""
    seen, times = cells(rule)
    lines = [" ".join(SEES if sees else BLIND for sees in row) for row in seen]
    return [*lines, f"drawn {times:.0f} times smaller"] if times > 1 else lines


def cells(rule: Pattern, size: int = GRID, memory: int = 0) -> tuple[list[list[bool]], float]:
    """Which of the first keys each of the first queries sees; how much smaller the rule's numbers were made.

    `memory` keys stand before the first query."""
    rule = rule.given(memory or size // 2 - 1)
    times = max(1.0, reach(rule) / (size // 2))
    small = shrunk(rule, times)
    return [[bool(small(i + memory, j)) for j in range(size + memory)] for i in range(size)], times


def reach(rule: Pattern) -> int:
    """The largest number in a rule; one that counts to both sides counts twice."""
    numbers = [reach(value) if isinstance(value, Pattern) else value for value in vars(rule).values()]
    return max([0, *numbers]) * (2 if isinstance(rule, spec.Local) else 1)


def shrunk(rule: Pattern, times: float) -> Pattern:
    changes: dict[str, Any] = {
        name: shrunk(value, times) if isinstance(value, Pattern) else max(1, round(value / times))
        for name, value in vars(rule).items()
    }
    return replace(rule, **changes)  # type: ignore[type-var]


def numbered(name: str, numbers: list[int]) -> str:
    """layer 3, layers 0-11 ×12, layers 0, 2 … 22 ×12"""
    if not numbers[1:]:
        return f"{name} {numbers[0]}"
    runs = [numbers[:1]]
    for a, b in pairwise(numbers):
        runs[-1].append(b) if b == a + 1 else runs.append([b])
    names = [f"{run[0]}-{run[-1]}" if run[1:] else str(run[0]) for run in runs]
    names = [f"{', '.join(names[:2])} … {names[-1]}"] if len(names) > 3 else names
    return f"{name}s {', '.join(names)} ×{len(numbers)}"
