"""The palettes are those of the page; colors between the stops."""

import re

import pytest

from qkv.pictures.colors import (
    HEAD_PALETTE,
    SIGNED_PALETTE,
    WEIGHT_PALETTE,
    Palette,
    build_head_rules,
    get_head_class,
    interpolate_color,
)
from tests.conftest import ROOT


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
