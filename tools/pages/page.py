"""Page: one page of the site, its headings and links. Knows Markdown as text; no generator and no qkv.

A page is a file of the repository, or the part of one below a heading. Its links are relative to that file;
`linked` turns them into links between pages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

ROOT = Path(__file__).resolve().parent.parent.parent
INSTEAD = {"README.md": "docs/index.md"}  # what the site has in the place of a file
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[([^][]*)\]\((?!\w+://)([^)#\s]*)(#[^)\s]*)?\)")
HEADING = re.compile(r"^(#+) +(.+)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Page:
    path: str  # in the site
    title: str  # in the navigation
    text: str
    source: str  # "docs/tasks.md", "docs/tasks.md#fill"; the reference is written as though it lay there too

    @property
    def file(self) -> str:
        return self.source.partition("#")[0]


def pieces(text: str) -> Iterator[tuple[bool, str]]:
    """The text in pieces, each with whether it is fenced."""
    for place, piece in enumerate(FENCED.split(text)):
        yield place % 2 == 1, piece


def sections(text: str, level: int) -> tuple[str, dict[str, str]]:
    """What stands before the first heading of this level, and what stands under each."""
    parts, mark = [""], "#" * level + " "
    for fenced, piece in pieces(text):
        for line in [piece] if fenced else piece.splitlines(keepends=True):
            if not fenced and line.startswith(mark):
                parts.append("")
            parts[-1] += line
    before, *after = parts
    found = dict(part.split("\n", 1) for part in after)
    return before, {title.removeprefix(mark).strip(): body for title, body in found.items()}


def headings(text: str) -> list[str]:
    """The headings, without their marks."""
    return [found[2] for fenced, piece in pieces(text) if not fenced for found in HEADING.finditer(piece)]


def anchor(heading: str) -> str:
    """What a link to a heading is called."""
    kept = re.sub(r"[^\w\s-]", "", re.sub(r"\]\([^)]*\)", "", heading))
    return re.sub(r"[-\s]+", "-", kept.strip().lower())


def links(text: str) -> list[tuple[str, str]]:
    """Links within the site: a path, or nothing for the page itself, and an anchor, or nothing."""
    found = [LINK.findall(piece) for fenced, piece in pieces(text) if not fenced]
    return [(path, mark.removeprefix("#")) for each in found for _, path, mark in each]


def linked(page: Page, places: Mapping[str, str]) -> Page:
    """The page with links to pages, `places` by their sources; other files are named, not linked."""

    def lead(found: re.Match[str]) -> str:
        said, path, mark = found[1], found[2], found[3] or ""
        file = normpath(join(dirname(page.file), path)) if path else page.file
        file, mark = (INSTEAD[file], "") if file in INSTEAD else (file, mark)
        there = places.get(file + mark) or places.get(file)
        if there is None and (ROOT / file).exists():
            return said if file.rpartition("/")[2] in said else f"{said} (`{file}`)"
        if there is None:
            raise ValueError(f"{page.source}: the link {path + mark} leads nowhere")
        mark = "" if file + mark in places else mark
        here = there == page.path and mark
        return f"[{said}]({'' if here else relpath(there, dirname(page.path) or '.')}{mark})"

    texts = [piece if fenced else LINK.sub(lead, piece) for fenced, piece in pieces(page.text)]
    return replace(page, text="".join(texts))
