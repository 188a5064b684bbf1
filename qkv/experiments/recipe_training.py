"""Training of the model of a cell from the tables of a recipe, in its scratch folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qkv.experiments.measures import CellContext
from qkv.model.load import load
from qkv.model.model import Model
from qkv.train.loop.trainer import Report
from qkv.train.recipe import Recipe, build_dataclass
from qkv.train.report.history import MetricsHistory
from qkv.train.run import train_recipe


class CellStopped(KeyboardInterrupt):
    """A signal ended the training of a cell; the cell has no result."""


def train_from_recipe(
    context: CellContext, tables: Mapping[str, Any], name: str = "run"
) -> tuple[Model, dict[str, Any]]:
    """Train the model of a recipe and return it with its last metrics.

    `name` is the run folder in the scratch folder of the cell. The seed and the device are those of
    the cell; precision bf16 is fp32 on a CPU."""
    train = {"seed": context.seed, "save_every": 0, **tables["train"]}
    if not context.device.startswith("cuda") and train.get("precision") == "bf16":
        train["precision"] = "fp32"
    folder = context.scratch / name
    changes = {"train": train, "run": str(folder), "device": context.device}
    recipe: Recipe = build_dataclass(Recipe, {**tables, **changes}, "")
    history = MetricsHistory()

    def report_loss(report: Report) -> None:
        history.add(report)
        loss = report.metrics.get("loss")
        context.report(f"  {context.name} {name}: step {report.step}, loss {loss:.3f}")

    total_steps = 0

    def note_steps(setup: Any, state: Any) -> None:
        nonlocal total_steps
        total_steps = setup.recipe.train.total_steps

    state = train_recipe(recipe, callbacks=[report_loss], on_start=note_steps)
    if state.step < total_steps:
        raise CellStopped(f"{context.name}: stopped at step {state.step} of {total_steps}")
    last = history.train[-1].metrics if history.train else {}  # none if shorter than log_every
    metrics = {f"train_{key}": value for key, value in last.items()}
    return load(folder / "last", device=context.device), metrics
