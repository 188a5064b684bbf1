"""Formatting of counts and durations, and round numbers for the axes of charts."""

from __future__ import annotations

import math
from collections.abc import Sequence


def format_count(count: float, units: Sequence[str] = ("", "K", "M", "B", "T")) -> str:
    """Return a count with three significant digits and a unit: 124M."""
    unit, *larger = units
    while count >= 999.5 and larger:
        count /= 1000
        unit, *larger = larger
    digits = 0 if count >= 99.95 or unit == units[0] else 1 if count >= 9.995 else 2
    return f"{count:.{digits}f}{unit}"


def format_duration(seconds: float) -> str:
    """Return hours, minutes and seconds, or days and hours: 2:03, 1:00:42, 3d 04:10."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24}d {hours % 24:02}:{minutes:02}"
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def compute_ticks(low: float, high: float, count: int) -> list[float]:
    """Return about `count` round numbers whose range includes both ends."""
    if high - low < 1e-9 * max(abs(low), abs(high), 1e-9):
        low -= max(abs(low), 1) / 2
        high += max(abs(high), 1) / 2
    min_step = (high - low) / count
    unit = 10.0 ** math.floor(math.log10(min_step))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= min_step * (1 - 1e-9))
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]
