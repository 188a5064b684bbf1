"""Formatting of counts and durations."""

from __future__ import annotations

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
