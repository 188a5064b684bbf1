"""An encoder fine-tuned on few or many labels, from nothing or after pretraining on unlabeled text."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from qkv.experiments.experiment import merge_settings
from qkv.experiments.measures import CellContext
from qkv.experiments.recipe_training import train_from_recipe
from qkv.experiments.table import Measurement
from qkv.files import read_text_file
from qkv.model.model import Model
from qkv.pictures.models.tree import count_parameters
from qkv.text import Tokenizer
from qkv.train.evaluate.evaluate_model import evaluate


class StageRecipe(TypedDict):
    """The tables of a recipe that a stage of the pretraining needs."""

    train: dict[str, Any]


class LabeledData(TypedDict):
    """The table `data` of the fine-tuning."""

    columns: dict[str, str]
    max_length: int


class FinetuneRecipe(TypedDict):
    """The tables of a recipe that fine-tuning needs."""

    train: dict[str, Any]
    data: LabeledData


def measure_pretraining(
    context: CellContext,
    *,
    text: str,
    labeled: str,
    test: str,
    num_labels: Sequence[int],
    model: Mapping[str, Any],
    tokenizer: Mapping[str, Any],
    finetune: FinetuneRecipe,
    stages: Sequence[StageRecipe] = (),
    num_lines: int = 0,
) -> Measurement:
    """Pretrain an encoder in `stages`, recipes each of which continues from the one before, and
    fine-tune it on `num_labels` labeled sentences; a point is the accuracy on the test sentences.

    The tokenizer is trained on the unlabeled text, also for an encoder without pretraining. The
    labeled sentences are a random subset that depends on the seed; `finetune` is a recipe, with
    `steps` for all subsets. `num_lines` limits the unlabeled text to its first lines; 0: all."""
    lines = read_text_file(context.find_data(text)).splitlines()[: num_lines or None]
    text_path = context.scratch / "unlabeled.txt"
    text_path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    tokenizer_folder = context.scratch / "tokenizer"
    Tokenizer.train(lines, **tokenizer).save(tokenizer_folder)
    start: dict[str, Any] = {
        "model": dict(model),
        "tokenizer": {"load": str(tokenizer_folder)},
    }
    metrics: dict[str, Any] = {}
    for number, stage in enumerate(stages):
        tables = merge_settings(stage, {**start, "data": {"train": str(text_path)}})
        pretrained, stage_metrics = train_from_recipe(context, tables, f"stage-{number}")
        metrics |= {f"stage_{number}_{key}": value for key, value in stage_metrics.items()}
        metrics["num_parameters"] = count_parameters(pretrained.net)
        start = {"model": {"load": str(context.scratch / f"stage-{number}" / "last")}}
    header, *rows = read_text_file(context.find_data(labeled)).splitlines()
    random.Random(context.seed).shuffle(rows)
    points = []
    for count in num_labels:
        subset = context.scratch / f"labeled-{count}.tsv"
        subset.write_text("\n".join([header, *rows[:count]]) + "\n", encoding="utf-8")
        tables = merge_settings(finetune, {**start, "data": {"train": str(subset)}})
        finetuned, _ = train_from_recipe(context, tables, f"labels-{count}")
        accuracy = evaluate_accuracy(finetuned, context.find_data(test), finetune)
        points.append({"num_labels": count, "accuracy": accuracy})
        context.report(f"  {context.name}: {count} labels, accuracy {accuracy:.3f}")
    return Measurement(metrics=metrics, points=tuple(points))


def evaluate_accuracy(model: Model, path: Path, finetune: FinetuneRecipe) -> float:
    """Return the accuracy on a labeled file with the columns of the recipe."""
    data = finetune["data"]
    report = evaluate(
        model,
        str(path),
        columns=data["columns"],
        max_length=data["max_length"],
        overflow="truncate",
    )
    return report.metrics["accuracy"]
