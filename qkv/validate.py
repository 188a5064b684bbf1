"""Validation of arguments: numbers within bounds, sequence lengths, and name patterns that must match
a name."""

import difflib
import math
import operator
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

# Tokens need about 300 bytes for each character. A long novel has fewer characters.
MAX_TEXT_CHARACTERS = 2**22
BOUND_OPERATORS = dict(
    at_least=operator.ge, more_than=operator.gt, at_most=operator.le, less_than=operator.lt
)
MAX_REPR_BITS = 10_000


def check_number(name: str, value: object, *, integer: bool = False, **bounds: float) -> None:
    """Raise ValueError unless the value is a finite number (or an integer) within the bounds.

    Example: `check_number("weight_decay", 0.1, at_least=0, less_than=1)`."""
    is_number = isinstance(value, int if integer else int | float) and not isinstance(value, bool)
    is_finite = isinstance(value, int) or (is_number and math.isfinite(value))  # type: ignore[arg-type]
    if (
        not is_number
        or not is_finite
        or not all(BOUND_OPERATORS[kind](value, bound) for kind, bound in bounds.items())  # type: ignore[arg-type]
    ):
        limits = " and ".join(
            f"{kind.replace('_', ' ')} {bound:g}" for kind, bound in bounds.items()
        )
        raise ValueError(
            f"{name} is {shorten_repr(value)}: expected a {'whole ' if integer else ''}number, {limits}"
        )


def check_sequence_length(
    name: str, num_tokens: int, max_positions: int | None, reader: str = "the model"
) -> None:
    """Raise ValueError if a row has more than `max_positions` tokens; None means no limit."""
    if max_positions is not None and num_tokens > max_positions:
        raise ValueError(
            f"{name}: {num_tokens:,} tokens in a row, expected at most {max_positions:,}, the number "
            f"of positions of {reader}; truncate the row or split it into windows"
        )


def check_text_length(name: str, text: str) -> None:
    """Raise ValueError for a text that is too long to be tokenized at once."""
    if len(text) > MAX_TEXT_CHARACTERS:
        raise ValueError(
            f"{name}: {len(text):,} characters, expected at most {MAX_TEXT_CHARACTERS:,} in one text; "
            "split it into smaller texts, such as lines"
        )


def shorten_repr(value: object, max_length: int = 80) -> str:
    """Return the repr of a value, shortened for an error message."""
    if (
        isinstance(value, int) and value.bit_length() > MAX_REPR_BITS
    ):  # Python prints no larger ones
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    if len(text) <= max_length:
        return text
    return f"{text[: max_length - 10]}... ({len(text)} characters)"


def summarize_problems(problems: Sequence[str]) -> str:
    """Return the first problem and the number of further problems."""
    more = f"; and {len(problems) - 1} more" if problems[1:] else ""
    return problems[0] + more


def match_names(item_name: str, patterns: str | Iterable[str], names: Iterable[str]) -> list[str]:
    """Return the names that match a pattern in full or after a dot; every pattern must match a name.

    `q` matches `encoder.layers.0.attention.q`; `layers.[01].*` matches all names of the first two
    layers."""
    names = list(names)
    matches: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        pattern_matches = [name for name in names if fnmatchcase(f".{name}", f"*.{pattern}")]
        if not pattern_matches:
            closest = difflib.get_close_matches(pattern, names, n=3, cutoff=0.0)
            nearest = ", ".join(closest) or "there are none"
            raise ValueError(f"pattern {pattern!r} matches no {item_name}; nearest: {nearest}")
        matches.update(pattern_matches)
    return [name for name in names if name in matches]
