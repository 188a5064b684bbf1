"""Setup: objective, encoder, shards, module, sampler and evaluation set of a model, assembled for
`qkv train`, `qkv.fit` and `qkv eval`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor, nn

from qkv.data.batches.sampler import BatchSampler
from qkv.data.encode.encoder import Encoder
from qkv.data.encode.labels import count_label_ids
from qkv.data.read.record import Record
from qkv.data.store.prepare import prepare_shards
from qkv.data.store.shards import Shards
from qkv.formatting import format_count
from qkv.image_tokenizer import find_image_tokenizer
from qkv.model.device import pick_device
from qkv.model.label_names import get_label_names
from qkv.model.memory import check_memory
from qkv.model.model import Model
from qkv.train.config import OPTIMIZER_BYTES, TrainConfig
from qkv.train.distributed import DistributedContext
from qkv.train.embeddings import EmbeddingMatches, initialize_embeddings
from qkv.train.evaluate.evaluation_loop import ProgressReporter, ignore_progress
from qkv.train.evaluate.evaluation_set import (
    EvaluationSet,
    build_evaluation_set,
    check_without_validation,
)
from qkv.train.evaluate.evaluator import MetricFunction
from qkv.train.evaluate.generation import TextGenerator
from qkv.train.initial_model import TOKENIZER_FOLDER, prepare_model, prepare_tokenizer
from qkv.train.label_names import resolve_label_names, set_problem_type
from qkv.train.loop.trainer import Report, Trainer, check_grad_accum
from qkv.train.objectives import build_objective
from qkv.train.objectives.classification import (
    BALANCED,
    check_weighted_problem_type,
    compute_balanced_weights,
)
from qkv.train.objectives.context import SetupContext
from qkv.train.objectives.objective import ForwardOutputs, Objective, wrap_loss_function
from qkv.train.objectives.registry import (
    ObjectiveSpec,
    check_head_setting,
    get_objective_spec,
)
from qkv.train.objectives.reinforce import REINFORCE_DEFAULTS, prepare_hard_attention
from qkv.train.objectives.samplers import DataSplit
from qkv.train.recipe import Recipe, TokenizerConfig, as_list


@dataclass(frozen=True, kw_only=True)
class SplitSource:
    """The records of a split, and the folder of the shards that they are encoded to."""

    records: Iterable[Record]
    shards_folder: Path
    name: str = "the data"  # for progress messages
    provenance: Mapping[str, str] = field(default_factory=dict)  # the source of the records
    num_workers: int = 0
    progress: ProgressReporter = ignore_progress

    def prepare_shards(self, encoder: Encoder) -> Shards:
        """Encode the records to shards, or open the shards that are up to date."""

        def report(documents: int, tokens: int) -> None:
            message = f"encoded {documents:,} texts of {self.name}, {format_count(tokens)} tokens"
            self.progress(message, documents, None)

        return prepare_shards(
            self.records,
            encoder,
            self.shards_folder,
            field_sizes=encoder.field_sizes(),
            provenance={**self.provenance, "encoder": repr(encoder)},
            num_workers=self.num_workers,
            progress=report,
        )


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A model with its objective, training batches and evaluation data."""

    recipe: Recipe  # with the number of steps, also if the run counts epochs
    model: Model
    net: nn.Module  # the model's network, or a module that wraps it with a second network
    save_model: Callable[[Path], None]
    objective: Objective
    train_sampler: BatchSampler | None  # None: the model is evaluated only
    evaluation_set: EvaluationSet | None
    embeddings: EmbeddingMatches | None = None  # of the setting model.embeddings

    @property
    def sampler(self) -> BatchSampler:
        """The sampler of the training data."""
        assert self.train_sampler is not None
        return self.train_sampler

    def build_trainer(
        self,
        *,
        distributed: DistributedContext,
        folder: Path | None = None,
        callbacks: Sequence[Callable[[Report], None]] = (),
        generator: TextGenerator | None = None,
    ) -> Trainer:
        """Build the training loop; without a `folder`, it writes no files."""
        trainer = Trainer(
            net=self.net,
            sampler=self.sampler,
            objective=self.objective,
            train_config=self.recipe.train,
            folder=folder,
            callbacks=callbacks,
            save_model=self.save_model,
            distributed=distributed,
            num_workers=self.recipe.data.num_workers,
        )
        if self.evaluation_set is not None:
            trainer.evaluate = self.evaluation_set.build_evaluation_function(
                self.model, self.recipe.train, generator, trainer.sharding
            )
        return trainer


def build_setup(
    context: SetupContext, *, train: SplitSource | None = None,
    evaluation: SplitSource | None = None, validation_fraction: float = 0.0,
    loss_fn: Callable[[ForwardOutputs], Tensor] | None = None, device: str | None = None,
    generator: TextGenerator | None = None,
    metrics: Mapping[str, MetricFunction] = MappingProxyType({}),
) -> Setup:  # fmt: skip
    """Build the setup of a training or evaluation.

    The evaluation set is that of `evaluation`, or the `validation_fraction` held out from `train`.
    `loss_fn` replaces the loss of the objective, `metrics` are further metrics by name. The model is
    moved to `device` after the data is encoded."""
    spec = get_objective_spec(context.recipe)
    context = resolve_class_weights(context, spec.label_column)
    recipe = context.recipe
    objective = build_context_objective(context)
    if loss_fn is not None:
        objective = wrap_loss_function(loss_fn, objective)
    train_objective = objective
    if train is not None:
        settings = recipe.objective.settings
        train_objective = prepare_hard_attention(objective, context.model.net, settings)
    encoder = spec.build_encoder(context)
    train_shards = evaluation_shards = None
    if train is not None:
        check_grad_accum(recipe.train, train_objective)
        train_shards = train.prepare_shards(encoder)
    if validation_fraction:
        evaluation = train
        evaluation_shards = train_shards
    elif evaluation is not None:
        evaluation_shards = evaluation.prepare_shards(encoder)
    if device is not None:
        context.model.net.to(pick_device(device))
    net, save_model = spec.build_module(context)
    if train is not None:
        check_training_memory(net, recipe.train)
    sampler = None
    if train_shards is not None:
        split = DataSplit(is_train=True, validation_fraction=validation_fraction)
        sampler = spec.build_sampler(context, train_shards, split)
        recipe = replace(recipe, train=recipe.train.resolve_epochs(sampler.count_batches))
    evaluation_set = None
    if evaluation is not None and evaluation_shards is not None:
        split = DataSplit(is_train=False, validation_fraction=validation_fraction)
        evaluation_set = build_evaluation_set(
            context, objective, encoder, evaluation_shards, evaluation.records, split, metrics
        )
        if train is not None:
            evaluation_set.check_settings(recipe.train, generator)
    return Setup(
        recipe=recipe,
        model=context.model,
        net=net,
        save_model=save_model,
        objective=train_objective,
        train_sampler=sampler,
        evaluation_set=evaluation_set,
        embeddings=context.embeddings,
    )


def check_training_memory(net: nn.Module, train_config: TrainConfig) -> None:
    """Raise ValueError if gradients and optimizer state do not fit into the memory of a CPU."""
    parameters = [
        parameter
        for parameter in net.parameters()
        if parameter.requires_grad and parameter.device.type == "cpu"
    ]
    if train_config.freeze:  # not frozen yet
        return
    bytes_per_value = 4 + OPTIMIZER_BYTES[train_config.optimizer]
    num_parameters = sum(parameter.numel() for parameter in parameters)
    check_memory(
        num_parameters * bytes_per_value,
        f"gradients and optimizer state of {num_parameters:,} parameters",
        "train a smaller model, or an adapter (the table lora)",
    )


def resolve_class_weights(context: SetupContext, label_column: str | None) -> SetupContext:
    """Replace "balanced" class weights by those of the labels in the records."""
    objective = context.recipe.objective
    setting = objective.settings.get("class_weights")
    if label_column is None or not isinstance(setting, str):
        return context
    if setting != BALANCED:
        raise ValueError(
            f"objective.class_weights {setting!r}, expected {BALANCED!r}, a list of weights by label "
            "id, or a table of weights by label"
        )
    check_weighted_problem_type(objective.problem_type)
    counts = count_label_ids(context.records, label_column, context.label_names)
    weights = compute_balanced_weights(counts, len(context.label_names))
    objective = replace(objective, settings={**objective.settings, "class_weights": weights})
    return replace(context, recipe=replace(context.recipe, objective=objective))


def build_context_objective(context: SetupContext) -> Objective:
    """Build the objective of the recipe, without the settings of its encoder or module."""
    config = context.recipe.objective
    other_settings = {*get_objective_spec(context.recipe).extra_settings, *REINFORCE_DEFAULTS}
    settings = {
        name: value for name, value in config.settings.items() if name not in other_settings
    }
    return build_objective(config.name, context.vocab, **settings)


def prepare_training(
    recipe: Recipe, folder: Path, generator: TextGenerator | None = None,
    progress: ProgressReporter = ignore_progress,
) -> Setup:  # fmt: skip
    """Prepare the tokenizer, the model and the shards of a run in its folder."""
    data = recipe.data
    spec = get_objective_spec(recipe)
    pick_device(recipe.device)  # an error before the data is encoded
    if not data.batch_size and not data.batch_tokens:
        raise ValueError(
            "data.batch_size or data.batch_tokens is missing; set the number of rows or tokens of a batch"
        )
    check_without_validation(recipe)
    check_head_setting(spec, recipe)
    context = prepare_context(recipe, folder, spec)
    tokenizer_hash = hash_tokenizer(folder)

    def open_split(paths: str | list[str], name: str) -> SplitSource:
        corpus = data.open_corpus(paths)
        return SplitSource(
            records=corpus,
            shards_folder=folder / "data" / name,
            name=", ".join(as_list(paths)),
            provenance={"corpus": corpus.fingerprint(), "tokenizer": tokenizer_hash},
            num_workers=data.num_workers,
            progress=progress,
        )

    train = open_split(data.train, "train")
    evaluation = None
    validation_fraction = 0.0
    if isinstance(data.validation, float):
        validation_fraction = data.validation
    else:
        evaluation = open_split(data.validation, "validation")
    return build_setup(
        context,
        train=train,
        evaluation=evaluation,
        validation_fraction=validation_fraction,
        device=recipe.device,
        generator=generator,
    )


def prepare_context(recipe: Recipe, folder: Path, spec: ObjectiveSpec) -> SetupContext:
    """Prepare the tokenizer and the model of a run, and return them as a SetupContext."""
    tokenizer = None
    if spec.text_column is not None:
        tokenizer = prepare_tokenizer(recipe, folder, spec.tokenizer_template, spec.text_column)
    elif recipe.tokenizer != TokenizerConfig():
        raise ValueError(
            f"tokenizer: objective {recipe.objective.name} reads no text; remove the table"
        )
    records = recipe.data.open_corpus(recipe.data.train)
    label_names = resolve_label_names(recipe, spec, records)
    torch.manual_seed(recipe.train.seed)  # the same recipe gives the same initial weights
    model = prepare_model(
        recipe,
        tokenizer,
        label_names,
        head=recipe.model.head or spec.head,
        pooling=recipe.model.pooling or spec.pooling,
        image_tokenizer=find_image_tokenizer(folder / TOKENIZER_FOLDER),
    )
    if label_names:
        label_names = get_label_names(model)  # a loaded head has an order of its own
    set_problem_type(model, recipe)
    embeddings = prepare_embeddings(recipe, model)
    return SetupContext.from_recipe(
        recipe,
        folder / TOKENIZER_FOLDER,
        model,
        records,
        label_names=label_names,
        embeddings=embeddings,
    )


def prepare_embeddings(recipe: Recipe, model: Model) -> EmbeddingMatches | None:
    """Set the token embeddings to those of model.embeddings, if the recipe has it."""
    if recipe.model.embeddings is None:
        return None
    if recipe.lora:
        raise ValueError(
            "model.embeddings with the table lora: an adapter does not contain the token embedding; "
            "remove one of them"
        )
    return initialize_embeddings(model, recipe.model.embeddings)


def hash_tokenizer(folder: Path) -> str:
    """Return a hash of the run's tokenizer files, of which a model of images has none."""
    digest = hashlib.sha256()
    for path in sorted((folder / TOKENIZER_FOLDER).glob("*")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]
