"""Training of the model of a cell from a recipe: metrics, precision, and a training that is stopped."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from qkv.experiments.measures import CellContext
from qkv.experiments.recipe_training import CellStopped, train_from_recipe

TABLES: dict[str, Any] = {
    "model": {"family": "gpt2", "width": 16, "depth": 1, "heads": 2},
    "tokenizer": {"type": "char", "vocab_size": 60, "template": "plain"},
    "data": {"unit": "file", "max_length": 8, "batch_size": 2},
    "objective": {"name": "causal-lm"},
    "train": {"steps": 4, "log_every": 2, "precision": "bf16"},
}


def make_context(folder: Path, lines: list[str]) -> CellContext:
    return CellContext(
        seed=3, device="cpu", data=folder, scratch=folder, results=folder, name="cell",
        variant="", report=lines.append,
    )  # fmt: skip


def test_the_model_and_its_last_metrics_are_returned(tiny_data: Path, tmp_path: Path) -> None:
    data = {**TABLES["data"], "train": str(tiny_data / "input.txt")}
    lines: list[str] = []
    model, metrics = train_from_recipe(make_context(tmp_path, lines), {**TABLES, "data": data})
    assert model.family.name == "gpt2"
    assert metrics["train_loss"] > 0
    assert [line.split(", loss")[0] for line in lines] == [
        "  cell run: step 2",
        "  cell run: step 4",
    ]
    recipe = (tmp_path / "run" / "recipe.toml").read_text(encoding="utf-8")
    assert "seed = 3" in recipe
    assert 'precision = "fp32"' in recipe  # bf16 only on a GPU


def test_a_stopped_training_has_no_result(tiny_data: Path, tmp_path: Path) -> None:
    data = {**TABLES["data"], "train": str(tiny_data / "input.txt")}

    class StopAtFirstReport(list[str]):
        def append(self, line: str) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(CellStopped, match="stopped at step 2 of 4"):
        train_from_recipe(make_context(tmp_path, StopAtFirstReport()), {**TABLES, "data": data})
