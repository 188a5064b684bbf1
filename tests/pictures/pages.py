"""SVG pictures as trees of elements, and tokens that are hard to draw."""

from __future__ import annotations

import xml.etree.ElementTree as ET

SVG = "{http://www.w3.org/2000/svg}"
ODD_TOKENS = [
    "</script>", "a&b<c>\"'", "\n", "\x00\x07", "\u202eevil", "\u2067x", "مرحبا!", "東京", "e\u0301",
    "\ud800", "\uffff", "x" * 10_000, " ", "", "]]>", "W" * 60,
]  # fmt: skip
CONTROL_CHARACTERS = {*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0))} - {"\n"}
BIDI_CONTROLS = {"\u202a", "\u202b", "\u202d", "\u202e", "\u2066", "\u2067"}


def parse_page(svg: str) -> ET.Element:
    """Parse a picture, and assert what is true of each one."""
    assert svg.endswith("</svg>\n")
    assert not CONTROL_CHARACTERS & {*svg}
    root = ET.fromstring(svg)
    assert root.attrib["role"] == "img"
    assert root.findtext(f"{SVG}title")
    assert root.findtext(f"{SVG}desc")
    assert "@media (prefers-color-scheme: dark)" in (root.findtext(f"{SVG}style") or "")
    assert not [*root.iter(f"{SVG}script")]
    assert not BIDI_CONTROLS & {*"".join(list_page_texts(root))}
    for element in root.iter():
        for name, value in element.attrib.items():
            assert "nan" not in value.split()
            assert not name.startswith("on")
            if name.endswith("href"):
                assert value.startswith(("data:image/", "#"))
    return root


def list_page_texts(root: ET.Element, css_class: str | None = None) -> list[str]:
    """Return the texts of a picture, of one class or of all."""
    return [
        element.text or ""
        for element in root.iter(f"{SVG}text")
        if css_class in (None, element.get("class"))
    ]


def list_elements(root: ET.Element, tag: str, css_class: str) -> list[ET.Element]:
    """Return the elements with a tag that have a class, perhaps besides others."""
    return [
        element
        for element in root.iter(f"{SVG}{tag}")
        if css_class in (element.get("class") or "").split()
    ]
