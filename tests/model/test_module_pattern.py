"""Patterns of module names match as `re` does, in polynomial time."""

import random
import re

import pytest

from qkv.model.adapters.module_pattern import ModulePattern
from tests.support.errors import assert_error
from tests.support.limits import limit_time_and_memory

NAMES = (
    "", "a", "b", ".", "a.b", "aab", "abab", "model.layers.0.q_proj", "model.layers.12.q_proj",
    "encoder.layer.3.attention.self.query", "q_proj", "x.qq_proj", "a.aa.b1.2",
)  # fmt: skip
PATTERNS = (
    "", "a", "q_proj", r"model\.layers\.\d+\.(q|v)_proj", "layers.[0-9]+.q_proj", "^model.*q_proj$",
    ".*", "a*b?", "(a|b)+", "(?:ab){2}", "(?:ab){1,}", "a{0,1}b", "a{,2}b", "[^.]+", "[]a]", r"[\]a]",
    "(a?){3}b", "(a*)*b", "(|a)b", "a.*?b", "(a|ab)(c|bcd)?", "q|v|query", r"\w+", "layer.3.*", "a|^b",
)  # fmt: skip


def matches_with_re(pattern: str, name: str) -> bool:
    return re.fullmatch(rf"(.*\.)?({pattern})", name) is not None


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_matches_as_re_does(pattern: str) -> None:
    parsed = ModulePattern(pattern)
    for name in NAMES:
        assert parsed.matches(name) == matches_with_re(pattern, name), name


def test_random_patterns_match_as_re_does() -> None:
    generator = random.Random(0)

    def draw_pattern(depth: int) -> str:
        items = [
            generator.choice(["a", "b", ".", "[ab]", r"\.", f"({draw_pattern(depth - 1)})"])
            if depth
            else generator.choice("ab.")
            for _ in range(generator.randint(1, 3))
        ]
        quantifiers = ["", "", "", "*", "+", "?", "{2}", "{1,2}", "{0,}", "*?"]
        branch = "".join(item + generator.choice(quantifiers) for item in items)
        return branch if generator.random() < 0.7 or not depth else f"{branch}|{draw_pattern(0)}"

    for _ in range(300):
        pattern = draw_pattern(2)
        parsed = ModulePattern(pattern)
        for _ in range(20):
            name = "".join(generator.choices("ab.", k=generator.randint(0, 7)))
            assert parsed.matches(name) == matches_with_re(pattern, name), (pattern, name)


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+$x", "(a|a)*x", "(a?){99}x", "a?" * 60 + "a" * 60, "(.*)*" * 9 + "x", "((((a*)*)*)*)*x"],
)
def test_a_runaway_pattern_ends(pattern: str) -> None:
    with limit_time_and_memory():
        ModulePattern(pattern).matches("a" * 100)


@pytest.mark.parametrize(
    "pattern",
    ["(", ")", "a)", "*", "a**", "[", r"(a)\1", "(?=a)", "(?P<x>a)", "(?i)a", r"\b", r"a\Z", "a*+",
     "x" * 1001, "(" * 400 + ")" * 400, "a{4294967296}", "a{2,1}"],
)  # fmt: skip
def test_other_patterns_are_errors(pattern: str) -> None:
    assert_error(lambda: ModulePattern(pattern), "the pattern", "not supported")
