"""Numbers as people read them: counts, sizes and times in a few digits."""

from __future__ import annotations

from collections.abc import Sequence


def human(count: float, units: Sequence[str] = ("", "K", "M", "B", "T")) -> str:
    """Three digits and a unit: 124M."""
    unit, *larger = units
    while count >= 999.5 and larger:
        count, unit, *larger = count / 1000, *larger
    digits = 0 if count >= 99.95 or unit == units[0] else 1 if count >= 9.995 else 2
    return f"{count:.{digits}f}{unit}"


def lasting(seconds: float) -> str:
    """Hours, minutes and seconds: 2:03, 1:00:42; days where there are some: 3d 04:10."""
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24}d {hours % 24:02}:{minutes:02}"
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"
