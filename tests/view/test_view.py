"""Weights between words as a picture and as a page: well-formed, escaped, complete, and asking nobody."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest

from qkv.tasks.alignment import Alignment, Piece
from qkv.view.page import page
from qkv.view.pictures import LONGEST, drawn, picture

SVG = "{http://www.w3.org/2000/svg}"
VOID = ("meta",)


def matrix(source: list[str], target: list[str]) -> Alignment:
    """Words with blanks between them; the best of a row stands where the row does."""

    def pieces(words: list[str]) -> tuple[Piece, ...]:
        starts = [sum(len(word) + 1 for word in words[:i]) for i in range(len(words))]
        return tuple(Piece(word, start, start + len(word)) for word, start in zip(words, starts, strict=True))

    rows = [[0.8 if s == t else 0.2 / len(source) for s in range(len(source))] for t in range(len(target))]
    return Alignment(pieces(source), pieces(target), tuple(map(tuple, rows)))


ODD = matrix(
    ["<script>", "alert(1)", "</script>", "\"&'", "東京", "\x12\x00", "x" * 60],
    ["&amp;", "<!--", "]]>", "<b>"],
)
FINE = matrix("Wo ist der Bahnhof ?".split(), "Where is the station ?".split())


class Tags(HTMLParser):
    """Reads a page, and complains where elements are not nested."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.said: list[tuple[str, str]] = []  # the element, and a text in it
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open += [] if tag in VOID else [tag]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.said.append((self.open[-1] if self.open else "", data))


# --- the picture ---


@pytest.mark.parametrize("shown", [[FINE], [FINE, ODD], [matrix(["a"], [])], [matrix([], ["b"])], []])
def test_a_picture_is_xml_and_says_what_it_shows(shown: list[Alignment]) -> None:
    root = ET.fromstring(picture("mine & <yours>", shown))
    assert root.findtext(f"{SVG}title") == "mine & <yours>"
    assert root.find(f"{SVG}desc") is not None
    assert root.attrib["role"] == "img"
    cells = [each for each in root.iter(f"{SVG}g") if "data-row" in each.attrib]
    assert len(cells) == sum(len(one.source) * len(one.target) for one in shown)
    assert "prefers-color-scheme: dark" in (root.findtext(f"{SVG}style") or "")
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for rect in root.iter(f"{SVG}rect"):
        assert 0 <= float(rect.get("x", 0)) + float(rect.attrib["width"]) <= width
        assert 0 <= float(rect.get("y", 0)) + float(rect.attrib["height"]) <= height


def test_cells_are_as_strong_as_their_weights() -> None:
    root = ET.fromstring(picture("fine", [FINE]))
    cells = {
        (int(each.attrib["data-row"]), int(each.attrib["data-column"])): each
        for each in root.iter(f"{SVG}g") if "data-row" in each.attrib
    }  # fmt: skip
    for (row, column), each in cells.items():
        full = next(rect for rect in each if rect.get("class") == "full")
        assert float(full.attrib["fill-opacity"]) == pytest.approx(FINE.weights[row][column], abs=0.005)
        assert any(rect.get("class") == "best" for rect in each) == (row == column)
        words = f"{FINE.target[row].text} ← {FINE.source[column].text} "
        assert (each.findtext(f"{SVG}title") or "").startswith(words)
    assert drawn(FINE).words.startswith("Where ← Wo 0.80; is ← ist 0.80;")
    assert ".80" in [each.text for each in root.iter(f"{SVG}text")]


def test_odd_words_are_text() -> None:
    svg = picture("odd", [ODD])
    root = ET.fromstring(svg)
    said = [each.text for each in root.iter(f"{SVG}text")]
    assert {"<script>", "</script>", "\"&'", "東京", "��", "&amp;", "<!--"} <= {*said}
    assert "x" * (LONGEST - 1) + "…" in said
    assert not list(root.iter(f"{SVG}script"))
    assert "<script" not in svg
    assert "می\u200cخواهم" in picture("x", [matrix(["می\u200cخواهم"], ["I"])])


# --- the page ---


def test_a_page_holds_both_texts_and_the_numbers() -> None:
    tags = Tags(page("mine & <yours>", [FINE, ODD]))
    assert ("h1", "mine & <yours>") in tags.said
    words = [text for tag, text in tags.said if tag == "span"]
    every = [*FINE.source, *FINE.target, *ODD.source, *ODD.target]
    assert words == [piece.text.replace("\x12\x00", "��") for piece in every]
    spans = [attributes for tag, attributes in tags.tags if tag == "span"]
    assert all(each["tabindex"] == "0" for each in spans)
    data = [json.loads(text) for tag, text in tags.said if tag == "script" and text.startswith("[[")]
    assert data == [[[round(weight, 4) for weight in row] for row in one.weights] for one in (FINE, ODD)]
    assert [tag for tag, _ in tags.tags].count("svg") == 2
    assert [tag for tag, _ in tags.tags].count("script") == 3


def test_blanks_stand_where_they_stood() -> None:
    close = Alignment((Piece("Bahnhof", 4, 11), Piece("?", 11, 12), Piece("Ja", 14, 16)), (), ())
    text = "".join(text for tag, text in Tags(page("x", [close])).said if tag in ("span", "p"))
    assert "Bahnhof? Ja" in text


def test_a_page_asks_nobody() -> None:
    text = page("x", [FINE, ODD])
    tags = Tags(text)
    assert {*re.findall(r"\w+://[^\"'\s]+", text)} == {"http://www.w3.org/2000/svg"}
    assert not [name for _, each in tags.tags for name in each if name in ("src", "href", "onclick")]
    policy = next(each["content"] for tag, each in tags.tags if each.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "<!-- " not in re.sub(r"&lt;!--", "", text)
