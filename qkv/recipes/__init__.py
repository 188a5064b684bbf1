"""The recipes of the package, found by name: `shakespeare`, `small/lora`. Reads only their table [about]."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from qkv.hints import find_known_name

RECIPES_FOLDER = Path(__file__).parent
RECIPE_SUFFIX = ".toml"


@dataclass(frozen=True, kw_only=True)
class About:
    """The table [about] of a recipe: what it trains, and the measured result of a run of it.

    docs/results.md has the same results, with the conditions under which they were measured."""

    description: str
    data: str  # the files that the recipe needs, and where they come from
    run: str = ""  # the steps of the measured run
    result: str = ""
    time: str = ""
    hardware: str = ""


def list_recipes() -> list[str]:
    """Return the names of all recipes of the package; those of `small/` come last."""
    paths = RECIPES_FOLDER.rglob(f"*{RECIPE_SUFFIX}")
    names = [path.relative_to(RECIPES_FOLDER).with_suffix("").as_posix() for path in paths]
    return sorted(names, key=lambda name: (name.count("/"), name))


def find_recipe(name: str) -> Path:
    """Return the path of a recipe: a file, which takes precedence, or a recipe of the package."""
    path = Path(name)
    if path.is_file():
        return path
    names = list_recipes()
    if name.removesuffix(RECIPE_SUFFIX) in names:
        return RECIPES_FOLDER / f"{name.removesuffix(RECIPE_SUFFIX)}{RECIPE_SUFFIX}"
    if path.is_dir():
        raise ValueError(f"{name}: a folder, not a recipe in TOML; expected a file or a name")
    known_name = find_known_name(path.stem, names)
    hint = f"did you mean {known_name}?" if known_name else "`qkv recipes` lists the names"
    raise ValueError(f"{name}: recipe not found; expected a TOML file or a name; {hint}")


def read_about(path: Path) -> About | None:
    """Read the table [about] of a recipe, if it has one."""
    table = tomllib.loads(path.read_text(encoding="utf-8")).get("about")
    return None if table is None else About(**table)
