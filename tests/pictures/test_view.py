"""Alignments as SVG and HTML: well-formed, escaped, complete and self-contained."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from qkv.pictures.attention import render_attention_svg, render_svg
from qkv.pictures.page import render_html
from qkv.pictures.views.matrix import LEGEND_WEIGHTS, MAX_WORD_CHARACTERS
from qkv.tasks.alignment import Alignment, TextSpan

SVG = "{http://www.w3.org/2000/svg}"
VOID_TAGS = ("meta",)


def build_alignment(source: list[str], target: list[str]) -> Alignment:
    """Words separated by spaces; the largest weight of a row is on the diagonal."""

    def build_spans(words: list[str]) -> tuple[TextSpan, ...]:
        starts = [sum(len(word) + 1 for word in words[:i]) for i in range(len(words))]
        return tuple(
            TextSpan(word, start, start + len(word))
            for word, start in zip(words, starts, strict=True)
        )

    rows = [
        [0.8 if s == t else 0.2 / len(source) for s in range(len(source))]
        for t in range(len(target))
    ]
    return Alignment(build_spans(source), build_spans(target), tuple(map(tuple, rows)))


UNUSUAL = build_alignment(
    ["<script>", "alert(1)", "</script>", "\"&'", "東京", "\x12\x00", "x" * 60],
    ["&amp;", "<!--", "]]>", "<b>"],
)
PLAIN = build_alignment("Wo ist der Bahnhof ?".split(), "Where is the station ?".split())


class PageParser(HTMLParser):
    """Parses a page and asserts that its elements are nested."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open_tags: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []  # tag, text
        self.feed(text)
        self.close()
        assert self.open_tags == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open_tags += [] if tag in VOID_TAGS else [tag]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open_tags.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open_tags[-1] if self.open_tags else "", data))


# --- SVG ---


@pytest.mark.parametrize(
    "alignments",
    [[PLAIN], [PLAIN, UNUSUAL], [build_alignment(["a"], [])], [build_alignment([], ["b"])], []],
)
def test_svg_is_xml_with_title_and_description(alignments: list[Alignment]) -> None:
    root = ET.fromstring(render_svg("mine & <yours>", alignments))
    assert root.findtext(f"{SVG}title") == "mine & <yours>"
    assert root.find(f"{SVG}desc") is not None
    assert root.attrib["role"] == "img"
    cells = [group for group in root.iter(f"{SVG}g") if "data-row" in group.attrib]
    assert len(cells) == sum(len(one.source) * len(one.target) for one in alignments)
    assert "prefers-color-scheme: dark" in (root.findtext(f"{SVG}style") or "")
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for rect in root.iter(f"{SVG}rect"):
        assert 0 <= float(rect.get("x", 0)) + float(rect.attrib["width"]) <= width
        assert 0 <= float(rect.get("y", 0)) + float(rect.attrib["height"]) <= height


def test_cell_opacity_is_the_weight() -> None:
    root = ET.fromstring(render_svg("fine", [PLAIN]))
    cells = {
        (int(group.attrib["data-row"]), int(group.attrib["data-column"])): group
        for group in root.iter(f"{SVG}g") if "data-row" in group.attrib
    }  # fmt: skip
    for (row, column), cell in cells.items():
        full = next(rect for rect in cell if rect.get("class") == "full")
        assert float(full.attrib["fill-opacity"]) == pytest.approx(
            PLAIN.weights[row][column], abs=0.005
        )
        assert any(rect.get("class") == "best" for rect in cell) == (row == column)
        words = f"{PLAIN.target[row].text} ← {PLAIN.source[column].text} "
        assert (cell.findtext(f"{SVG}title") or "").startswith(words)
    assert (root.findtext(f"{SVG}desc") or "").startswith("Where ← Wo 0.80; is ← ist 0.80;")
    assert ".80" in [element.text for element in root.iter(f"{SVG}text")]


def test_unusual_words_are_escaped() -> None:
    svg = render_svg("odd", [UNUSUAL])
    root = ET.fromstring(svg)
    texts = [element.text for element in root.iter(f"{SVG}text")]
    assert {"<script>", "</script>", "\"&'", "東京", "��", "&amp;", "<!--"} <= {*texts}
    assert "x" * (MAX_WORD_CHARACTERS - 1) + "…" in texts
    assert not list(root.iter(f"{SVG}script"))
    assert "<script" not in svg
    assert "می\u200cخواهم" in render_svg("x", [build_alignment(["می\u200cخواهم"], ["I"])])


def list_texts(svg: str, css_class: str | None = None) -> list[str]:
    return [
        element.text or ""
        for element in ET.fromstring(svg).iter(f"{SVG}text")
        if css_class in (None, element.get("class"))
    ]


def test_axes_layer_and_legend_are_named() -> None:
    svg = render_svg("fine", [replace(PLAIN, layer=4), replace(PLAIN, layer=4)], "translation")
    assert list_texts(svg, "title") == ["fine"]
    assert list_texts(svg, "axis") == ["source →", "← translation"] * 2
    assert list_texts(svg, "legend") == ["attention weight", "largest of its row"]
    layer = "Cross-attention of decoder layer 4 (counted from 0), mean of the heads"
    assert list_texts(svg).count(layer) == 1
    both = render_svg("fine", [replace(PLAIN, layer=0), replace(PLAIN, layer="mean")])
    assert any(
        "decoder layer 0" in text and "mean of all decoder layers" in text
        for text in list_texts(both)
    )
    assert "Cross-attention" not in render_svg("fine", [PLAIN])


def test_legend_cells_have_the_color_of_their_number() -> None:
    root = ET.fromstring(render_svg("fine", []))
    legend = root.findall(f"{SVG}g")[-1]
    opacities = [rect.attrib["fill-opacity"] for rect in legend if rect.get("class") == "full"]
    numbers = [item.text for item in legend if (item.get("class") or "").startswith("number")]
    assert opacities == [f"{weight:.2f}" for weight in LEGEND_WEIGHTS[1:]]
    assert numbers == ["0", *(text.removeprefix("0") for text in opacities)]


def test_attention_of_a_head() -> None:
    weights = [[0.9, 0.1], [0.3, 0.7]]
    tokens = ["<s>", "a"]
    svg = render_attention_svg("One", weights, tokens, tokens, "encoder.layers.3.attention", 2)
    assert "Encoder self-attention, layer 3, head 2 (counted from 0)" in list_texts(svg)
    assert list_texts(svg, "axis") == ["keys →", "← queries"]
    cross = "decoder.layers.0.cross_attention"
    svg = render_attention_svg("One", weights, ["x", "y"], tokens, cross, 0)
    assert "Decoder cross-attention, layer 0, head 0 (counted from 0)" in list_texts(svg)
    assert "y ← a 0.70" in (ET.fromstring(svg).findtext(f"{SVG}desc") or "")


# --- HTML ---


def test_page_contains_both_texts_and_the_weights() -> None:
    page = PageParser(render_html("mine & <yours>", [PLAIN, UNUSUAL]))
    assert ("h1", "mine & <yours>") in page.texts
    words = [text for tag, text in page.texts if tag == "span"]
    spans = [*PLAIN.source, *PLAIN.target, *UNUSUAL.source, *UNUSUAL.target]
    assert words == [span.text.replace("\x12\x00", "��") for span in spans]
    elements = [attributes for tag, attributes in page.tags if tag == "span"]
    assert all(attributes["tabindex"] == "0" for attributes in elements)
    data = [
        json.loads(text) for tag, text in page.texts if tag == "script" and text.startswith("[[")
    ]
    assert data == [
        [[round(weight, 4) for weight in row] for row in one.weights] for one in (PLAIN, UNUSUAL)
    ]
    assert [tag for tag, _ in page.tags].count("svg") == 3  # and the legend
    assert [tag for tag, _ in page.tags].count("script") == 3


def test_page_names_axes_and_layer() -> None:
    page = PageParser(render_html("x", [replace(PLAIN, layer="mean")], target_name="summary"))
    texts = [text for _, text in page.texts]
    assert "Cross-attention, mean of all decoder layers and heads" in texts
    assert {"source →", "← summary", "attention weight"} <= {*texts}


def test_whitespace_is_kept() -> None:
    alignment = Alignment(
        (TextSpan("Bahnhof", 4, 11), TextSpan("?", 11, 12), TextSpan("Ja", 14, 16)), (), ()
    )
    text = "".join(
        text
        for tag, text in PageParser(render_html("x", [alignment])).texts
        if tag in ("span", "p")
    )
    assert "Bahnhof? Ja" in text


def test_page_loads_no_other_resource() -> None:
    text = render_html("x", [PLAIN, UNUSUAL])
    page = PageParser(text)
    assert {*re.findall(r"\w+://[^\"'\s]+", text)} == {"http://www.w3.org/2000/svg"}
    assert not [
        name
        for _, attributes in page.tags
        for name in attributes
        if name in ("src", "href", "onclick")
    ]
    policy = next(
        attributes["content"] for _, attributes in page.tags if attributes.get("http-equiv")
    )
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "<!-- " not in re.sub(r"&lt;!--", "", text)
