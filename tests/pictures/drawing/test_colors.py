"""The palettes are those of the page, and colors of heads differ for everyone; colors between the stops."""

from __future__ import annotations

import re
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from qkv.pictures.drawing.colors import (
    HEAD_PALETTE,
    SIGNED_PALETTE,
    WEIGHT_PALETTE,
    Palette,
    build_head_rules,
    get_head_class,
    interpolate_color,
)
from tests.conftest import ROOT

Color = NDArray[np.float64]
# Linear RGB as people see it without one kind of cones (Machado et al. 2009, severity 1).
VISIONS = {
    "normal": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protan": [
        [0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881],
    ],
    "tritan": [
        [1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900],
    ],
}  # fmt: skip
# OKLab (Ottosson 2020): linear RGB to cones, and the cube roots of cones to lightness and opponent colors.
TO_CONES = [
    [0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
]  # fmt: skip
TO_LAB = [
    [0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.8086757660],
]  # fmt: skip
# Smallest distances in OKLab of any two of the first colors. The palette has, of the first 8 and of all 16,
# 0.0687 and 0.0584 on dark pages and 0.0689 and 0.0600 on light ones, with protan or deutan vision, and 0.141
# and 0.098 with normal vision. A difference of about 0.02 is just noticeable.
LEAST_DISTANCES = {8: 0.068, 16: 0.058}
LEAST_CONTRAST = (
    3  # of graphics with their background: WCAG 2.1, 1.4.11; the palette has 3.31 and 4.34
)


def to_linear(color: str) -> Color:
    """Return red, green and blue of an sRGB color as amounts of light."""
    values = np.frombuffer(bytes.fromhex(color.removeprefix("#")), np.uint8) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def simulate(color: str, vision: str) -> Color:
    """Return the place in OKLab of a color as it looks with a kind of vision."""
    linear = np.clip(np.array(VISIONS[vision]) @ to_linear(color), 0, 1)
    place: Color = np.array(TO_LAB) @ np.cbrt(np.array(TO_CONES) @ linear)
    return place


def measure_distance(color: str, other: str, vision: str) -> float:
    return float(np.linalg.norm(simulate(color, vision) - simulate(other, vision)))


def measure_contrast(color: str, other: str) -> float:
    """Return the contrast ratio of WCAG."""
    low, high = sorted(float(to_linear(x) @ [0.2126, 0.7152, 0.0722]) for x in (color, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("theme", Palette._fields)
def test_colors_of_heads_differ_for_everyone(theme: str, vision: str) -> None:
    colors = getattr(HEAD_PALETTE, theme)
    for count, least in LEAST_DISTANCES.items():
        distances = {
            pair: measure_distance(*pair, vision) for pair in combinations(colors[:count], 2)
        }
        pair = min(distances, key=lambda pair: distances[pair])
        assert distances[pair] >= least, pair


@pytest.mark.parametrize("theme", Palette._fields)
def test_colors_of_heads_stand_out_from_the_page(theme: str) -> None:
    style = (ROOT / "qkv/explorer/page/style.css").read_text(encoding="utf-8")
    pages = dict(zip(Palette._fields, re.findall(r"--page: (#[0-9a-f]{6})", style), strict=True))
    for color in getattr(HEAD_PALETTE, theme):
        assert measure_contrast(color, pages[theme]) >= LEAST_CONTRAST, color


def test_the_simulation_of_color_vision() -> None:
    """Gray looks the same to everyone; red and green differ less without one kind of their cones."""
    for vision in VISIONS:
        assert measure_distance("#808080", "#ffffff", vision) == pytest.approx(0.4, abs=0.01)
        assert simulate("#808080", vision)[1:] == pytest.approx([0, 0], abs=1e-3)
    red, green = "#c0504d", "#6f8f30"
    assert measure_distance(red, green, "normal") > 0.2
    assert measure_distance(red, green, "deutan") < LEAST_DISTANCES[16]
    assert measure_distance("#0070c0", "#00806a", "tritan") < LEAST_DISTANCES[16]
    assert measure_contrast("#ffffff", "#000000") == pytest.approx(21)


@pytest.mark.parametrize(
    ("name", "palette"),
    [("HEADS", HEAD_PALETTE), ("WEIGHTS", WEIGHT_PALETTE), ("SIGNED", SIGNED_PALETTE)],
)
def test_the_page_has_the_same_colors(name: str, palette: Palette) -> None:
    script = (ROOT / "qkv/explorer/page/drawing/colors.js").read_text(encoding="utf-8")
    for theme, colors in palette._asdict().items():
        match = re.search(rf"const {theme.upper()}_{name} = \[([^\]]*)\]", script)
        assert match is not None
        assert re.findall(r"#[0-9a-f]{6}", match[1]) == list(colors)


def test_colors_between_stops() -> None:
    stops = ["#000000", "#ffffff", "#ff0000"]
    assert interpolate_color(stops, 0) == bytes([0, 0, 0])
    assert interpolate_color(stops, 0.25) == bytes([128, 128, 128])
    assert interpolate_color(stops, 0.5) == bytes([255, 255, 255])
    assert interpolate_color(stops, 1) == bytes([255, 0, 0])


def test_colors_of_heads_repeat() -> None:
    assert len({*HEAD_PALETTE.light}) == len({*HEAD_PALETTE.dark}) == 16
    assert get_head_class(3) == get_head_class(19) == "h3"
    rules = build_head_rules([3, 19, 0], ["fill", "stroke"])
    assert dict(rules) == {
        ".h0": ("fill: #116adb; stroke: #116adb", "fill: #90bdff; stroke: #90bdff"),
        ".h3": ("fill: #a84700; stroke: #a84700", "fill: #fc935d; stroke: #fc935d"),
    }
