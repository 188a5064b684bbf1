"""Extract plain text from a Wikipedia dump such as enwik8: one paragraph per line, blank lines
between articles.

    python tools/wiki_text.py enwik8 wiki.txt

Redirects, tables, templates, images, lists of links and headings are removed; the text of links is kept."""

from __future__ import annotations

import html
import re
import sys
from collections.abc import Iterator
from pathlib import Path

PAGE = re.compile(r"<page>.*?<text[^>]*>(.*?)(?:</text>|\Z)", re.DOTALL)
INNERMOST = re.compile(r"\{\{[^{}]*\}\}|\{\|(?:(?!\{\|).)*?\|\}", re.DOTALL)
DROPPED = re.compile(
    r"<!--.*?-->|<(ref|math|gallery|table|div|timeline|pre)\b[^>]*?(?:/>|>.*?</\1>)", re.DOTALL
)
FILES = re.compile(
    r"\[\[(?:image|file|category|[a-z]{2,3}|[a-z]{2,3}-[a-z]+):(?:[^\[\]]|\[\[[^\]]*\]\])*\]\]",
    re.I,
)
RULES = (
    (re.compile(r"\[\[(?:[^|\]]*\|)?([^\]]*)\]\]"), r"\1"),  # replaces a link by its text
    (re.compile(r"\[(?:https?|ftp)://\S+ ?([^\]]*)\]"), r"\1"),
    (re.compile(r"<[^<>]*>"), ""),
    (re.compile(r"'{2,}"), ""),
    (re.compile(r"&nbsp;|[ \t]+"), " "),
)
MIN_PARAGRAPH_LENGTH = 60  # characters


def extract_paragraphs(source: str) -> list[str]:
    """Return the paragraphs of an article in wiki markup."""
    text = html.unescape(source)
    if text.lstrip()[:9].lower() == "#redirect":
        return []
    text = DROPPED.sub("", text)
    for _ in range(5):  # nested templates
        text, num_removed = INNERMOST.subn("", text)
        if not num_removed:
            break
    text = FILES.sub("", text)
    for pattern, replacement in RULES:
        text = pattern.sub(replacement, text)
    lines = (html.unescape(line.lstrip(":* ").strip()) for line in text.split("\n"))
    return [
        line
        for line in lines
        if len(line) >= MIN_PARAGRAPH_LENGTH and line[0] not in "=|!{}#;" and "|" not in line
    ]


def articles(dump: str) -> Iterator[list[str]]:
    """Yield the paragraphs of every article."""
    for page in PAGE.finditer(dump):
        paragraphs = extract_paragraphs(page[1])
        if paragraphs:
            yield paragraphs


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    dump = Path(sys.argv[1]).read_text(encoding="utf-8")
    temporary = Path(sys.argv[2]).with_suffix(".part")
    count = 0
    with temporary.open("w", encoding="utf-8") as out:
        for paragraphs in articles(dump):
            out.write("\n".join(paragraphs) + "\n\n")
            count += 1
    temporary.rename(sys.argv[2])
    print(f"{sys.argv[2]}: {count:,} articles, {Path(sys.argv[2]).stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
