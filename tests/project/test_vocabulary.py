"""One vocabulary: no retired name, American spelling, and every public name is defined once."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path

import pytest

from qkv import Batch, Inputs, spec
from qkv.families import FAMILY_NAMES
from qkv.spec import Pattern
from tests.conftest import ROOT
from tests.support import tiny

PACKAGE = ROOT / "qkv"
# Names of version 0.2 that the field does not use, and names that say nothing: participles, pronouns.
RETIRED = set(
    """
    afar again alike apart asked beside dealt drawn found given held how joined judge kept kin learnt made
    ours own papers picked said seat seats settled several shown spoken spool taught theirs told twin wanted
    whole written
    Attend Both Buckets Choice Cut Dense Either Embed Entry Everyone Experts Feed Found Given How Judge Kept
    Kind Learn Mix News Pair Place Prepared Recall Relative Rotate Rows Slot Spread Switch Team Told Tower Two
    Vector Where Wide Words
    attend attend_drop drop label_drop layer_decay reach relate rows_feed watch
    """.split()
)
COMPARED = {"ours", "theirs"}  # the sides of a comparison in a test
# Names of version 0.2 that are retired in a part of the package only.
RETIRED_IN = {
    "decode": {"Columns", "rules"},
    "nn": {"Columns", "document", "edges", "even"},
    "kernels": {"document", "edges", "even"},
    "batch.py": {"document", "edges", "even"},
}
RETIRED_MODULES = set(
    "chance drawn given judge kinds lean rooms rules spool spread told twin walk wire".split()
)
RETIRED_PARAMETERS = r"(^|\.)(attend|cross|feed|before_\w+|after_\w+)(\.|$)"
# Names that every family file or command defines.
FIXED = {
    "CONFIG",
    "FAMILY",
    "KEYS",
    "SIZES",
    "finish_config",
    "upgrade_config",
    "look",
    "show",
    "train",
}
STEMS = "analy final general initial minim maxim normal optim organ penal quant random recogn regular serial"
STEMS += " special standard summar token vector visual"
BRITISH = re.compile(
    rf"\w*(?:licence|colour|behaviour|neighbour|favour|honour|centre|labell|modell|cancell(?!edError))\w*"
    rf"|\w*(?:{STEMS.replace(' ', '|')})is(?:e|ed|er|ers|es|ing|ation|ations)\b|\w*analys(?:e|ed|ing)\b",
    re.IGNORECASE,
)
TEXT_FOLDERS = ("qkv", "docs", "tests", "tools", "bench", ".")


def identifiers(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every name that the code gives or reads, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name):
                yield node.lineno, name
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                yield node.lineno, name
            case ast.keyword(arg=str(name)):
                yield node.value.lineno, name


def defined_names(tree: ast.Module) -> Iterator[str]:
    """The public names that a module defines at its top level."""
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign(targets=targets):
                for target in targets:
                    yield from (part.id for part in ast.walk(target) if isinstance(part, ast.Name))


def parse_modules(folder: Path) -> Iterator[tuple[Path, ast.Module]]:
    paths = [folder] if folder.is_file() else sorted(folder.rglob("*.py"))
    for path in paths:
        yield path, ast.parse(path.read_text(encoding="utf-8"))


def find_identifiers(folder: Path, names: set[str]) -> list[str]:
    """Return where the code of a folder gives or reads one of the names."""
    return [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path, tree in parse_modules(folder)
        for line, name in identifiers(tree)
        if name.strip("_") in names
    ]


def test_no_retired_name_is_in_the_package() -> None:
    assert find_identifiers(PACKAGE, RETIRED) == []


def test_no_retired_name_is_in_the_tests() -> None:
    assert find_identifiers(ROOT / "tests", RETIRED - COMPARED) == []


@pytest.mark.parametrize("part", RETIRED_IN)
def test_no_retired_name_is_in_a_part_of_the_package(part: str) -> None:
    assert find_identifiers(PACKAGE / part, RETIRED_IN[part]) == []


def test_no_module_has_a_retired_name() -> None:
    assert {path.stem for path in PACKAGE.rglob("*.py")} & RETIRED_MODULES == set()


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_no_parameter_has_a_retired_name(family: str) -> None:
    names = [name for name, _ in tiny.build(family).net.named_parameters()]
    assert [name for name in names if re.search(RETIRED_PARAMETERS, name)] == []


def test_no_field_of_a_batch_or_pattern_has_a_retired_name() -> None:
    batch_fields = {field.name for part in (Inputs, Batch) for field in fields(part)}
    assert not batch_fields & {"seat", "even", "document", "edges", "rows"}
    patterns = [value for value in vars(spec).values() if is_pattern(value)]
    assert len(patterns) > 8
    pattern_fields = {field.name for pattern in patterns for field in fields(pattern)}
    assert not pattern_fields & {"width", "reach", "distance"}


def is_pattern(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Pattern) and is_dataclass(value)


def list_text_files() -> Iterator[Path]:
    for folder in TEXT_FOLDERS:
        find = (ROOT / folder).glob if folder == "." else (ROOT / folder).rglob
        for suffix in (".py", ".md", ".toml", ".ipynb"):
            yield from find(f"*{suffix}")


def find_british_spellings(paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for word in re.findall(r"\w+", line):
                if is_british(word):
                    yield f"{path}:{number} {word}"


@cache
def is_british(word: str) -> bool:
    return BRITISH.fullmatch(word) is not None


def test_the_spelling_is_american() -> None:
    paths = [path for path in list_text_files() if path != Path(__file__)]
    assert len(paths) > 300
    assert list(find_british_spellings(paths)) == []


def test_a_public_name_is_defined_once() -> None:
    places: dict[str, set[str]] = defaultdict(set)
    for path, tree in parse_modules(PACKAGE):
        for name in defined_names(tree):
            if not name.startswith("_") and name not in FIXED:
                places[name].add(path.relative_to(ROOT).as_posix())
    repeated = {name: sorted(paths) for name, paths in places.items() if len(paths) > 1}
    in_families = {
        name
        for name, paths in repeated.items()
        if all(path.startswith("qkv/families/") for path in paths)
    }
    assert {name: paths for name, paths in repeated.items() if name not in in_families} == {}


def test_the_tests_find_what_they_look_for(tmp_path: Path) -> None:
    tree = ast.parse("def f(kin):\n    seat = kin.drop\n    return g(how=seat)\n")
    assert {name for _, name in identifiers(tree)} & RETIRED == {"kin", "seat", "drop", "how"}
    assert list(defined_names(ast.parse("A = 1\nB: int = 2\ndef c(): ...\nclass D: ..."))) == [
        "A",
        "B",
        "c",
        "D",
    ]
    words = (
        "licence optimiser initialise normalised summarises Colours behaviour neighbouring centre"
    )
    (tmp_path / "words.md").write_text(f"{words} parallelism analysis optimistic precise color\n")
    found_words = [line.split()[1] for line in find_british_spellings([tmp_path / "words.md"])]
    assert found_words == words.split()
    for name in (
        "a.attend.q",
        "decoder.layers.0.cross.q",
        "feed.up",
        "layers.0.before_attend.weight",
    ):
        assert re.search(RETIRED_PARAMETERS, name)
    assert not re.search(RETIRED_PARAMETERS, "decoder.layers.0.cross_attention.q.weight")
