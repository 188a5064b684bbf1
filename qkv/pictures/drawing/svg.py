"""Text and elements of SVG files. Does not depend on what is drawn."""

from __future__ import annotations

import math
import re
import textwrap
import unicodedata
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from qkv.pictures.drawing.token_text import count_columns, isolate_direction, make_visible

PAGE_MARGIN = 24  # pixels
RELATIVE_CHARACTER_WIDTH = 0.615  # of the font size, an upper estimate
SYSTEM_FONTS = 'system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif'
INVALID_XML_CHARACTERS = re.compile(  # and control characters
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]"
)

TITLE_TEXT_SIZE = 16  # font sizes of a picture
TEXT_SIZE = 13
SMALL_SIZE = 11
MIN_HEADING_WIDTH = 640  # pixels
MAX_HEADING_LINES = 4
MAX_DESCRIBED_ITEMS = 40
# Declarations of a selector on light pages, and those that differ on dark ones.
StyleRules = Mapping[str, tuple[str, str]]
PAGE_RULES: StyleRules = {
    "text": ("fill: #3d444d", "fill: #b3bcc6"),
    ".title": (
        f"fill: #1f2328; font-size: {TITLE_TEXT_SIZE}px; font-weight: 600",
        "fill: #e6edf3",
    ),
    ".strong": ("fill: #1f2328; font-weight: 600", "fill: #ffffff"),
    ".small": (f"fill: #57606a; font-size: {SMALL_SIZE}px", "fill: #9aa4af"),
    ".page": ("fill: #ffffff", "fill: #0d1117"),
    ".empty": ("fill: #f1f3f5", "fill: #181d24"),
    ".full": ("fill: #0b5394", "fill: #58a6e8"),
}


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


def render_page_svg(
    title: str, subtitle: str, drawing: SvgDrawing, css_class: str, rules: StyleRules
) -> str:
    """Return the text of an SVG file: a title and a subtitle in lines, a drawing, and its style."""
    parts: list[str] = []
    width = drawing.width
    y = PAGE_MARGIN - 4.0
    for text, size, text_class in ((title, TITLE_TEXT_SIZE, "title"), (subtitle, TEXT_SIZE, "")):
        for line in wrap_heading(text, max(drawing.width, MIN_HEADING_WIDTH), size):
            y += size + 6
            parts.append(draw_svg_text(PAGE_MARGIN, y, line, text_class))
            width = max(width, measure_label(line, size))
    y += PAGE_MARGIN - 4
    width += 2 * PAGE_MARGIN
    height = y + drawing.height + PAGE_MARGIN
    style = build_style_sheet(css_class, {**PAGE_RULES, **rules})
    body = "\n".join(
        [
            f"<style>{style}</style>",
            f'<rect class="page" width="{width:.0f}" height="{height:.0f}" rx="8"/>',
            *parts,
            f'<g transform="translate({PAGE_MARGIN} {format_pixels(y)})">\n{drawing.body}\n</g>',
        ]
    )
    description = "; ".join(filter(None, (subtitle, drawing.description)))
    page = SvgDrawing(width, height, body, description)
    return format_svg_element(page, title, css_class) + "\n"


def build_style_sheet(css_class: str, rules: StyleRules) -> str:
    """Return the CSS of a picture, for light pages and for dark ones."""
    light, dark = (
        "\n".join(
            f"  .{css_class} {selector} {{ {declarations[side]} }}"
            for selector, declarations in rules.items()
            if declarations[side]
        )
        for side in (0, 1)
    )
    font = f"  .{css_class} {{ font: {TEXT_SIZE}px {SYSTEM_FONTS} }}"
    return f"\n{font}\n{light}\n  @media (prefers-color-scheme: dark) {{\n{dark}\n  }}\n"


def wrap_heading(text: str, width: float, font_size: float) -> list[str]:
    """Return the lines of a text, with visible control characters, that fit into a width."""
    if not text:
        return []
    columns = math.floor(width / (RELATIVE_CHARACTER_WIDTH * font_size))
    visible = make_visible(text[: columns * MAX_HEADING_LINES * 2])
    lines = textwrap.wrap(visible, columns, max_lines=MAX_HEADING_LINES, placeholder=" …")
    return [isolate_direction(line) for line in lines]


def draw_svg_text(x: float, y: float, text: str, css_class: str = "", anchor: str = "start") -> str:
    """Return a text element; the class is one of the page's, or empty."""
    style = f' class="{css_class}"' if css_class else ""
    place = "" if anchor == "start" else f' text-anchor="{anchor}"'
    position = f'x="{format_pixels(x)}" y="{format_pixels(y)}"'
    return f"<text{style} {position}{place}>{escape_xml(text)}</text>"


def measure_label(text: str, font_size: float = TEXT_SIZE) -> float:
    """Return a width in pixels that the label of a token fits into."""
    return RELATIVE_CHARACTER_WIDTH * font_size * sum(map(count_columns, text))


def format_pixels(value: float) -> str:
    """Return a coordinate with at most one decimal place."""
    return f"{value:.1f}".removesuffix(".0")


def join_descriptions(items: Sequence[str]) -> str:
    """Join the parts of a description; the later ones of many are counted."""
    more = len(items) - MAX_DESCRIBED_ITEMS
    return "; ".join([*items[:MAX_DESCRIBED_ITEMS], *[f"and {more} more"] * (more > 0)])
