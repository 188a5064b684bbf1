"""Text and elements of SVG files. Does not depend on what is drawn."""

from __future__ import annotations

import re
import unicodedata
from html import escape
from typing import NamedTuple

PAGE_MARGIN = 24  # pixels
RELATIVE_CHARACTER_WIDTH = 0.615  # of the font size, an upper estimate
SYSTEM_FONTS = 'system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif'
INVALID_XML_CHARACTERS = re.compile(  # and control characters
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]"
)


class SvgDrawing(NamedTuple):
    """The SVG body of a drawing, its size in pixels and a description in words."""

    width: float
    height: float
    body: str
    description: str


def format_svg_element(drawing: SvgDrawing, title: str, css_class: str) -> str:
    """Return the drawing as an `<svg>` element with a title and a description."""
    width = f"{drawing.width:.0f}"
    height = f"{drawing.height:.0f}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{css_class}" '
        f'viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">\n<title>{escape_xml(title)}</title>\n'
        f"<desc>{escape_xml(drawing.description)}</desc>\n{drawing.body}\n</svg>"
    )


def escape_xml(text: str) -> str:
    """Escape a text for XML and HTML, and replace the characters that XML does not allow."""
    return escape(INVALID_XML_CHARACTERS.sub("�", text))


def estimate_text_width(text: str, font_size: float = 14) -> float:
    """Estimate the width of a text in pixels; East Asian wide characters count twice."""
    columns = (2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)
    return RELATIVE_CHARACTER_WIDTH * font_size * sum(columns)
