"""One vocabulary: no retired word in the code, and every public top-level name is defined once."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import ROOT

PACKAGE = ROOT / "qkv"
# Names of version 0.2 that the field does not use, and names that say nothing: participles, pronouns.
RETIRED = set(
    """
    afar again alike apart asked beside dealt drawn found given held how joined judge kept kin learnt made
    ours own papers picked said seat seats settled several shown spoken spool taught theirs told twin wanted
    whole written
    Attend Both Buckets Cut Dense Either Embed Entry Everyone Experts Feed Found Given How Judge Kept
    Kind Learn Mix Pair Place Prepared Recall Relative Rotate Rows Slot Spread Switch Team Told Tower Two
    Vector Where Wide Words
    attend attend_drop drop label_drop layer_decay optimiser rows_feed watch
    colour initialise normalise optimise randomise summarise
    """.split()
)
# Names that every family file or command defines.
FIXED = {"CONFIG", "FAMILY", "KEYS", "SIZES", "finish_config", "upgrade_config", "show", "train"}


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


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path, ast.parse(path.read_text(encoding="utf-8"))


def test_no_retired_name_is_in_the_code() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path, tree in modules()
        for line, name in identifiers(tree)
        if name.strip("_") in RETIRED
    ]
    assert wrong == []


def test_a_public_name_is_defined_once() -> None:
    places: dict[str, set[str]] = defaultdict(set)
    for path, tree in modules():
        for name in defined_names(tree):
            if not name.startswith("_") and name not in FIXED:
                places[name].add(path.relative_to(ROOT).as_posix())
    several = {name: sorted(paths) for name, paths in places.items() if len(paths) > 1}
    in_families = {
        name
        for name, paths in several.items()
        if all(path.startswith("qkv/families/") for path in paths)
    }
    assert {name: paths for name, paths in several.items() if name not in in_families} == {}


def test_the_tests_find_what_they_look_for() -> None:
    tree = ast.parse("def f(kin):\n    seat = kin.drop\n    return g(how=seat)\n")
    assert {name for _, name in identifiers(tree)} & RETIRED == {"kin", "seat", "drop", "how"}
    assert list(defined_names(ast.parse("A = 1\nB: int = 2\ndef c(): ...\nclass D: ..."))) == [
        "A",
        "B",
        "c",
        "D",
    ]
