"""Checks of the regular expressions and replacements of a tokenizer.json, before a text is encoded.

The engine of the `tokenizers` library tries up to ten million ways to match an expression at each
character of a text. A file must not choose an expression that needs as many."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, normalizers, pre_tokenizers

PARTS_WITH_PATTERNS = ("normalizer", "pre_tokenizer", "decoder")
PROBE_UNITS = ("a", "A", "1", " ", ".", "'", "\n", "é", "▁", "the ")
PROBE_LENGTHS = range(4, 41)  # repetitions of a unit
MAX_PATTERN_UNITS = 40  # characters and words of an expression that are probed as well
MAX_PROBE_SECONDS = 0.02  # for a text of 40 units; usual expressions need a thousandth of it
MAX_GROWTH = 100
MAX_REPLACEMENT_LENGTH = 1000


def check_patterns(data: dict[str, object], path: Path) -> None:
    """Raise ValueError if an expression of a tokenizer.json needs exponential time, or if its
    replacements make a text very much longer."""
    for part in PARTS_WITH_PATTERNS:
        items = [item for item in _iterate_objects(data.get(part)) if "pattern" in item]
        expressions = dict.fromkeys(filter(None, (_get_pattern(item, "Regex") for item in items)))
        for expression in expressions:
            if is_runaway(expression):
                raise ValueError(
                    f"{path}: the regular expression {expression[:80]!r} of the {part} needs a time "
                    "that grows exponentially with the text; expected repetitions that match in one way"
                )
        if _grows_too_much([item for item in items if item.get("type") == "Replace"]):
            raise ValueError(
                f"{path}: the replacements of the {part} make a text more than {MAX_GROWTH} times "
                "longer; expected short replacements"
            )


def is_runaway(expression: str) -> bool:
    """Return whether the time for short texts of one repeated unit grows too fast."""
    try:
        split = pre_tokenizers.Split(Regex(expression), "isolated")
    except Exception:  # not an expression; the library reports it
        return False
    words = re.findall(r"\w{2,12}", expression)
    units = dict.fromkeys([*PROBE_UNITS, *[*expression, *words][:MAX_PATTERN_UNITS]])
    # An end that does not match, but has the characters without which the engine does not start.
    ends = ("", f"\0{expression[:100]}")
    for unit in units:
        for end in ends:
            for length in PROBE_LENGTHS:
                if _is_slow(split, unit * length + end):
                    return True
    return False


def _is_slow(split: pre_tokenizers.PreTokenizer, text: str) -> bool:
    """Return whether each of three attempts is slow: one can be interrupted."""
    for _ in range(3):
        start = time.thread_time()
        try:
            split.pre_tokenize_str(text)
        except BaseException as error:
            if isinstance(error, Exception | KeyboardInterrupt):
                raise
            return True  # a panic in Rust: too many ways to match
        if time.thread_time() - start < MAX_PROBE_SECONDS:
            return False
    return True


def _grows_too_much(replacements: list[dict[str, object]]) -> bool:
    """Return whether replacements, one after another, make a text of their own patterns too long."""
    strings = [
        pattern
        for item in replacements
        for name in ("String", "Regex")
        if (pattern := _get_pattern(item, name))
    ]
    text = probe = "".join([*PROBE_UNITS, *strings])[:1000]
    for item in replacements:
        content = item.get("content")
        if not isinstance(content, str):
            continue
        string, expression = _get_pattern(item, "String"), _get_pattern(item, "Regex")
        if len(content) > MAX_REPLACEMENT_LENGTH:
            return True
        try:
            old = Regex(expression) if expression else string or ""
            text = normalizers.Replace(old, content).normalize_str(text)
        except Exception:  # not an expression; the library reports it
            continue
        if len(text) > MAX_GROWTH * len(probe):
            return True
    return False


def _get_pattern(item: dict[str, object], name: str) -> str | None:
    pattern = item.get("pattern")
    value = pattern.get(name) if isinstance(pattern, dict) else None
    return value if isinstance(value, str) else None


def _iterate_objects(value: object) -> Iterator[dict[str, object]]:
    """Yield the objects of a JSON value, outer ones first, in order."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            yield item
        if isinstance(item, dict | list):
            stack += reversed(list(item.values() if isinstance(item, dict) else item))
