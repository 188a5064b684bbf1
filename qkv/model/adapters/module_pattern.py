"""Regular expressions for names of modules, as in `alpha_pattern` of PEFT. A pattern comes from a file,
so that it must not run for ever: all its matches are followed at once, in polynomial time.

    pattern   branch | branch ...
    branch    items, each perhaps with * + ? {2} {2,} {2,4}
    item      a character, . [abc] \\d (pattern) (?:pattern) ^ $
"""

from __future__ import annotations

import re
from collections.abc import Callable

MAX_PATTERN_LENGTH = 1000
Positions = frozenset[int]
Matcher = Callable[[str, Positions], Positions]  # from where a match may start to where it may end
CHARACTER = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]|\\[^\dAbBZ]|[^\\*+?{()|\[]", re.DOTALL)
QUANTIFIER = re.compile(r"([*+?])|\{(\d{0,9})(,?)(\d{0,9})\}")


class ModulePattern:
    """A pattern that matches the whole name of a module, or its end after a dot."""

    def __init__(self, pattern: str) -> None:
        """Parse a pattern; raise ValueError if it is not supported."""
        self.pattern = pattern
        self.position = 0
        if len(pattern) > MAX_PATTERN_LENGTH:
            raise self._error(f"{len(pattern):,} characters, at most {MAX_PATTERN_LENGTH:,}")
        try:
            re.compile(pattern)
            self.match = self._parse_branches()
        except (re.error, RecursionError, OverflowError) as error:
            raise self._error(str(error)) from None
        if self.position < len(pattern):
            raise self._error(f"{pattern[self.position :][:20]!r}")

    def matches(self, name: str) -> bool:
        """Return whether the pattern matches a name in full, or its end after a dot."""
        starts = frozenset({0, *(i + 1 for i, character in enumerate(name) if character == ".")})
        return len(name) in self.match(name, starts)

    def _error(self, cause: str) -> ValueError:
        return ValueError(
            f"the pattern {self.pattern[:80]!r} is not supported ({cause}); expected the name of a "
            "module, or characters, groups, | and repetitions"
        )

    def _accept(self, text: str) -> bool:
        is_next = self.pattern.startswith(text, self.position)
        self.position += len(text) * is_next
        return is_next

    def _parse_branches(self) -> Matcher:
        branches = [self._parse_branch()]
        while self._accept("|"):
            branches.append(self._parse_branch())
        return lambda name, starts: frozenset().union(*(match(name, starts) for match in branches))

    def _parse_branch(self) -> Matcher:
        items: list[Matcher] = []
        while self.position < len(self.pattern) and self.pattern[self.position] not in "|)":
            items.append(self._parse_repetition(self._parse_item()))

        def match(name: str, starts: Positions) -> Positions:
            for item in items:
                starts = item(name, starts)
            return starts

        return match

    def _parse_item(self) -> Matcher:
        if self._accept("("):
            if self.pattern.startswith("?", self.position) and not self._accept("?:"):
                raise self._error(f"({self.pattern[self.position : self.position + 3]}")
            group = self._parse_branches()
            self._accept(")")
            return group
        if self._accept("^"):
            return lambda name, starts: starts & {0}
        if self._accept("$"):
            return lambda name, starts: starts & {len(name)}
        character = CHARACTER.match(self.pattern, self.position)
        if character is None:
            raise self._error(f"{self.pattern[self.position :][:20]!r}")
        self.position = character.end()
        test = re.compile(character[0]).fullmatch
        return lambda name, starts: frozenset(
            i + 1 for i in starts if i < len(name) and test(name[i])
        )

    def _parse_repetition(self, item: Matcher) -> Matcher:
        quantifier = QUANTIFIER.match(self.pattern, self.position)
        if quantifier is None:
            return item
        self.position = quantifier.end()
        self._accept("?")  # the shortest match first: the same matches
        symbol, low, comma, high = quantifier.groups()
        if symbol is not None:
            at_least, at_most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[symbol]
        else:
            at_least = int(low or 0)
            at_most = (int(high) if high else None) if comma else at_least
        return repeat(item, at_least, at_most)


def repeat(item: Matcher, at_least: int, at_most: int | None) -> Matcher:
    """Return a matcher of repetitions; more of them than characters change nothing."""

    def match(name: str, starts: Positions) -> Positions:
        for _ in range(min(at_least, len(name) + 1)):
            if (following := item(name, starts)) == starts:
                break
            starts = following
        ends = newest = starts
        num_optional = len(name) if at_most is None else min(at_most - at_least, len(name))
        for _ in range(num_optional):
            newest = item(name, newest) - ends
            if not newest:
                break
            ends |= newest
        return ends

    return match
