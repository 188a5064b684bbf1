"""The site: every page is in the navigation, links between pages resolve, no external resources."""

import re
import shutil
import tomllib
from importlib.util import find_spec
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import Any

import pytest

import qkv
from qkv.tasks.registry import TASK_CLASSES
from tests.conftest import ROOT
from tools import docs
from tools.pages.page import IMAGE, list_headings, list_links, make_anchor


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages for the generator."""
    folder = tmp_path_factory.mktemp("pages")
    docs.write_pages(folder)
    return folder


def read_texts(pages: Path) -> dict[str, str]:
    files = (pages / "docs").rglob("*.md")
    return {
        file.relative_to(pages / "docs").as_posix(): file.read_text(encoding="utf-8")
        for file in files
    }


def list_paths(nav: Any) -> list[str]:
    """Return every page of a navigation."""
    if isinstance(nav, str):
        return [nav]
    return [
        path
        for entry in (nav.values() if isinstance(nav, dict) else nav)
        for path in list_paths(entry)
    ]


def test_every_page_is_in_the_navigation(pages: Path) -> None:
    nav = tomllib.loads((pages / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
    paths = list_paths(nav)
    assert sorted(paths) == sorted(read_texts(pages))
    assert paths[0] == "index.md"
    assert paths[-1] == "changelog.md"


def test_there_is_a_page_for_every_document_task_and_family(pages: Path) -> None:
    texts = read_texts(pages)
    assert {file.name for file in (ROOT / "docs").glob("*.md")} - {
        "tasks.md",
        "families.md",
    } <= texts.keys()
    assert {f"tasks/{name}.md" for name in TASK_CLASSES} <= texts.keys()
    assert {f"families/{family.name}.md" for family in qkv.list_families()} <= texts.keys()


def test_links_between_pages_resolve(pages: Path) -> None:
    texts = read_texts(pages)
    anchors = {
        path: {make_anchor(heading) for heading in list_headings(text)}
        for path, text in texts.items()
    }
    broken = []
    for path, text in texts.items():
        for link, anchor in list_links(text):
            target = normpath(join(dirname(path), link)) if link else path
            if target not in texts or (anchor and anchor not in anchors[target]):
                broken.append(f"{path}: {link}#{anchor}")
    assert broken == []
    assert sum(len(list_links(text)) for text in texts.values()) > 200


def test_pictures_are_in_the_site(pages: Path) -> None:
    pictures = [
        normpath(join(dirname(path), match[2]))
        for path, text in read_texts(pages).items()
        for match in IMAGE.finditer(text)
    ]
    assert pictures
    assert all((pages / "docs" / picture).is_file() for picture in pictures)


def test_every_section_of_docs_tasks_is_on_a_page(pages: Path) -> None:
    """Headings and code of docs/tasks.md are on one page or another."""
    task_pages = "\n".join(
        text for path, text in read_texts(pages).items() if path.startswith("tasks/")
    )
    text = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
    assert {*list_headings(text)} <= {*list_headings(task_pages)}
    for block in re.findall(r"^```.*?^```$", text, re.MULTILINE | re.DOTALL):
        assert block in task_pages


def test_the_page_on_the_transformer_has_excerpts_and_equations(pages: Path) -> None:
    text = read_texts(pages)["transformer.md"]
    assert text.count("<math ") == len(
        re.findall("^```math$", (ROOT / "docs/transformer.md").read_text(), re.M)
    )
    assert text.count('```python title="qkv/nn/') > 10
    assert "](../qkv" not in text


def test_tabs_and_tables_are_those_of_the_site_generator(pages: Path) -> None:
    texts = read_texts(pages)
    assert texts["index.md"].count('\n=== "') == 3
    assert '    ```csv title="tickets.csv"' in texts["index.md"]
    assert "<!--" not in texts["index.md"]
    assert "| `str | None` |" in texts["reference/qkv.md"]


def test_a_new_document_is_included(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    for name in docs.LAST:
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("command-line", "zebra"):
        (tmp_path / "docs" / f"{name}.md").write_text(f"# On {name}\n\n[tag](tasks.md#tag)\n")
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    parts = list(docs.collect_parts())
    assert parts.index("tasks") < parts.index("command-line") < parts.index("families")
    assert parts[-3:] == ["zebra", *docs.LAST]


def test_the_site_is_built_without_warnings_and_external_resources(pages: Path) -> None:
    if find_spec("zensical") is None:
        pytest.skip("needs zensical, which `make docs` installs")
    site = docs.build_site(pages)
    assert {
        file.relative_to(site).with_suffix(".md").as_posix() for file in site.rglob("*.html")
    } >= read_texts(pages).keys()
    assert list(docs.list_external_resources(site)) == []


def test_external_resources_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="https://a.org"></a><script src=//b.org/x.js></script><img src="c.png">'
    )
    assert list(docs.list_external_resources(tmp_path)) == ["//b.org/x.js"]
