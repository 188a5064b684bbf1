"""The folder of a run: how often it is saved, what it goes on with, and what is refused then."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from qkv.cli import main
from qkv.learn.recipe import parse_recipe
from tests.test_cli import good
from tests.test_cli_learn import RECIPE, _home

__all__ = ["_home"]  # every test has its texts and its recipe
Capture = pytest.CaptureFixture[str]


def saves(**learn: Any) -> int:
    table = "\n".join(f"{name} = {value}" for name, value in learn.items())
    return parse_recipe(RECIPE.partition("[learn]")[0] + f"[learn]\n{table}\n", Path("x.toml")).learn.save


def steps_in(folder: str) -> list[int]:
    lines = [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]
    return [line["step"] for line in lines if line["kind"] == "train"]


def test_a_recipe_that_does_not_say_saves_ten_times() -> None:
    assert saves(steps=1000) == 100
    assert saves(steps=6) == 1
    assert saves(steps=1000, save=0) == 0
    assert saves(steps=1000, save=7) == 7
    assert saves(steps=100, last=20, keep=20) == 5


@pytest.mark.filterwarnings("default")
def test_a_run_without_a_checkpoint_begins_anew_and_says_so(capsys: Capture) -> None:
    good(capsys, "train", "tiny.toml", "--learn.save", 0)
    shutil.rmtree("runs/tiny/checkpoints")
    assert main(["train", "tiny.toml", "--resume", "auto"]) == 0
    said = "qkv: warning: runs/tiny: no checkpoint to go on from; the run begins anew\n"
    assert capsys.readouterr().err == said
    assert steps_in("runs/tiny") == [2, 4, 6]
