"""Colors of heads, weights and signed numbers on light and on dark pages: those of the explorer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from qkv.pictures.drawing.svg import StyleRules


class Palette(NamedTuple):
    """Hexadecimal colors for light pages and for dark ones."""

    light: Sequence[str]
    dark: Sequence[str]


# Sixteen colors, distinct with normal, protan, deutan and tritan vision; the first are farthest apart.
HEAD_PALETTE = Palette(
    light=(
        "#116adb #76031a #3c2593 #a84700 #b97081 #6f981a #8031ab #0e5b45 "
        "#65006b #58437d #6d7a4e #4a373e #714214 #0b95b3 #9c5090 #4f656e"
    ).split(),
    dark=(
        "#90bdff #da404d #7a70e4 #fc935d #fec6d1 #b5ed51 #cd7ffe #5fa48a "
        "#b156b6 #9e8aca #b8c697 #907981 #bd885c #87e3ff #ed9bde #96aeb8"
    ).split(),
)
# Stops from weight 0 to weight 1, monotone in lightness.
WEIGHT_PALETTE = Palette(
    light="#f3f4f5 #c3d9ee #6fa5d8 #1868ae #08315c".split(),
    dark="#161c24 #123a61 #1f6cb0 #6fb2ee #eaf4fd".split(),
)
# Stops from -1 to 1: orange, neutral, blue.
SIGNED_PALETTE = Palette(
    light="#a84700 #eda15f #f3f4f5 #7fb0e0 #0f5597".split(),
    dark="#ffb27d #b45309 #1a2029 #2368a8 #9fd0ff".split(),
)


def get_head_class(head: int) -> str:
    """Return the CSS class of a head; beyond sixteen heads colors repeat."""
    return f"h{head % len(HEAD_PALETTE.light)}"


def build_head_rules(heads: Iterable[int], properties: Sequence[str]) -> StyleRules:
    """Return the rules of the classes of some heads, with their color in each of the properties."""

    def declare(color: str) -> str:
        return "; ".join(f"{name}: {color}" for name in properties)

    numbers = sorted({head % len(HEAD_PALETTE.light) for head in heads})
    return {
        f".{get_head_class(number)}": (
            declare(HEAD_PALETTE.light[number]),
            declare(HEAD_PALETTE.dark[number]),
        )
        for number in numbers
    }


def interpolate_color(stops: Sequence[str], fraction: float) -> bytes:
    """Return the red, green and blue of a place between the first stop, 0, and the last one, 1."""
    place = fraction * (len(stops) - 1)
    low = min(int(place), len(stops) - 2)
    start, end = (bytes.fromhex(stop.removeprefix("#")) for stop in stops[low : low + 2])
    return bytes(round(a + (b - a) * (place - low)) for a, b in zip(start, end, strict=True))
