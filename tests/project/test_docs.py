"""The documents are correct: code runs, commands print what is shown, links resolve."""

import doctest
import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module, invalidate_caches
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import qkv
from qkv.cli import main
from qkv.decode import GenerationConfig
from qkv.tasks.registry import TASK_CLASSES
from qkv.train.recipe import TABLES, read_recipe
from tests.conftest import ROOT
from tests.project.test_imports import ALLOWED_IMPORTS, PACKAGE, package_of
from tests.support.other_libraries import write_examples
from tools.pages.families import supported_tasks
from tools.pages.page import split_sections

WITH_CODE = (
    "README.md", "CONTRIBUTING.md", "docs/index.md", "docs/library.md", "docs/attention.md",
    "docs/transformer.md", "docs/families.md", "docs/decoding.md", "docs/tasks.md", "docs/long-texts.md",
    "docs/command-line.md", "docs/export.md", "docs/fine-tuning.md", "docs/coming-from.md",
    "docs/words.md",
)  # fmt: skip
# Sections of CONTRIBUTING.md.
EXTENSIONS = ("Add an objective", "Add a task", "Add a metric", "Add a logits processor")
DOCUMENTS = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs/index.md",
    "docs/coming-from.md",
    "docs/library.md",
    "docs/attention.md",
    "docs/transformer.md",
    "docs/architecture.md",
    "docs/checks.md",
    "docs/command-line.md",
    "docs/families.md",
    "docs/decoding.md",
    "docs/export.md",
    "docs/tasks.md",
    "docs/long-texts.md",
    "docs/fine-tuning.md",
    "docs/training.md",
    "docs/words.md",
    "docs/results.md",
    "docs/why-attention.md",
)


class Block(NamedTuple):
    """A fenced block: ```kind file=..."""

    kind: str
    file: str | None
    text: str
    line: int


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def parse_blocks(text: str) -> Iterator[Block]:
    for match in re.finditer(
        r"^```(\w+)(?: file=(\S+))?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
    ):
        yield Block(match[1], match[2], match[3], text.count("\n", 0, match.start()) + 2)


def blocks(name: str) -> Iterator[Block]:
    """The blocks of a document, without the extensions of CONTRIBUTING.md, which have a test of their own."""
    text = read(name)
    if name == "CONTRIBUTING.md":
        text = text.partition(f"\n## {EXTENSIONS[0]}\n")[0]
    return parse_blocks(text)


@pytest.fixture
def families(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose files are families too, until the test is over."""
    package: Any = import_module("qkv.families")
    folder = tmp_path / "qkv" / "families"
    folder.mkdir(parents=True)
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    monkeypatch.setattr(package, "FAMILY_NAMES", list(package.FAMILY_NAMES))
    yield folder
    package.get_family.cache_clear()
    for file in folder.glob("*.py"):
        sys.modules.pop(f"qkv.families.{file.stem}", None)


@pytest.mark.filterwarnings("ignore:.* newly initialized")  # a new head, which the code trains
@pytest.mark.parametrize("name", WITH_CODE)
def test_code_runs_and_commands_print_what_is_shown(
    name: str,
    tmp_path: Path,
    families: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    if name == "docs/coming-from.md":
        write_examples(tmp_path)
    namespace: dict[str, object] = {"__name__": "document"}
    for block in blocks(name):
        if block.file is not None:
            (tmp_path / block.file).write_text(block.text, encoding="utf-8")
            invalidate_caches()
            if block.kind == "toml":
                read_recipe(tmp_path / block.file)
        elif block.kind == "python":
            code = "\n" * (block.line - 1) + block.text  # errors then name the line of the document
            exec(compile(code, ROOT / name, "exec"), namespace)
        elif block.kind == "pycon":
            run_session(block, namespace, name)
        elif block.kind == "console":
            command, *expected_lines = block.text.splitlines()
            capsys.readouterr()
            status = main(shlex.split(command.removeprefix("$ qkv ")))
            output = "".join(capsys.readouterr())
            shows_error = any(line.startswith("qkv: ") for line in expected_lines)
            assert status == (2 if shows_error else 0), output
            printed = iter(output.splitlines())
            for line in expected_lines:  # in this order; … stands for lines that are left out
                assert line == "…" or line in printed, f"{name}: {command} does not print: {line}"


def run_session(block: Block, namespace: dict[str, object], name: str) -> None:
    """Run the code after >>> in a namespace and compare its outputs with those of the block."""
    parser = doctest.DocTestParser()
    session = parser.get_doctest(block.text, namespace, name, name, block.line - 1)
    messages: list[str] = []
    results = doctest.DocTestRunner(verbose=False).run(
        session, out=messages.append, clear_globs=False
    )
    assert results.attempted > 0
    assert results.failed == 0, "".join(messages)
    namespace.update(session.globs)


def apply_diff(text: str, diff: str) -> str:
    """Replace the lines after ` ` and `-`, which must be in the text once, by those after ` ` and `+`.

    A diff of added lines only is appended to the text."""
    lines = diff.splitlines()
    old = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("+"))
    new = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("-"))
    if not old:
        return text + new
    assert text.count(old) == 1, f"expected once: {old}"
    return text.replace(old, new)


@pytest.mark.parametrize("title", EXTENSIONS)
def test_extensions_edit_two_files_and_run(title: str, tmp_path: Path) -> None:
    """The edits of a section of CONTRIBUTING.md, applied to a copy of the package, do what it says."""
    package = tmp_path / "qkv"
    shutil.copytree(
        PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__", "model.safetensors")
    )
    for weights in PACKAGE.rglob("model.safetensors"):
        (package / weights.relative_to(PACKAGE)).symlink_to(weights)
    _, sections = split_sections(read("CONTRIBUTING.md"), 2)
    section = list(parse_blocks(sections[title]))
    assert len({block.file for block in section if block.file}) <= 2
    for block in section:
        if block.file is None:
            continue
        file = tmp_path / block.file
        if block.kind == "diff":
            file.write_text(apply_diff(file.read_text("utf-8"), block.text), encoding="utf-8")
        else:
            assert not file.exists()
            file.write_text(block.text, encoding="utf-8")
    edited = sorted({block.file for block in section if block.file})
    if find_spec("ruff"):  # `make check` lints the rest
        ruff = [sys.executable, "-m", "ruff", "check", "--config", str(ROOT / "pyproject.toml")]
        linted = subprocess.run([*ruff, *edited], cwd=tmp_path, capture_output=True, text=True)
        assert linted.returncode == 0, linted.stdout
    code = "\n".join(
        block.text for block in section if block.kind == "python" and block.file is None
    )
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr


def test_there_is_code_to_run() -> None:
    kinds = [block.kind for name in ("README.md", "docs/library.md") for block in blocks(name)]
    assert kinds.count("python") > 14
    assert kinds.count("console") > 4


def test_the_changelog_begins_with_this_version() -> None:
    versions = re.findall(r"^## \[(.+?)\]", read("CHANGELOG.md"), re.MULTILINE)
    project = tomllib.loads(read("pyproject.toml"))["project"]
    assert versions[0] == qkv.__version__ == project["version"]


def test_the_signatures_of_the_public_interface_are_those_of_the_code() -> None:
    section = read("docs/library.md").partition("## Public interface")[2]
    documented = re.findall(r"^\| `(qkv\.[\w.]+|Model\.\w+)\((.*?)\)`", section, re.MULTILINE)
    names = [name for name, _ in documented]
    assert {"qkv.load", "qkv.build", "qkv.task", "qkv.fit", "Model.generate"} <= {*names}
    for name, parameters in documented:
        if "..." in parameters:
            continue
        function = attrgetter(name.removeprefix("qkv."))(qkv)
        signature = inspect.Signature(
            [
                parameter.replace(annotation=inspect.Parameter.empty)
                for parameter in inspect.signature(function).parameters.values()
                if parameter.name != "self"
            ]
        )
        scope: dict[str, Any] = {}
        exec(f"def documented({parameters}): ...", scope)
        assert inspect.signature(scope["documented"]) == signature, name


def test_names_beside_those_of_other_libraries_exist() -> None:
    """The last column of the first table has settings, that of the second has tasks."""
    section = read("docs/coming-from.md").partition("## Names")[2]
    tables = [
        re.findall(r"`(\w+)", "".join(re.findall(r"\|([^|]+)\|$", table, re.MULTILINE)))
        for table in section.strip().split("\n\n")
    ]
    configs = (*TABLES.values(), GenerationConfig)
    names = {field.name for config in configs for field in fields(config)}
    names |= {name for family in qkv.list_families() for name in family.defaults}
    assert len(tables[0]) > 20
    assert {*tables[0]} - names == {"label_smoothing"}  # a setting of an objective
    assert {*tables[1]} < {*TASK_CLASSES}


def test_every_family_has_a_row_in_the_readme() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| ([\w -]+) \|", read("README.md"), re.MULTILINE)
    assert {(family.name, family.shape) for family in qkv.list_families()} <= set(rows)


def test_the_readme_lists_the_tasks_of_every_family() -> None:
    rows = dict(re.findall(r"^\| `([\w-]+)` \|.*\| ([a-z ]+) \|$", read("README.md"), re.MULTILINE))
    for family in qkv.list_families():
        tasks = {task for head in family.heads for task in supported_tasks(family.name, head)}
        assert set(rows[family.name].split()) == tasks, family.name


def test_every_family_has_its_sizes_and_heads_listed() -> None:
    sections = dict(part.split("\n", 1) for part in read("docs/families.md").split("\n### ")[1:])
    assert sections.keys() == {family.name for family in qkv.list_families()}
    for family in qkv.list_families():
        text = sections[family.name]
        sizes = re.search(r"^Sizes: (.*)$", text, re.MULTILINE)
        assert sizes is not None
        assert re.findall(r"`(.+?)`", sizes[1]) == list(family.sizes), family.name
        rows = dict(re.findall(r"^\| `(.+?)`.* \| (.+) \|$", text, re.MULTILINE))
        classes = {head: " ".join(re.findall(r"`(.+?)`", row)) for head, row in rows.items()}
        assert classes == {head: names for head, names in family.heads.items() if names}, (
            family.name
        )
        listed = re.search(
            r"^No class at Hugging Face. Heads: (.*); `(.+)` is the default.$", text, re.MULTILINE
        )
        assert bool(listed) != any(family.heads.values()), family.name
        if listed:
            assert re.findall(r"`(.+?)`", listed[1]) == list(family.heads)
            assert listed[2] == family.arguments()["head"]


def test_the_list_of_packages_is_that_of_the_import_rules() -> None:
    """The last column is what tests/project/test_imports.py allows a package to import."""
    text = next(block.text for block in blocks("docs/architecture.md"))
    rows = [re.split(r"  +", line.strip()) for line in text.splitlines()[1:]]
    listed = {
        re.sub(r"/$|\.py$", "", name): words.replace("—", "").split() for name, _, words in rows
    }
    packages = {package_of(file) for file in PACKAGE.rglob("*.py")} - {"__init__", "__main__"}
    assert listed.keys() == packages
    assert listed == {name: ALLOWED_IMPORTS.get(name, "everything").split() for name in listed}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_resolve(name: str) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", read(name))
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not ((ROOT / name).parent / link).exists()] == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_named_files_exist(name: str) -> None:
    """A text in backticks that looks like a file of this project is one."""
    named = re.findall(r"`((?:qkv|tests|tools|docs|\.ci)/[\w./-]+)`", read(name))
    files_of_blocks = {block.file for block in blocks(name)}
    assert [
        path for path in named if path not in files_of_blocks and not (ROOT / path).exists()
    ] == []
