"""The recipes of the package: all can be read, and their results are those of docs/results.md."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from qkv.recipes import RECIPES_FOLDER, find_recipe, list_recipes, read_about
from qkv.train.recipe import parse_recipe, read_recipe
from tests.conftest import ROOT


def read_result_rows() -> list[tuple[str, str, str]]:
    """Return the recipe cell, the result and the time of each row of docs/results.md."""
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8").partition("## Speed")[0]
    rows = re.findall(r"^\| (`[\w-]+`.*?) \| (.*?) \| .*? ?\| (.*?) \|$", text, re.MULTILINE)
    return [(cell, result.replace("**", ""), time) for cell, result, time in rows]


@pytest.mark.parametrize("name", list_recipes())
def test_a_recipe_can_be_read_and_describes_itself(name: str) -> None:
    path = find_recipe(name)
    about = read_about(path)
    assert about is not None
    assert about.description
    assert about.data
    assert bool(about.result) == bool(about.time) == bool(about.hardware)
    recipe = read_recipe(path)
    assert recipe.run == f"runs/{path.stem}"
    assert "about" not in recipe.to_dict()


def test_results_are_those_of_the_document() -> None:
    rows = read_result_rows()
    assert len(rows) > 20
    described: set[tuple[str, str, str]] = set()
    for name in list_recipes():
        about = read_about(find_recipe(name))
        assert about is not None
        if about.result:
            matches = [
                row
                for row in rows
                if f"`{name}`" in row[0] and row[1:] == (about.result, about.time)
            ]
            assert len(matches) == 1, name
            assert about.run in matches[0][0], name
            described |= {*matches}
    # SST-2 was also fine-tuned from another model than that of the recipe.
    others = {cell.partition(":")[0] for cell, *_ in {*rows} - described}
    assert others <= {"`sst2` from `wiki-bert`"}


def test_a_file_takes_precedence_over_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_recipe("shakespeare") == RECIPES_FOLDER / "shakespeare.toml"
    assert find_recipe("small/lora.toml") == RECIPES_FOLDER / "small" / "lora.toml"
    shutil.copyfile(RECIPES_FOLDER / "cola.toml", "shakespeare")
    assert find_recipe("shakespeare") == Path("shakespeare")
    Path("imdb").mkdir()  # a folder is not a recipe
    assert find_recipe("imdb") == RECIPES_FOLDER / "imdb.toml"


def test_unknown_recipes() -> None:
    with pytest.raises(ValueError, match=r"recipe not found.*did you mean shakespeare\?"):
        find_recipe("shakspeare")
    with pytest.raises(ValueError, match=r"recipe not found.*`qkv recipes` lists the names"):
        find_recipe("none.toml")


def test_the_table_about_has_known_keys_only() -> None:
    text = find_recipe("cola").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match=r"mine.toml: about.descriptoin is unknown; did you mean"):
        parse_recipe(text.replace("description", "descriptoin"), Path("mine.toml"))
