"""Training setup: everything a Trainer needs, built from a recipe. It trains nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from qkv.data.batches.sampler import BatchSampler
from qkv.data.encode.encoder import RecordEncoder
from qkv.data.encode.labels import collect_label_names
from qkv.data.read.record import Record
from qkv.data.store.prepare import ShardProgress, prepare_shards
from qkv.data.store.shards import Shards
from qkv.formatting import format_count
from qkv.model.device import pick_device
from qkv.model.model import Model
from qkv.train.evaluate.generation import TextGenerator
from qkv.train.evaluate.held_out import (
    EvaluationSet,
    build_evaluation_set,
    check_without_validation,
)
from qkv.train.evaluate.validation import ProgressReporter, ignore_progress
from qkv.train.loop.trainer import check_grad_accum
from qkv.train.objectives import build_objective
from qkv.train.objectives.classification import PROBLEM_TYPES
from qkv.train.objectives.objective import Objective
from qkv.train.objectives.registry import ObjectiveSpec, get_objective_spec
from qkv.train.recipe import Recipe, as_list
from qkv.train.setup_context import DataSplit, SetupContext
from qkv.train.setup_model import open_corpus, prepare_model, prepare_tokenizer

SINGLE_LABEL = "single_label_classification"  # the default problem type


@dataclass(frozen=True, kw_only=True)
class TrainingSetup:
    """Everything a Trainer needs."""

    model: Model
    net: nn.Module  # the model's network, or a module that wraps it with a second network
    save_model: Callable[[Path], None]
    sampler: BatchSampler
    objective: Objective
    evaluation_set: EvaluationSet | None


def prepare_training(
    recipe: Recipe, folder: Path, generator: TextGenerator | None = None,
    progress: ProgressReporter = ignore_progress,
) -> TrainingSetup:  # fmt: skip
    """Prepare the tokenizer, the model, the shards, the objective and the samplers of a run."""
    data = recipe.data
    spec = get_objective_spec(recipe)
    if not data.batch_size and not data.batch_tokens:
        raise ValueError(
            "data.batch_size or data.batch_tokens is missing: the rows, or tokens, of a batch"
        )
    if not data.validation:
        check_without_validation(recipe.train)
    context = build_context(recipe, folder, spec)
    objective = build_recipe_objective(context)
    check_grad_accum(recipe.train, objective)
    encoder = spec.build_encoder(context)
    train_shards = prepare_split(recipe, folder, encoder, data.train, "train", progress)
    if isinstance(data.validation, float):  # held out from the training data
        validation_fraction = data.validation
        validation_path = data.train
        validation_shards = train_shards
    else:
        validation_fraction = 0.0
        validation_path = data.validation
        validation_shards = prepare_split(
            recipe, folder, encoder, data.validation, "validation", progress
        )
    context.model.net.to(pick_device(recipe.device))
    net, save_model = spec.build_module(context)
    train_split = DataSplit(is_train=True, validation_fraction=validation_fraction)
    sampler = spec.build_sampler(context, train_shards, train_split)
    evaluation_set = None
    if data.validation:
        evaluation_set = build_evaluation_set(
            context,
            objective,
            encoder,
            validation_shards,
            open_corpus(recipe, validation_path),
            DataSplit(is_train=False, validation_fraction=validation_fraction),
        )
        evaluation_set.check_settings(recipe.train, generator)
    return TrainingSetup(
        model=context.model,
        net=net,
        save_model=save_model,
        objective=objective,
        sampler=sampler,
        evaluation_set=evaluation_set,
    )


def build_context(recipe: Recipe, folder: Path, spec: ObjectiveSpec) -> SetupContext:
    """Prepare the tokenizer and the model of a run, with what encoders and samplers need of them."""
    tokenizer = prepare_tokenizer(recipe, folder, spec.tokenizer_template, spec.text_column)
    records = open_corpus(recipe, recipe.data.train)
    label_names = resolve_label_names(recipe, spec, records)
    torch.manual_seed(recipe.train.seed)  # the same recipe gives the same initial weights
    model = prepare_model(recipe, tokenizer, label_names, head=spec.head, pooling=spec.pooling)
    problem_type = recipe.objective.settings.get("problem_type", SINGLE_LABEL)
    if recipe.objective.name == "sequence-classification" and problem_type in PROBLEM_TYPES:
        model.config["problem_type"] = problem_type
    return SetupContext.from_recipe(
        recipe, folder / "tokenizer", model, records, label_names=label_names
    )


def resolve_label_names(
    recipe: Recipe, spec: ObjectiveSpec, records: Iterable[Record]
) -> tuple[str, ...]:
    """Return the label names in the records; regression has one label, an objective without labels none."""
    problem_type = recipe.objective.settings.get("problem_type", SINGLE_LABEL)
    if spec.label_column is None:
        return ()
    if problem_type == "regression":
        return ("score",)
    label_names = collect_label_names(records, spec.label_column, problem_type)
    if not label_names:
        raise ValueError("the training data has no records: is the file empty?")
    if (
        recipe.objective.name == "sequence-classification"
        and problem_type == SINGLE_LABEL
        and len(label_names) == 1
    ):
        raise ValueError(
            f"the training data has only one label, {label_names[0]!r}; expected two or more"
        )
    return label_names


def build_recipe_objective(context: SetupContext) -> Objective:
    config = context.recipe.objective
    extra_settings = get_objective_spec(context.recipe).extra_settings
    settings = {
        name: value for name, value in config.settings.items() if name not in extra_settings
    }
    return build_objective(config.name, context.vocab, **settings)


def prepare_split(
    recipe: Recipe, folder: Path, encoder: RecordEncoder, path: str | list[str], split_name: str,
    progress: ProgressReporter,
) -> Shards:  # fmt: skip
    """Encode the files of a split into shards, or open the shards that are up to date."""
    corpus = open_corpus(recipe, path)
    return prepare_shards(
        corpus,
        encoder,
        folder / "data" / split_name,
        field_sizes=encoder.field_sizes(),
        provenance={
            "corpus": corpus.fingerprint(),
            "encoder": repr(encoder),
            "tokenizer": hash_tokenizer(folder),
        },
        num_workers=recipe.data.num_workers,
        progress=make_encoding_progress(path, progress),
    )


def make_encoding_progress(path: str | list[str], progress: ProgressReporter) -> ShardProgress:
    """Return a function that reports the number of encoded texts and tokens."""
    name = ", ".join(as_list(path))
    return lambda documents, tokens: progress(
        f"encoded {documents:,} texts of {name}, {format_count(tokens)} tokens", documents, None
    )


def hash_tokenizer(folder: Path) -> str:
    """Return a hash of the run's tokenizer files."""
    digest = hashlib.sha256()
    for path in sorted((folder / "tokenizer").iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]
