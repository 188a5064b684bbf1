"""fit: train a model in memory on data in memory, with the loop of recipes, as in a notebook."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Unpack, cast

from torch import Tensor, nn

from qkv.data.read.corpus import Corpus
from qkv.data.read.record import Record
from qkv.data.store.prepare import prepare_shards
from qkv.model.model import Model
from qkv.train.config import TrainConfig, TrainSettings
from qkv.train.evaluate.held_out import build_evaluation_set, check_without_validation
from qkv.train.evaluate.validation import MetricsFunction
from qkv.train.loop.activation_checkpointing import restore_block_forwards
from qkv.train.loop.trainer import Report, Trainer, TrainerState
from qkv.train.objectives.objective import ForwardOutputs, wrap_loss_function
from qkv.train.objectives.registry import VARIABLE_LENGTH_OBJECTIVES, check_head, get_objective_spec
from qkv.train.recipe import (
    KEY_HINTS,
    DataConfig,
    ModelConfig,
    ObjectiveConfig,
    Recipe,
    build_dataclass,
)
from qkv.train.setup import build_recipe_objective, resolve_label_names
from qkv.train.setup_context import DataSplit, SetupContext, get_config_label_names
from qkv.train.setup_model import check_model_fits, get_max_positions, set_label_names

DEFAULT_LABEL_PATTERN = re.compile(r"LABEL_\d+")  # Hugging Face's default label names
DEFAULT_MAX_LENGTH = 512  # upper limit of the default row length, in tokens
TrainingData = str | Path | Corpus | Iterable[str | Mapping[str, Any]]


def fit(
    model: Model, data: TrainingData, *, steps: int,
    objective: str | Callable[[ForwardOutputs], Tensor] = "causal-lm",
    base_objective: str = "causal-lm", batch_size: int = 16, max_length: int = 0,
    overflow: str = "truncate", validation: float = 0.0,
    objective_settings: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callable[[Report], None]] = (), **train_settings: Unpack[TrainSettings],
) -> TrainerState:  # fmt: skip
    """Train a model in place, and leave it in eval mode.

    `data` is texts, records such as {"text": ..., "label": ...}, a path or a Corpus. `objective` is a
    name, or a loss function `outputs -> loss` over the batches of `base_objective`; it receives the
    network's outputs, or only those that a contrastive base objective gathers over the full batch.
    `objective_settings` are settings of the objective, `train_settings` other keys of a recipe's
    table `[train]`, such as lr=1e-4. `max_length` defaults to the model's maximum, at most 512, for
    objectives with rows of one length."""
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise ValueError(
            "the model has no tokenizer: set model.tokenizer, for example to Tokenizer.load(folder)"
        )
    name = objective if isinstance(objective, str) else base_objective
    if not max_length and name not in VARIABLE_LENGTH_OBJECTIVES:
        max_length = min(get_max_positions(model.spec) or DEFAULT_MAX_LENGTH, DEFAULT_MAX_LENGTH)
    recipe = Recipe(
        model=ModelConfig(),
        data=DataConfig(
            train="",
            batch_size=batch_size,
            max_length=max_length,
            overflow=overflow,
            validation=validation,
        ),
        objective=ObjectiveConfig(name=name, settings=dict(objective_settings or {})),
        train=build_train_config(steps, cast(Mapping[str, Any], train_settings)),
    )
    if not validation:
        check_without_validation(recipe.train)
    spec = get_objective_spec(recipe)
    records = convert_to_records(data)
    if isinstance(objective, str):
        check_head(spec, model, name)
    check_model_fits(model, tokenizer, max_length)
    with tempfile.TemporaryDirectory(prefix="qkv-") as temporary:
        tokenizer.save(temporary)
        if spec.label_column and all(
            DEFAULT_LABEL_PATTERN.fullmatch(label) for label in get_config_label_names(model)
        ):
            adopt_label_names(model, resolve_label_names(recipe, spec, records))
        context = SetupContext.from_recipe(
            recipe,
            temporary,
            model,
            records,
            label_names=get_config_label_names(model) if spec.label_column else (),
        )
        encoder = spec.build_encoder(context)
        shards = prepare_shards(
            records,
            encoder,
            Path(temporary) / "data",
            field_sizes=encoder.field_sizes(),
            provenance={"fit": repr(encoder)},
        )
        built_objective = build_recipe_objective(context)
        if not isinstance(objective, str):
            built_objective = wrap_loss_function(objective, built_objective)
        net, _ = spec.build_module(context)
        train_split = DataSplit(is_train=True, validation_fraction=validation)
        validation_split = DataSplit(is_train=False, validation_fraction=validation)
        evaluate: MetricsFunction | None = None
        if validation:
            evaluation_set = build_evaluation_set(
                context, built_objective, encoder, shards, records, validation_split
            )
            evaluation_set.check_settings(recipe.train, None)
            evaluate = evaluation_set.build_metrics_function(model, recipe.train)
        with restore_after_training(net):
            return Trainer(
                net=net,
                sampler=spec.build_sampler(context, shards, train_split),
                objective=built_objective,
                train_config=recipe.train,
                callbacks=callbacks,
                evaluate=evaluate,
            ).train()


@contextmanager
def restore_after_training(net: nn.Module) -> Iterator[None]:
    """Undo `freeze` and `activation_checkpointing` when training ends."""
    trainable = [(parameter, parameter.requires_grad) for parameter in net.parameters()]
    try:
        with restore_block_forwards(net):
            yield
    finally:
        for parameter, requires_grad in trainable:
            parameter.requires_grad_(requires_grad)


def build_train_config(steps: int, settings: Mapping[str, Any]) -> TrainConfig:
    """Build the TrainConfig; an unknown setting is an error that names the closest known one."""
    for name in settings.keys() & KEY_HINTS.keys():
        raise ValueError(f"{name} is unknown; did you mean {KEY_HINTS[name].rpartition('.')[2]}?")
    config: TrainConfig = build_dataclass(TrainConfig, {"steps": steps, **settings}, "")
    return config


def adopt_label_names(model: Model, label_names: tuple[str, ...]) -> None:
    """Give a model with default label names those of the data."""
    num_labels = model.args["num_labels"]
    if len(label_names) != num_labels:
        raise ValueError(
            f"the data has {len(label_names)} labels ({', '.join(label_names[:20])}), and the model "
            f"{num_labels}: build it with num_labels={len(label_names)}"
        )
    set_label_names(model, label_names)


def convert_to_records(data: TrainingData) -> Iterable[Record]:
    """Return the data as records, each with its location for error messages."""
    if isinstance(data, Corpus):
        return data
    if isinstance(data, str | Path):
        return Corpus(data)
    return [
        Record({"text": item} if isinstance(item, str) else dict(item), f"example {number}")
        for number, item in enumerate(data)
    ]
