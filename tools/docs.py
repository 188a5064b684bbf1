"""The documentation site: docs/ and what is made of the source, first as pages in build/pages, then in site/.

    docs/index.md ...                 as they are
    docs/tasks.md, docs/families.md   a page for every task and family
    qkv                               the reference, and lines of it where a page asks for them

Nothing is fetched, neither here nor by those who read the site."""

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

from tools.pages.equation import mathml
from tools.pages.excerpt import excerpted
from tools.pages.families import family_pages
from tools.pages.page import Page, headings, linked
from tools.pages.reference import reference_pages
from tools.pages.tasks import task_pages

ROOT = Path(__file__).resolve().parent.parent
LOOKS = ROOT / "tools" / "pages" / "looks"
PAGES, SITE = ROOT / "build" / "pages", ROOT / "site"

# The parts in their order; a file of docs/ that is not named here comes after these, and LAST at the end.
ORDER = (
    "index transformer tasks command-line library families decoding training results architecture checks "
    "reference"
).split()
LAST = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
EQUATION = re.compile(r"^```math\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"^```(\w+) file=(\S+)$", re.MULTILINE)
ELSEWHERE = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=[\"']?((?:https?:)?//[^\s\"'>]+)")

Parts = dict[str, list[Page]]


def parts() -> Parts:
    """The pages of every part of the site, in the order of the navigation."""
    found = {file.stem: [whole(f"docs/{file.name}", file.name)] for file in (ROOT / "docs").glob("*.md")}
    found["tasks"] = task_pages(read("docs/tasks.md"))
    found["families"] = family_pages(read("docs/families.md"))
    found["reference"] = reference_pages()
    names = [*ORDER, *sorted(found.keys() - {*ORDER})]
    ends = {source: [whole(source, path)] for source, path in LAST.items()}
    return {name: found[name] for name in names if name in found} | ends


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def whole(source: str, path: str) -> Page:
    """A file as one page."""
    text = read(source)
    return Page(path=path, title=headings(text)[0], text=text, source=source)


def finished(page: Page, places: dict[str, str]) -> str:
    """Its text for the generator: links between pages, lines of the source, equations, names of files."""
    text = linked(replace(page, text=excerpted(page)), places).text
    text = EQUATION.sub(lambda found: f'<div class="equation">{mathml(found[1])}</div>', text)
    return NAMED.sub(r'```\1 title="\2"', text)


def navigation(found: Parts) -> str:
    """As the generator's settings have it; a part of several pages that has an index.md is that page too."""
    rows = []
    for name, pages in found.items():
        each = [entry(page) for page in pages]
        rows.append(f"{{ {json.dumps(name.capitalize())} = [{', '.join(each)}] }}" if each[1:] else each[0])
    return f"[{', '.join(rows)}]"


def entry(page: Page) -> str:
    path = json.dumps(page.path)
    return (
        path
        if page.path.endswith("/index.md")
        else f"{{ {json.dumps(page.title, ensure_ascii=False)} = {path} }}"
    )


def gather(folder: Path) -> list[Page]:
    """Writes pages and settings for the generator; gives the pages as they were."""
    found = parts()
    pages = [page for each in found.values() for page in each]
    places = {page.source: page.path for page in pages}
    for page in pages:
        file = folder / "docs" / page.path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(finished(page, places), encoding="utf-8")
    for name in ("looks.css", "iframe-worker.js"):
        shutil.copy(LOOKS / name, folder / "docs" / name)
    settings = (LOOKS / "zensical.toml").read_text(encoding="utf-8")
    settings = settings.replace("[project]", f"[project]\nnav = {navigation(found)}", 1)
    (folder / "zensical.toml").write_text(settings, encoding="utf-8")
    return pages


def build(folder: Path) -> Path:
    """The site of gathered pages; what the generator warns of, and what a page would fetch, is an error."""
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"the generator complains:\n{done.stdout}{done.stderr}")
    if fetched := sorted({*elsewhere(folder / "site")}):
        raise ValueError(f"pages would fetch {', '.join(fetched)}: expected nothing from elsewhere")
    return folder / "site"


def elsewhere(site: Path) -> Iterator[str]:
    """What the pages of a site would fetch from elsewhere."""
    for file in site.rglob("*.html"):
        yield from ELSEWHERE.findall(file.read_text(encoding="utf-8"))


def main() -> int:
    if find_spec("zensical") is None:
        print("docs: the generator is not installed; `make docs` does it", file=sys.stderr)
        return 2
    for folder in (PAGES, SITE):
        shutil.rmtree(folder, ignore_errors=True)
    try:
        pages = gather(PAGES)
        shutil.move(build(PAGES), SITE)
    except ValueError as error:
        print(f"docs: {error}", file=sys.stderr)
        return 1
    print(f"{len(pages)} pages: open {SITE.relative_to(ROOT)}/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
