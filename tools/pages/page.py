"""A page of the site, its headings and links. Does not depend on the site generator or on qkv.

A page is a Markdown file of the repository, or a section of a file. Its links are relative to that file;
`resolve_links` converts them to links between pages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

ROOT = Path(__file__).resolve().parent.parent.parent
REPLACED_FILES = {"README.md": "docs/index.md"}  # files that another page of the site replaces
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[([^][]*)\]\((?!\w+://)([^)#\s]*)(#[^)\s]*)?\)")
IMAGE = re.compile(r"!\[([^][]*)\]\((?!\w+://)([^)\s]+)\)")
HEADING = re.compile(r"^(#+) +(.+)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page of the site in Markdown."""

    path: str  # path in the site
    title: str  # title in the navigation
    text: str
    source: str  # "docs/tasks.md", "docs/tasks.md#fill"; for generated pages, a file that does not exist

    @property
    def file(self) -> str:
        return self.source.partition("#")[0]


def split_fences(text: str) -> Iterator[tuple[bool, str]]:
    """Yield the parts of a text, each with a flag for fenced code."""
    for index, part in enumerate(FENCED.split(text)):
        yield index % 2 == 1, part


def split_sections(text: str, level: int) -> tuple[str, dict[str, str]]:
    """Return the text before the first heading of this level, and the text under each heading."""
    mark = "#" * level + " "
    parts = [""]
    for is_fenced, piece in split_fences(text):
        for line in [piece] if is_fenced else piece.splitlines(keepends=True):
            if not is_fenced and line.startswith(mark):
                parts.append("")
            parts[-1] += line
    before, *sections = parts
    by_title = dict(section.split("\n", 1) for section in sections)
    return before, {title.removeprefix(mark).strip(): body for title, body in by_title.items()}


def list_headings(text: str) -> list[str]:
    """Return the headings, without their marks."""
    return [
        match[2]
        for is_fenced, piece in split_fences(text)
        if not is_fenced
        for match in HEADING.finditer(piece)
    ]


def make_anchor(heading: str) -> str:
    """Return the anchor that the site generator creates for a heading."""
    letters = re.sub(r"[^\w\s-]", "", re.sub(r"\]\([^)]*\)", "", heading))
    return re.sub(r"[-\s]+", "-", letters.strip().lower())


def list_links(text: str) -> list[tuple[str, str]]:
    """Return the links within the site as (path, anchor); an empty path is the page itself."""
    return [
        (path, anchor.removeprefix("#"))
        for is_fenced, piece in split_fences(text)
        if not is_fenced
        for _, path, anchor in LINK.findall(piece)
    ]


def resolve_links(page: Page, paths: Mapping[str, str]) -> Page:
    """Return the page with links to other pages, given the page path of each source.

    A link to a file without a page is replaced by its label and the file name. A picture of docs/
    has the same path in the site."""

    def resolve(match: re.Match[str]) -> str:
        label, path, anchor = match[1], match[2], match[3] or ""
        file = normpath(join(dirname(page.file), path)) if path else page.file
        if file in REPLACED_FILES:
            file = REPLACED_FILES[file]
            anchor = ""
        target = paths.get(file + anchor) or paths.get(file)
        if target is None and (ROOT / file).exists():
            return label if file.rpartition("/")[2] in label else f"{label} (`{file}`)"
        if target is None:
            raise ValueError(
                f"{page.source}: the target of the link {path + anchor} does not exist"
            )
        if file + anchor in paths:
            anchor = ""
        is_same_page = target == page.path and anchor
        link = "" if is_same_page else relpath(target, dirname(page.path) or ".")
        return f"[{label}]({link}{anchor})"

    def resolve_image(match: re.Match[str]) -> str:
        file = normpath(join(dirname(page.file), match[2]))
        if not file.startswith("docs/") or not (ROOT / file).is_file():
            raise ValueError(f"{page.source}: the picture {match[2]} does not exist in docs/")
        return f"![{match[1]}]({relpath(file.removeprefix('docs/'), dirname(page.path) or '.')})"

    parts = [
        piece if is_fenced else IMAGE.sub(resolve_image, LINK.sub(resolve, piece))
        for is_fenced, piece in split_fences(page.text)
    ]
    return replace(page, text="".join(parts))


def format_table(header: str, rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; `header` is a list of titles, separated by `|`."""
    titles = header.split("|")
    lines = (titles, ["---"] * len(titles), *rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
