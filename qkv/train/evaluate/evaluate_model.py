"""evaluate: metrics of a model on labeled data, and the report that `qkv eval` prints."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tomlkit
import torch

from qkv.data.read.examples import Examples, read_examples
from qkv.data.read.lines import STDIN
from qkv.data.read.record import Record
from qkv.data.store.shards import ShardIndex
from qkv.kernels.attention import without_cudnn
from qkv.model.device import pick_device
from qkv.model.hub import find_model_folder, find_settings_folder
from qkv.model.label_names import get_label_names
from qkv.model.load import load
from qkv.model.model import Model
from qkv.model.transforms.heads import replace_head
from qkv.train.config import TrainConfig
from qkv.train.evaluate.evaluation_loop import (
    ProgressReporter,
    evaluate_batches,
    ignore_progress,
)
from qkv.train.evaluate.evaluator import MetricFunction
from qkv.train.evaluate.generation import TextGenerator
from qkv.train.evaluate.target_generator import TargetGenerator
from qkv.train.initial_model import check_model_fits, check_tokenizer, save_tokenizers
from qkv.train.objectives.context import SetupContext
from qkv.train.objectives.registry import (
    check_head,
    choose_max_length,
    choose_objective,
    find_data_columns,
    get_objective_spec,
    infer_objective_settings,
)
from qkv.train.objectives.wrappers import GENERATOR_FOLDER
from qkv.train.recipe import (
    DataConfig,
    ModelConfig,
    ObjectiveConfig,
    Recipe,
    as_list,
    parse_recipe,
)
from qkv.train.report.evaluation_report import EvaluationReport
from qkv.train.setup import SplitSource, build_setup

DEFAULT_BATCH_SIZE = 32
TEXT_FIELDS = ("tokens", "source", "target")  # fields of shards that contain texts


def evaluate(
    model: Model, data: Examples, *, objective: str | None = None,
    columns: Mapping[str, str] | None = None, batch_size: int = DEFAULT_BATCH_SIZE,
    max_length: int = 0, overflow: str | None = None,
    metrics: Mapping[str, MetricFunction] | None = None,
    objective_settings: Mapping[str, Any] | None = None, generate: bool = True,
    generation_settings: Mapping[str, Any] | None = None,
) -> EvaluationReport:  # fmt: skip
    """Compute the metrics of a model on labeled data.

    The arguments are those of `qkv.fit`; `objective` is by default the one that trains the head of the
    model. A seq2seq model generates the texts of all sources for metrics such as BLEU, unless `generate`
    is false; `generation_settings` are those of `model.generate`, by default a search with 5 beams."""
    generator = TargetGenerator(generation_settings or {}) if generate else None
    name = choose_objective(model, objective)
    recipe = Recipe(
        model=ModelConfig(load="memory"),  # a student is not initialized from its teacher
        data=DataConfig(
            train="",
            batch_size=batch_size,
            max_length=max_length or choose_max_length(model, name),
            overflow=overflow,
        ),
        objective=ObjectiveConfig(
            name=name,
            settings=infer_objective_settings(model, name) | dict(objective_settings or {}),
        ),
        train=TrainConfig(steps=1),
    )
    spec = get_objective_spec(recipe)
    records = read_examples(data, column_names=spec.columns, columns=columns)
    is_training = model.net.training
    try:
        return evaluate_loaded_model(model, recipe, records, generator, metrics=metrics or {})
    finally:
        model.train(is_training)


def evaluate_loaded_model(
    model: Model,
    recipe: Recipe,
    records: Iterable[Record],
    generator: TextGenerator | None = None,
    *,
    metrics: Mapping[str, MetricFunction] = MappingProxyType({}),
    lowercase: bool = False,
    progress: ProgressReporter = ignore_progress,
) -> EvaluationReport:
    """Evaluate a model with its own tokenizer and label names."""
    spec = get_objective_spec(recipe)
    check_tokenizer(model, spec)
    check_head(spec, model, recipe.objective.name)
    check_model_fits(model, model.tokenizer, recipe.data.max_length)
    if "generator" in spec.extra_settings and "generator" not in recipe.objective.settings:
        raise ValueError(
            f"objective {recipe.objective.name}: the evaluation needs the trained generator; set "
            "objective.generator to its folder"
        )
    with tempfile.TemporaryDirectory(prefix="qkv-") as temporary:
        save_tokenizers(model, Path(temporary))
        context = SetupContext.from_recipe(
            recipe,
            temporary,
            model,
            records,
            label_names=get_label_names(model) if spec.label_column else (),
        )
        return evaluate_context(
            context, generator, metrics=metrics, lowercase=lowercase, progress=progress
        )


def evaluate_checkpoint(
    name: str,
    flags: Sequence[str] = (),
    generator: TextGenerator | None = None,
    *,
    lowercase: bool = False,
    progress: ProgressReporter = ignore_progress,
) -> EvaluationReport:
    """Evaluate the model of a folder or hub id on `data.test`; flags are keys of a recipe, such as
    `--data.test test.csv --data.columns.text review`."""
    tables: dict[str, Any] = {
        "model": {"load": name},
        "data": {"train": ""},
        "objective": {"name": ""},
        "train": {"steps": 1},
    }
    text = tomlkit.dumps(tables)
    recipe = parse_recipe(text, Path(name), flags)
    model = load(name, device=recipe.device)
    model = apply_model_overrides(model, recipe, parse_recipe(text, Path(name)))
    objective_name = choose_objective(model, recipe.objective.name or None)
    settings = infer_objective_settings(model, objective_name) | recipe.objective.settings
    generator_folder = find_settings_folder(find_model_folder(name, None)) / GENERATOR_FOLDER
    if generator_folder.is_dir():
        settings.setdefault("generator", str(generator_folder))
    data = recipe.data
    max_length = data.max_length or choose_max_length(model, objective_name)
    batch_size = data.batch_size or (0 if data.batch_tokens else DEFAULT_BATCH_SIZE)
    recipe = replace(
        recipe,
        data=replace(data, max_length=max_length, batch_size=batch_size),
        objective=ObjectiveConfig(name=objective_name, settings=settings),
    )
    test = recipe.data.test
    if test is None:
        raise ValueError(f"{name}: no data to evaluate on; set data.test")
    recipe = find_data_columns(recipe, test)
    report = evaluate_loaded_model(
        model,
        recipe,
        read_test_records(recipe, test),
        generator,
        lowercase=lowercase,
        progress=progress,
    )
    return replace(report, checkpoint=name)


def evaluate_context(
    context: SetupContext,
    generator: TextGenerator | None = None,
    *,
    metrics: Mapping[str, MetricFunction] = MappingProxyType({}),
    lowercase: bool = False,
    progress: ProgressReporter = ignore_progress,
) -> EvaluationReport:
    """Evaluate the model of a context on its records.

    With a `generator`, texts generated by a seq2seq model are compared with the targets;
    `lowercase` adds the BLEU of lowercased texts."""
    spec = get_objective_spec(context.recipe)
    test = context.recipe.data.test
    with tempfile.TemporaryDirectory(prefix="qkv-") as shards_folder:
        source = SplitSource(
            records=context.records,
            shards_folder=Path(shards_folder),
            name="the data" if test is None else ", ".join(as_list(test)),
            progress=progress,
        )
        setup = build_setup(context, evaluation=source, metrics=metrics)
        evaluation_set = setup.evaluation_set
        assert evaluation_set is not None
        shards = evaluation_set.shards
        if generator is None and (names := evaluation_set.custom_generation_metrics):
            raise ValueError(
                f"metrics {', '.join(names)}: those of {setup.objective.name} are computed from "
                "generated texts; set generate=True"
            )
        with torch.no_grad(), without_cudnn():
            evaluation = evaluate_batches(
                setup.net.eval(),
                evaluation_set.sampler,
                evaluation_set.objective,
                evaluation_set.evaluator,
                progress=progress,
            )
        results = dict(evaluation.metrics)
        settings = evaluation_set.evaluator.describe_settings()
        signatures: dict[str, str] = {}
        if spec.predicts_every_token:
            num_characters = sum(len(record.get_text("text")) for record in context.records)
            bits = results["loss"] / math.log(2)
            results["bits_per_character"] = bits * shards.count_tokens() / max(num_characters, 1)
        if evaluation_set.generation_metrics and generator is not None:
            examples = evaluation_set.build_generation_examples(len(shards))
            texts = examples.generate(context.model, generator, progress=progress)
            generation_metrics, signatures = examples.compute_metrics(
                texts,
                lowercase=lowercase,
                custom_metrics=evaluation_set.custom_generation_metrics,
            )
            results |= generation_metrics
            settings |= generator.settings
        return EvaluationReport(
            objective=context.recipe.objective.name,
            data=test,
            num_records=len(shards),
            num_tokens=count_text_tokens(shards.index),
            metrics=results,
            class_scores=evaluation.class_report.class_scores,
            confusion_matrix=evaluation.class_report.confusion_matrix,
            settings=settings,
            signatures=signatures,
        )


def read_test_records(recipe: Recipe, paths: str | list[str]) -> Iterable[Record]:
    """Return records that can be read more than once; standard input is kept in memory."""
    records = recipe.data.open_corpus(paths)
    return list(records) if STDIN in as_list(paths) else records


def apply_model_overrides(model: Model, recipe: Recipe, trained_recipe: Recipe) -> Model:
    """Return the model with settings that differ from training, such as another `mem_len`."""
    for name in ("head", "label_names", "pooling"):
        if getattr(recipe.model, name) != getattr(trained_recipe.model, name):
            raise ValueError(f"model.{name}: that of a trained model cannot change; remove it")
    trained = trained_recipe.model.overrides
    changed = {
        name: value
        for name, value in recipe.model.overrides.items()
        if name not in trained or trained[name] != value
    }
    model, _ = replace_head(model, None, 0, overrides=changed)
    model.net.to(pick_device(recipe.device))
    return model


def count_text_tokens(index: ShardIndex) -> int:
    """Return the number of tokens in all text fields."""
    return sum(shard.num_tokens.get(field, 0) for shard in index.shards for field in TEXT_FIELDS)
