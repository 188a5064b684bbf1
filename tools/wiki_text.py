"""The plain text of a Wikipedia dump, such as enwik8: a paragraph a line, a blank line between articles.

    python tools/wiki_text.py enwik8 wiki.txt

Redirects, tables, templates, pictures, lists of links and headings are left out, links keep their words."""

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
    r"\[\[(?:image|file|category|[a-z]{2,3}|[a-z]{2,3}-[a-z]+):(?:[^\[\]]|\[\[[^\]]*\]\])*\]\]", re.I
)
RULES = (
    (re.compile(r"\[\[(?:[^|\]]*\|)?([^\]]*)\]\]"), r"\1"),  # a link keeps its words
    (re.compile(r"\[(?:https?|ftp)://\S+ ?([^\]]*)\]"), r"\1"),
    (re.compile(r"<[^<>]*>"), ""),
    (re.compile(r"'{2,}"), ""),
    (re.compile(r"&nbsp;|[ \t]+"), " "),
)
LEAST = 60  # characters of a paragraph


def plain(source: str) -> list[str]:
    """The paragraphs of an article in wiki markup."""
    text = html.unescape(source)
    if text.lstrip()[:9].lower() == "#redirect":
        return []
    text = DROPPED.sub("", text)
    for _ in range(5):  # templates within templates
        text, found = INNERMOST.subn("", text)
        if not found:
            break
    text = FILES.sub("", text)
    for rule, kept in RULES:
        text = rule.sub(kept, text)
    lines = (html.unescape(line.lstrip(":* ").strip()) for line in text.split("\n"))
    return [line for line in lines if len(line) >= LEAST and line[0] not in "=|!{}#;" and "|" not in line]


def articles(dump: str) -> Iterator[list[str]]:
    for page in PAGE.finditer(dump):
        found = plain(page[1])
        if found:
            yield found


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    dump = Path(sys.argv[1]).read_text(encoding="utf-8")
    made = Path(sys.argv[2]).with_suffix(".part")
    count = 0
    with made.open("w", encoding="utf-8") as out:
        for paragraphs in articles(dump):
            out.write("\n".join(paragraphs) + "\n\n")
            count += 1
    made.rename(sys.argv[2])
    print(f"{sys.argv[2]}: {count:,} articles, {Path(sys.argv[2]).stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
