"""The documents do what they say: code runs, commands print what is shown, links lead somewhere."""

import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import qkv
from qkv.cli import main
from tests.conftest import ROOT
from tests.project.test_rooms import PACKAGE, ROOMS, room_of
from tools.pages.families import tasks

HAVE_CODE = (
    "README.md", "CONTRIBUTING.md", "docs/index.md", "docs/library.md", "docs/transformer.md",
    "docs/families.md", "docs/decoding.md", "docs/tasks.md", "docs/command-line.md",
)  # fmt: skip
DOCUMENTS = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs/index.md",
    "docs/library.md",
    "docs/transformer.md",
    "docs/architecture.md",
    "docs/checks.md",
    "docs/command-line.md",
    "docs/families.md",
    "docs/decoding.md",
    "docs/tasks.md",
    "docs/training.md",
    "docs/results.md",
)


class Block(NamedTuple):
    """Fenced text: ```kind file=..."""

    kind: str
    file: str | None
    text: str
    line: int


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name: str) -> Iterator[Block]:
    text = read(name)
    for found in re.finditer(r"^```(\w+)(?: file=(\S+))?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield Block(found[1], found[2], found[3], text.count("\n", 0, found.start()) + 2)


@pytest.fixture
def families(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose files are families too, until the test is over."""
    package: Any = import_module("qkv.families")
    folder = tmp_path / "qkv" / "families"
    folder.mkdir(parents=True)
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    monkeypatch.setattr(package, "NAMES", list(package.NAMES))
    yield folder
    package.family.cache_clear()
    for file in folder.glob("*.py"):
        sys.modules.pop(f"qkv.families.{file.stem}", None)


@pytest.mark.parametrize("name", HAVE_CODE)
def test_the_code_runs_and_the_commands_print_what_is_shown(
    name: str,
    tmp_path: Path,
    families: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    namespace: dict[str, object] = {"__name__": "document"}
    for block in blocks(name):
        if block.file is not None:
            (tmp_path / block.file).write_text(block.text, encoding="utf-8")
            invalidate_caches()
        elif block.kind == "python":
            lines = "\n" * (block.line - 1) + block.text  # errors then name the document's line
            exec(compile(lines, ROOT / name, "exec"), namespace)
        elif block.kind == "console":
            command, *shown = block.text.splitlines()
            capsys.readouterr()
            main(shlex.split(command.removeprefix("$ qkv ")))
            printed = iter("".join(capsys.readouterr()).splitlines())
            for line in shown:  # in this order; … stands for what was left out
                assert line == "…" or line in printed, f"{name}: {command} does not print: {line}"


def test_there_is_code_to_run() -> None:
    kinds = [block.kind for name in ("README.md", "docs/library.md") for block in blocks(name)]
    assert kinds.count("python") > 14
    assert kinds.count("console") > 4


def test_the_changelog_begins_with_this_version() -> None:
    versions = re.findall(r"^## \[(.+?)\]", read("CHANGELOG.md"), re.MULTILINE)
    project = tomllib.loads(read("pyproject.toml"))["project"]
    assert versions[0] == qkv.__version__ == project["version"]


def test_every_family_has_a_row_in_the_readme() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| ([\w -]+) \|", read("README.md"), re.MULTILINE)
    assert {(kin.name, kin.shape) for kin in qkv.list_families()} <= set(rows)


def test_the_readme_tells_which_family_does_which_task() -> None:
    rows = dict(re.findall(r"^\| `([\w-]+)` \|.*\| ([a-z ]+) \|$", read("README.md"), re.MULTILINE))
    for kin in qkv.list_families():
        able = {task for head in kin.heads for task in tasks(kin.name, head)}
        assert set(rows[kin.name].split()) == able, kin.name


def test_every_family_has_its_sizes_and_heads_listed() -> None:
    sections = dict(part.split("\n", 1) for part in read("docs/families.md").split("\n### ")[1:])
    assert sections.keys() == {kin.name for kin in qkv.list_families()}
    for kin in qkv.list_families():
        text = sections[kin.name]
        sizes = re.search(r"^Sizes: (.*)$", text, re.MULTILINE)
        assert sizes is not None
        assert re.findall(r"`(.+?)`", sizes[1]) == list(kin.sizes), kin.name
        rows = dict(re.findall(r"^\| `(.+?)`.* \| (.+) \|$", text, re.MULTILINE))
        classes = {head: " ".join(re.findall(r"`(.+?)`", row)) for head, row in rows.items()}
        assert classes == {head: names for head, names in kin.heads.items() if names}, kin.name
        listed = re.search(
            r"^No class at Hugging Face. Heads: (.*); `(.+)` is the default.$", text, re.MULTILINE
        )
        assert bool(listed) != any(kin.heads.values()), kin.name
        if listed:
            assert re.findall(r"`(.+?)`", listed[1]) == list(kin.heads)
            assert listed[2] == kin.arguments()["head"]


def test_the_rooms_are_drawn_as_they_are() -> None:
    """The drawing's last column is what tests/project/test_rooms.py lets a room import."""
    drawing = next(block.text for block in blocks("docs/architecture.md"))
    rows = [re.split(r"  +", line.strip()) for line in drawing.splitlines()[1:]]
    drawn = {re.sub(r"/$|\.py$", "", name): words.replace("—", "").split() for name, _, words in rows}
    there = {room_of(file) for file in PACKAGE.rglob("*.py")} - {"__init__", "__main__"}
    assert drawn.keys() == there
    assert drawn == {room: ROOMS.get(room, "everything").split() for room in drawn}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name: str) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", read(name))
    here = [link for link in links if "://" not in link]
    assert [link for link in here if not ((ROOT / name).parent / link).exists()] == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_files_that_are_named_are_there(name: str) -> None:
    """What stands in `...` and looks like a file of this project is one."""
    named = re.findall(r"`((?:qkv|tests|tools|docs|\.ci)/[\w./-]+)`", read(name))
    shown = {block.file for block in blocks(name)}
    assert [path for path in named if path not in shown and not (ROOT / path).exists()] == []
