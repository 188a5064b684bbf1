"""The pictures of docs/ are those that tools.pictures draws."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from tools.pictures import DOCS, PICTURES

NUMBER = re.compile(r"\d*\.\d+|\d+")


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_up_to_date(name: str) -> None:
    """Numbers may differ in their last digit: sums depend on the instruction set."""
    committed = (DOCS / name).read_text(encoding="utf-8")
    svg = PICTURES[name]()
    hint = f"docs/{name} is out of date: run python -m tools.pictures"
    assert NUMBER.sub("#", committed) == NUMBER.sub("#", svg), hint
    numbers = [[float(number) for number in NUMBER.findall(text)] for text in (committed, svg)]
    assert numbers[0] == pytest.approx(numbers[1], rel=0, abs=0.0101), hint


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_fit_light_and_dark_pages(name: str) -> None:
    text = (DOCS / name).read_text(encoding="utf-8")
    assert "@media (prefers-color-scheme: dark)" in text
    assert {*re.findall(r"\w+://[^\"'\s]+", text)} == {"http://www.w3.org/2000/svg"}
    root = ET.fromstring(text)
    assert root.attrib["role"] == "img"
    assert root.findtext("{http://www.w3.org/2000/svg}desc")
