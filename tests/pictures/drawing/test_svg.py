"""The frame of a picture: title, subtitle, style, description."""

import pytest

from qkv.pictures.drawing.svg import (
    MAX_DESCRIBED_ITEMS,
    MAX_HEADING_LINES,
    PAGE_MARGIN,
    SvgDrawing,
    format_pixels,
    join_descriptions,
    measure_label,
    render_page_svg,
    wrap_heading,
)
from tests.pictures.pages import ODD_TOKENS, list_page_texts, parse_page

DRAWING = SvgDrawing(200, 100, '<rect class="full" width="200" height="100"/>', "a box")


def test_title_and_subtitle_stand_above_the_drawing() -> None:
    rules = {".bar": ("fill: #111111", "fill: #eeeeee")}
    root = parse_page(render_page_svg("a & <b>", "two", DRAWING, "test", rules))
    assert list_page_texts(root) == ["a & <b>", "two"]
    assert root.findtext("{*}title") == "a & <b>"
    assert root.findtext("{*}desc") == "two; a box"
    light, dark = (root.findtext("{*}style") or "").split("@media")
    assert ".test .bar { fill: #111111 }" in light
    assert ".test .bar { fill: #eeeeee }" in dark
    heights = [float(text.attrib["y"]) for text in root.findall("{*}text")]
    (group,) = root.findall("{*}g")
    top = float(group.attrib["transform"].removesuffix(")").split()[-1])
    assert heights[0] < heights[1] < top
    assert float(root.attrib["height"]) == pytest.approx(top + 100 + PAGE_MARGIN, abs=0.5)


def test_no_line_without_a_subtitle() -> None:
    root = parse_page(render_page_svg("one", "", DRAWING, "test", {}))
    assert list_page_texts(root) == ["one"]
    assert root.findtext("{*}desc") == "a box"


@pytest.mark.parametrize("token", ODD_TOKENS)
def test_titles_may_be_any_text(token: str) -> None:
    root = parse_page(render_page_svg(f"a{token}", token, DRAWING, "test", {}))
    texts = list_page_texts(root)
    assert len(texts) <= 2 * MAX_HEADING_LINES
    assert float(root.attrib["width"]) <= 1400
    assert max(map(measure_label, texts)) < float(root.attrib["width"])


def test_headings_are_wrapped() -> None:
    lines = wrap_heading("long " * 200, 300, 13)
    assert len(lines) == MAX_HEADING_LINES
    assert lines[-1].endswith("…")
    assert max(map(measure_label, lines)) <= 300
    assert wrap_heading("", 300, 13) == []


def test_long_descriptions_are_counted() -> None:
    assert join_descriptions(["a", "b"]) == "a; b"
    text = join_descriptions(["item"] * (MAX_DESCRIBED_ITEMS + 7))
    assert text.count("item") == MAX_DESCRIBED_ITEMS
    assert text.endswith("; and 7 more")


def test_coordinates_are_short() -> None:
    assert [format_pixels(value) for value in (3, 3.0, 3.04, 3.26)] == ["3", "3", "3", "3.3"]
