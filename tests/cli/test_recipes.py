"""The command `recipes`, and `train` with the name of a recipe."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qkv.recipes import RECIPES_FOLDER, list_recipes
from tests.cli.test_read import bad, good


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")


def test_all_recipes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    output = good(capsys, "recipes")
    first_words = [line.split()[0] for line in output.splitlines() if line.strip()]
    assert {*list_recipes()} <= {*first_words}
    assert "validation loss 1.770" in output
    rows = json.loads(good(capsys, "recipes", "--json"))
    assert [row["name"] for row in rows] == list_recipes()
    cpu = next(row for row in rows if row["name"] == "shakespeare-cpu")
    assert (cpu["result"], cpu["hardware"]) == ("validation loss 1.770", "2 CPU cores")


def test_one_recipe_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    text = (RECIPES_FOLDER / "shakespeare.toml").read_text(encoding="utf-8")
    assert good(capsys, "recipes", "shakespeare") == text
    assert "did you mean imdb?" in bad(capsys, "recipes", "imbd")
    assert "remove --json" in bad(capsys, "recipes", "imdb", "--json")


def test_missing_data_says_where_it_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    message = bad(capsys, "train", "shakespeare-cpu")
    assert "shakespeare.txt: no files found" in message
    assert "this recipe needs shakespeare.txt, 1.1 MB: https://" in message
    assert not any(Path.cwd().iterdir())
    for name in ("train.tsv", "dev.tsv"):
        Path(name).write_text("sentence\tlabel\ngood\t1\n")
    message = bad(capsys, "train", "sst2")
    assert "model.load runs/wiki-electra/last: no such folder" in message
    assert "this recipe needs the model of the recipe wiki-electra" in message


def test_a_recipe_is_trained_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    Path("shakespeare.txt").write_text("A horse! a horse! my kingdom for a horse!\n" * 60)
    sizes = ["--model.width", "16", "--model.depth", "1", "--data.max_length", "16"]
    flags = [*sizes, "--train.steps", "2", "--train.warmup_steps", "1", "--device", "cpu"]
    good(capsys, "train", "shakespeare-cpu", *flags)
    assert (Path("runs") / "shakespeare-cpu" / "last" / "config.json").is_file()
    saved = (Path("runs") / "shakespeare-cpu" / "recipe.toml").read_text(encoding="utf-8")
    assert "about" not in saved
