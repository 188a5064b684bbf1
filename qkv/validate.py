"""What arguments must be, numbers in bounds and patterns that match; what is not is said in one line."""

import difflib
import math
import operator
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

BOUNDS = dict(at_least=operator.ge, more_than=operator.gt, at_most=operator.le, less_than=operator.lt)


def number(name: str, value: object, *, whole: bool = False, **bounds: float) -> None:
    """A finite number, or a whole one, in bounds: `number("decay", 0.1, at_least=0, less_than=1)`."""
    real = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    finite = isinstance(value, int) or (real and math.isfinite(value))  # type: ignore[arg-type]
    if not real or not finite or not all(BOUNDS[b](value, at) for b, at in bounds.items()):  # type: ignore[arg-type]
        said = " and ".join(f"{bound.replace('_', ' ')} {at:g}" for bound, at in bounds.items())
        raise ValueError(f"{name} is {value!r}: expected a {'whole ' if whole else ''}number, {said}")


def counted(problems: Sequence[str]) -> str:
    """The first of several problems, and how many more there are."""
    more = f"; and {len(problems) - 1} more" if problems[1:] else ""
    return problems[0] + more


def matching(what: str, patterns: str | Iterable[str], names: Iterable[str]) -> list[str]:
    """The names that a pattern matches, whole or from a dot on; one that matches none is an error.

    `q` is `encoder.layers.0.attend.q` and all like it; `layers.[01].*` is all of the first two layers."""
    names = list(names)
    found: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        hits = [name for name in names if fnmatchcase(f".{name}", f"*.{pattern}")]
        if not hits:
            near = ", ".join(difflib.get_close_matches(pattern, names, n=3, cutoff=0.0)) or "there are none"
            raise ValueError(f"pattern {pattern!r} matches no {what}; nearest: {near}")
        found.update(hits)
    return [name for name in names if name in found]
