"""Build the documentation site: Markdown pages in build/pages, then HTML in site/.

    docs/index.md, docs/**/*.svg ...  copied
    docs/tasks.md, docs/families.md   one page per task and family
    qkv                               the reference, and the source excerpts of pages

The build and the pages of the site download nothing."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from tools.pages.equation import render_mathml
from tools.pages.excerpt import insert_excerpts
from tools.pages.families import family_pages
from tools.pages.page import Page, list_headings, resolve_links
from tools.pages.reference import reference_pages
from tools.pages.tabs import insert_tabs
from tools.pages.tasks import task_pages

ROOT = Path(__file__).resolve().parent.parent
THEME = ROOT / "tools" / "pages" / "theme"
PAGES, SITE = ROOT / "build" / "pages", ROOT / "site"

# The order of the navigation; other files of docs/ come after these, and LAST at the end.
ORDER = (
    "index coming-from tasks command-line library explorer gallery fine-tuning training export "
    "why-attention attention transformer families decoding long-texts images draw words results "
    "architecture checks reference"
).split()
LAST = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
EQUATION = re.compile(r"^```math\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TABLE_ROW = re.compile(r"^\|.*\|$", re.MULTILINE)
CODE_SPAN = re.compile(r"`[^`]+`")
FILE_FENCE = re.compile(r"^```(\w+) file=(\S+)$", re.MULTILINE)
EXTERNAL = re.compile(
    r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=[\"']?((?:https?:)?//[^\s\"'>]+)"
)

Parts = dict[str, list[Page]]


def collect_parts() -> Parts:
    """Return the pages of every part of the site, in the order of the navigation."""
    parts = {
        file.stem: [make_page(f"docs/{file.name}", file.name)]
        for file in (ROOT / "docs").glob("*.md")
    }
    parts["tasks"] = task_pages(read_file("docs/tasks.md"))
    parts["families"] = family_pages(read_file("docs/families.md"))
    parts["reference"] = reference_pages()
    names = [*ORDER, *sorted(parts.keys() - {*ORDER})]
    last = {source: [make_page(source, path)] for source, path in LAST.items()}
    return {name: parts[name] for name in names if name in parts} | last


def read_file(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def make_page(source: str, path: str) -> Page:
    """Return a file as one page."""
    text = read_file(source)
    return Page(path=path, title=list_headings(text)[0], text=text, source=source)


def render_page(page: Page, paths: dict[str, str]) -> str:
    """Return the text of a page with links, excerpts, equations, file names and tabs resolved."""
    text = resolve_links(replace(page, text=insert_excerpts(page)), paths).text
    text = EQUATION.sub(
        lambda match: f'<div class="equation">{render_mathml(match[1])}</div>', text
    )
    text = TABLE_ROW.sub(lambda row: CODE_SPAN.sub(unescape_pipes, row[0]), text)
    return insert_tabs(FILE_FENCE.sub(r'```\1 title="\2"', text))


def unescape_pipes(match: re.Match[str]) -> str:
    """Return a code span of a table without the backslashes that GitHub needs, and the site shows."""
    return match[0].replace(r"\|", "|")


def format_navigation(parts: Parts) -> str:
    """Return the `nav` setting of the site generator; an index.md is the page of its part."""
    rows = []
    for name, pages in parts.items():
        entries = [format_navigation_entry(page) for page in pages]
        if len(entries) > 1:
            rows.append(f"{{ {json.dumps(name.capitalize())} = [{', '.join(entries)}] }}")
        else:
            rows.append(entries[0])
    return f"[{', '.join(rows)}]"


def format_navigation_entry(page: Page) -> str:
    path = json.dumps(page.path)
    if page.path.endswith("/index.md"):
        return path
    return f"{{ {json.dumps(page.title, ensure_ascii=False)} = {path} }}"


def write_pages(folder: Path) -> list[Page]:
    """Write the pages and settings of the site generator; return the pages before rendering."""
    parts = collect_parts()
    pages = [page for part in parts.values() for page in part]
    paths = {page.source: page.path for page in pages}
    for page in pages:
        file = folder / "docs" / page.path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(render_page(page, paths), encoding="utf-8")
    for picture in (ROOT / "docs").rglob("*.[sp][vn]g"):
        copy = folder / "docs" / picture.relative_to(ROOT / "docs")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(picture, copy)
    for name in ("theme.css", "iframe-worker.js"):
        shutil.copy(THEME / name, folder / "docs" / name)
    settings = (THEME / "zensical.toml").read_text(encoding="utf-8")
    settings = settings.replace("[project]", f"[project]\nnav = {format_navigation(parts)}", 1)
    (folder / "zensical.toml").write_text(settings, encoding="utf-8")
    return pages


def build_site(folder: Path) -> Path:
    """Build the site; warnings of the site generator and external resources are errors."""
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if process.returncode:
        raise ValueError(f"the site generator failed:\n{process.stdout}{process.stderr}")
    if resources := sorted({*list_external_resources(folder / "site")}):
        raise ValueError(f"pages load {', '.join(resources)}: expected no external resources")
    return folder / "site"


def list_external_resources(site: Path) -> Iterator[str]:
    """Yield the URLs that the pages of a site load from other hosts."""
    for file in site.rglob("*.html"):
        yield from EXTERNAL.findall(file.read_text(encoding="utf-8"))


def main() -> int:
    if find_spec("zensical") is None:
        print("docs: zensical is not installed; run `make docs`", file=sys.stderr)
        return 2
    for folder in (PAGES, SITE):
        shutil.rmtree(folder, ignore_errors=True)
    try:
        pages = write_pages(PAGES)
        shutil.move(build_site(PAGES), SITE)
    except ValueError as error:
        print(f"docs: {error}", file=sys.stderr)
        return 1
    print(f"{len(pages)} pages: open {SITE.relative_to(ROOT)}/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
