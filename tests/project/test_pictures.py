"""The pictures of docs/ are those that tools.pictures draws."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tools.pictures import DOCS, PICTURES

IMAGE_DATA = re.compile(r"data:image/png;base64,[A-Za-z0-9+/=]+")
NUMBER = re.compile(r"\d*\.\d+|\d+")


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_up_to_date(name: str) -> None:
    """Numbers may differ in their last digit: sums depend on the instruction set."""
    hint = f"docs/{name} is out of date: run python -m tools.pictures"
    assert_same_picture(DOCS / name, PICTURES[name](), hint)


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_fit_light_and_dark_pages(name: str) -> None:
    assert_fits_pages(DOCS / name)


def assert_same_picture(path: Path, svg: str, hint: str, tolerance: float = 0.0101) -> None:
    """Assert that a file is a picture, up to its numbers and the bytes of images in it."""
    texts = [IMAGE_DATA.sub("", text) for text in (path.read_text(encoding="utf-8"), svg)]
    assert NUMBER.sub("#", texts[0]) == NUMBER.sub("#", texts[1]), hint
    numbers = [[float(number) for number in NUMBER.findall(text)] for text in texts]
    assert numbers[0] == pytest.approx(numbers[1], rel=0, abs=tolerance), hint


def assert_fits_pages(path: Path) -> None:
    """Assert that a picture has colors for light and dark pages, loads nothing and describes itself."""
    text = path.read_text(encoding="utf-8")
    assert "@media (prefers-color-scheme: dark)" in text
    assert {*re.findall(r"\w+://[^\"'\s]+", text)} == {"http://www.w3.org/2000/svg"}
    root = ET.fromstring(text)
    assert root.attrib["role"] == "img"
    assert root.findtext("{http://www.w3.org/2000/svg}desc")
