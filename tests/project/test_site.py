"""The site: every page is in its navigation, links between pages lead somewhere, nothing is fetched."""

import re
import shutil
import tomllib
from importlib.util import find_spec
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import Any

import pytest

import qkv
from qkv.tasks.registry import TASKS
from tests.conftest import ROOT
from tools import docs
from tools.pages.page import anchor, headings, links


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages as the generator gets them."""
    folder = tmp_path_factory.mktemp("pages")
    docs.gather(folder)
    return folder


def texts(pages: Path) -> dict[str, str]:
    files = (pages / "docs").rglob("*.md")
    return {file.relative_to(pages / "docs").as_posix(): file.read_text(encoding="utf-8") for file in files}


def paths(nav: Any) -> list[str]:
    """Every page of a navigation."""
    if isinstance(nav, str):
        return [nav]
    return [path for each in (nav.values() if isinstance(nav, dict) else nav) for path in paths(each)]


def test_every_page_is_in_the_navigation(pages: Path) -> None:
    nav = tomllib.loads((pages / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
    found = paths(nav)
    assert sorted(found) == sorted(texts(pages))
    assert found[0] == "index.md"
    assert found[-1] == "changelog.md"


def test_there_is_a_page_for_every_document_task_and_family(pages: Path) -> None:
    found = texts(pages)
    assert {file.name for file in (ROOT / "docs").glob("*.md")} - {"tasks.md", "families.md"} <= found.keys()
    assert {f"tasks/{name}.md" for name in TASKS} <= found.keys()
    assert {f"families/{kin.name}.md" for kin in qkv.list_families()} <= found.keys()


def test_links_between_pages_lead_somewhere(pages: Path) -> None:
    found = texts(pages)
    anchors = {path: {anchor(each) for each in headings(text)} for path, text in found.items()}
    lost = []
    for path, text in found.items():
        for to, mark in links(text):
            there = normpath(join(dirname(path), to)) if to else path
            if there not in found or (mark and mark not in anchors[there]):
                lost.append(f"{path}: {to}#{mark}")
    assert lost == []
    assert sum(len(links(text)) for text in found.values()) > 200


def test_nothing_of_docs_tasks_is_lost(pages: Path) -> None:
    """Headings and code of docs/tasks.md are all on one page or another."""
    found = "\n".join(text for path, text in texts(pages).items() if path.startswith("tasks/"))
    text = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
    assert {*headings(text)} <= {*headings(found)}
    for block in re.findall(r"^```.*?^```$", text, re.MULTILINE | re.DOTALL):
        assert block in found


def test_the_page_on_the_transformer_has_its_lines_and_equations(pages: Path) -> None:
    text = texts(pages)["transformer.md"]
    assert text.count("<math ") == len(
        re.findall("^```math$", (ROOT / "docs/transformer.md").read_text(), re.M)
    )
    assert text.count('```python title="qkv/nn/') > 10
    assert "](../qkv" not in text


def test_a_new_document_is_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    for name in docs.LAST:
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("command-line", "zebra"):
        (tmp_path / "docs" / f"{name}.md").write_text(f"# On {name}\n\n[tag](tasks.md#tag)\n")
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    found = list(docs.parts())
    assert found.index("tasks") < found.index("command-line") < found.index("families")
    assert found[-3:] == ["zebra", *docs.LAST]


def test_the_site_is_built_without_a_warning_and_fetches_nothing(pages: Path) -> None:
    if find_spec("zensical") is None:
        pytest.skip("needs zensical, which `make docs` installs")
    site = docs.build(pages)
    assert {file.relative_to(site).with_suffix(".md").as_posix() for file in site.rglob("*.html")} >= texts(
        pages
    ).keys()
    assert list(docs.elsewhere(site)) == []


def test_what_a_page_would_fetch_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="https://a.org"></a><script src=//b.org/x.js></script><img src="c.png">'
    )
    assert list(docs.elsewhere(tmp_path)) == ["//b.org/x.js"]
