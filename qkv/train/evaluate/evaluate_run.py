"""Evaluation of the model of a finished run on test data. Does not write to the folder of the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from qkv.model.adapters.config import is_adapter
from qkv.model.device import pick_device
from qkv.model.hub import find_model_folder
from qkv.model.label_names import get_label_names, has_default_label_names
from qkv.model.load import load
from qkv.model.model import Model
from qkv.text import Tokenizer
from qkv.train.evaluate.evaluate_model import (
    apply_model_overrides,
    evaluate_context,
    read_test_records,
)
from qkv.train.evaluate.evaluation_loop import ProgressReporter, ignore_progress
from qkv.train.evaluate.generation import TextGenerator
from qkv.train.label_names import resolve_label_names
from qkv.train.objectives.context import SetupContext
from qkv.train.objectives.registry import ObjectiveSpec, get_objective_spec
from qkv.train.recipe import Recipe, read_recipe
from qkv.train.report.evaluation_report import EvaluationReport

CHECKPOINT_FOLDERS = ("best", "last")


def evaluate_run(
    run: str | Path,
    flags: Sequence[str] = (),
    generator: TextGenerator | None = None,
    *,
    lowercase: bool = False,
    progress: ProgressReporter = ignore_progress,
) -> EvaluationReport:
    """Evaluate the best or else the last model of a run on `data.test` of its recipe.

    `generator` and `lowercase` are those of `evaluate_context`."""
    folder = Path(run)
    has_device = any(flag.split("=")[0] == "--device" for flag in flags)
    device_flags = [] if has_device else ["--device", "auto"]  # not the device of the run
    recipe = read_recipe(folder / "recipe.toml", [*device_flags, *flags])
    trained_recipe = read_recipe(folder / "recipe.toml", device_flags)
    test = recipe.data.test
    if test is None:
        raise ValueError(
            f"{folder}: the recipe has no data.test; set the test data with --data.test"
        )
    spec = get_objective_spec(recipe)
    checkpoints = [folder / name for name in CHECKPOINT_FOLDERS]
    checkpoint = next((path for path in checkpoints if contains_model(path)), None)
    if checkpoint is None:
        raise ValueError(f"{folder}: no model in best/ or last/; has the run finished?")
    model = apply_model_overrides(load_trained_model(recipe, checkpoint), recipe, trained_recipe)
    if spec.text_column is not None:
        model.tokenizer = Tokenizer.load(folder / "tokenizer")
    records = read_test_records(recipe, test)
    context = SetupContext.from_recipe(
        recipe,
        folder / "tokenizer",
        model,
        records,
        label_names=read_label_names(recipe, spec, model),
        trained_model_folder=checkpoint,
    )
    report = evaluate_context(context, generator, lowercase=lowercase, progress=progress)
    return replace(report, checkpoint=str(checkpoint))


def contains_model(folder: Path) -> bool:
    """Return whether the folder contains a model or an adapter."""
    return (folder / "config.json").exists() or is_adapter(folder)


def load_trained_model(recipe: Recipe, folder: Path) -> Model:
    """Load the model that a run saved, or its adapter with the base model of the run."""
    device = pick_device(recipe.device)
    base = recipe.model.load
    if not is_adapter(folder) or base is None:
        return load(folder, device=device)
    try:
        base_folder = find_model_folder(base, None)
    except ValueError as error:
        raise ValueError(f"{error}; set the base model of {folder} with --model.load") from None
    if is_adapter(base_folder):
        return load(folder, device=device)
    return load(base, adapter=folder, device=device)


def read_label_names(recipe: Recipe, spec: ObjectiveSpec, model: Model) -> tuple[str, ...]:
    """Return the label names by id, from the model or else from the training data."""
    if spec.label_column is None:
        return ()
    if not has_default_label_names(model):
        return get_label_names(model)
    return resolve_label_names(recipe, spec, recipe.data.open_corpus(recipe.data.train))
