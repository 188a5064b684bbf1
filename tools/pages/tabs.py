"""Tabs of a page: sections between two comments, which plain Markdown shows one after another.

<!-- tabs -->
### Use
...
### Look
...
<!-- end tabs -->"""

from __future__ import annotations

import re
from textwrap import indent

from tools.pages.page import split_sections

TABS = re.compile(r"^<!-- tabs -->\n(.*?)^<!-- end tabs -->$", re.MULTILINE | re.DOTALL)
TAB_LEVEL = 3  # of the headings that become tabs


def insert_tabs(text: str) -> str:
    """Return a text with its tabs in the syntax of the site generator."""
    return TABS.sub(lambda match: format_tabs(match[1]), text)


def format_tabs(text: str) -> str:
    before, sections = split_sections(text, TAB_LEVEL)
    if before.strip() or not sections:
        raise ValueError(f"tabs begin with {before.strip()!r}: expected a heading of level 3")
    tabs = [f'=== "{title}"\n\n{indent(body.strip(), "    ")}' for title, body in sections.items()]
    return "\n\n".join(tabs)
