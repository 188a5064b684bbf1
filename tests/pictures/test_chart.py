"""Line charts: scales, names of lines, spread bands, colors for light and dark pages."""

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from qkv.pictures.chart import (
    DARK_LINE_COLORS,
    LINE_COLORS,
    Chart,
    ChartLine,
    ChartPoint,
    build_axis,
    build_x_axis,
    format_tick,
    render_charts_svg,
    spread_heights,
)
from qkv.pictures.drawing.svg import PAGE_MARGIN

LINES = [
    ChartLine("first", [ChartPoint(1, 0.5, 1.0, 1.5), ChartPoint(4, 1.0, 2.0, 3.0)]),
    ChartLine("<second>", [ChartPoint(1, 0.9, 1.1, 1.2)]),
]


def make_chart(**changes: object) -> Chart:
    chart = Chart(title="Panel", lines=LINES, x_label="x (tokens)", y_label="y (nats)")
    return chart._replace(**changes)  # type: ignore[arg-type]


def test_the_picture_is_xml_with_lines_bands_names_and_units() -> None:
    svg = render_charts_svg("Title", "subtitle", [make_chart(), make_chart(title="Other")])
    root = ET.fromstring(svg)
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    for text in ("Title", "subtitle", "Panel", "Other", "x (tokens)", "y (nats)", "<second>"):
        assert text in texts
    assert svg.count('class="band ') == svg.count('class="line ') == 4
    assert "first: 2 (1 to 3)" in svg
    assert "prefers-color-scheme: dark" in svg
    assert "@media print" in svg


def test_lines_have_the_same_color_in_every_panel() -> None:
    svg = render_charts_svg("Title", "", [make_chart(lines=LINES[1:]), make_chart()])
    second, *_ = svg.split("</g>")
    assert 'class="line s0"' in second  # its first line is the first series of the picture
    assert svg.count('class="line s0"') == 2
    assert svg.count('class="line s1"') == 1
    assert len(LINE_COLORS) == len(DARK_LINE_COLORS) == len({*LINE_COLORS})


def test_a_band_reaches_from_the_lowest_to_the_highest_value() -> None:
    y_axis = build_axis([0.5, 3.0], "linear", 220, 0)
    assert (y_axis.low, y_axis.high) == (0.5, 3.0)
    assert y_axis.place(0.5) == 220
    assert y_axis.place(3.0) == 0
    assert y_axis.place(99) == 0  # inside of the plot


def test_log_axes_have_ticks_at_powers() -> None:
    axis = build_axis([3.0, 40.0], "log2", 0, 100)
    assert axis.ticks == pytest.approx([2, 4, 8, 16, 32, 64])
    assert axis.place(2) == 0
    assert axis.place(8) == pytest.approx(40)
    assert build_axis([0.0, 1e-12, 1.0], "log10", 0, 1).place(0.0) == 0
    assert len(build_axis([1e-15, 1.0], "log10", 0, 1).ticks) <= 9


def test_the_values_of_an_x_axis_are_its_ticks_if_there_is_room() -> None:
    few = build_x_axis(make_chart(x_scale="log2"), [6, 12, 6, 24, 48], 0, 300)
    assert list(few.labels) == ["6", "12", "24", "48"]
    many = build_x_axis(make_chart(x_scale="log2"), [*range(100, 200), 1600], 0, 300)
    assert list(many.labels) == ["128", "256", "512", "1,024"]


def test_names_are_places_of_the_x_axis() -> None:
    axis = build_x_axis(make_chart(x_names=["none", "rotary"]), [0, 1], 0, 100)
    assert list(axis.labels) == ["none", "rotary"]
    assert 0 < axis.place(0) < axis.place(1) < 100


@pytest.mark.parametrize(("letters", "rows"), [(1, [5, 0, 0]), (15, [3, 2, 0]), (30, [2, 2, 1])])
def test_labels_that_would_overlap_stand_in_several_rows(letters: int, rows: list[int]) -> None:
    svg = render_charts_svg("Title", "", [make_chart(x_names=[name * letters for name in "abcde"])])
    first = 44 + 220 + 18
    assert [svg.count(f'y="{first + 13 * row}"') for row in range(3)] == rows
    height = float(re.findall(r'class="page" width="\d+" height="(\d+)"', svg)[0])
    lowest = max(float(y) for y in re.findall(r' y="([\d.]+)"', svg))
    assert lowest + PAGE_MARGIN + 50 < height, "the name of the axis is inside of the picture"


def test_points_over_names_are_bars_and_not_connected() -> None:
    svg = render_charts_svg("Title", "", [make_chart(x_names=["a", "b", "c", "d", "e"])])
    assert svg.count('class="bar ') == svg.count("<title>") - 1 == 3
    assert "<polyline" not in svg


def test_a_single_value_has_a_scale() -> None:
    line = ChartLine("one", [ChartPoint(5, 2, 2, 2)])
    for scale in ("linear", "log2", "log10"):
        svg = render_charts_svg(
            "Title", "", [make_chart(lines=[line], x_scale=scale, y_scale=scale)]
        )
        assert "nan" not in svg.lower()
        ET.fromstring(svg)


def test_names_of_lines_do_not_overlap() -> None:
    heights = spread_heights([100, 101, 99, 219, 220], 16, 0, 220)
    assert heights[2] < heights[0] < heights[1] < heights[3] < heights[4] <= 220
    assert all(b - a >= 16 - 1e-9 for a, b in pairwise(sorted(heights)))
    assert spread_heights([], 16, 0, 220) == []


@pytest.mark.parametrize(
    ("value", "label"),
    [(512, "512"), (1024, "1,024"), (65536, "65.5K"), (0.01, "0.01"), (1e-5, "1e-5"), (1.5, "1.5")],
)
def test_ticks_are_short(value: float, label: str) -> None:
    assert format_tick(value) == label
