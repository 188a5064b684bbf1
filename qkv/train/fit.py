"""fit: train a model in memory, with the training loop of recipes, for example in a notebook."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Unpack, cast

from torch import Tensor, nn

from qkv.data.read.corpus import Corpus
from qkv.data.read.record import Record
from qkv.hints import describe_unknown_name
from qkv.model.model import Model
from qkv.train.config import TrainConfig, TrainSettings
from qkv.train.distributed import DistributedContext
from qkv.train.evaluate.evaluation_set import check_without_validation
from qkv.train.initial_model import check_model_fits
from qkv.train.label_names import (
    adopt_label_names,
    get_label_names,
    has_default_label_names,
    resolve_label_names,
)
from qkv.train.loop.activation_checkpointing import restore_block_forwards
from qkv.train.loop.trainer import Report, TrainerState
from qkv.train.objectives.context import SetupContext
from qkv.train.objectives.objective import ForwardOutputs
from qkv.train.objectives.registry import (
    VARIABLE_LENGTH_OBJECTIVES,
    check_head,
    find_base_objective,
    get_objective_spec,
)
from qkv.train.objectives.vocabulary import get_max_positions
from qkv.train.recipe import (
    DataConfig,
    ModelConfig,
    ObjectiveConfig,
    Recipe,
    build_dataclass,
)
from qkv.train.setup import SplitSource, build_setup

DEFAULT_MAX_LENGTH = 512  # upper limit of the default row length, in tokens
TrainingData = str | Path | Corpus | Iterable[str | Mapping[str, Any]]


def fit(
    model: Model, data: TrainingData, *, steps: int | None = None, epochs: int | None = None,
    objective: str | Callable[[ForwardOutputs], Tensor] = "causal-lm",
    base_objective: str | None = None, batch_size: int = 16, max_length: int = 0,
    overflow: str | None = None, validation: float = 0.0,
    objective_settings: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callable[[Report], None]] = (), **train_settings: Unpack[TrainSettings],
) -> TrainerState:  # fmt: skip
    """Train a model in place for a number of steps or epochs, and set it to evaluation mode.

    `data` are texts, records such as {"text": ..., "label": ...}, a path or a Corpus. `objective` is a
    name, or a loss function `outputs -> loss` on the batches of `base_objective`, by default the
    objective that trains the head of the model. The loss function receives the outputs of the
    network, or, with a contrastive base objective, only the embeddings of the full batch.
    `objective_settings` are settings of the objective, `train_settings` other keys of the table
    `[train]` of a recipe, such as lr=1e-4. For objectives with rows of equal length, `max_length`
    defaults to the maximum of the model, at most 512. `overflow` is the mode for longer texts: "error"
    (the default), "truncate" or "window"; see docs/long-texts.md."""
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise ValueError(
            "the model has no tokenizer: set model.tokenizer, for example to Tokenizer.load(folder)"
        )
    name = objective if isinstance(objective, str) else base_objective or find_base_objective(model)
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
        train=build_train_config(steps, epochs, cast(Mapping[str, Any], train_settings)),
    )
    check_without_validation(recipe)
    spec = get_objective_spec(recipe)
    records = convert_to_records(data)
    if isinstance(objective, str):
        check_head(spec, model, name)
    check_model_fits(model, tokenizer, max_length)
    label_names: tuple[str, ...] = ()
    if spec.label_column:
        if has_default_label_names(model):
            adopt_label_names(model, resolve_label_names(recipe, spec, records))
        label_names = get_label_names(model)
    with tempfile.TemporaryDirectory(prefix="qkv-") as temporary:
        tokenizer.save(temporary)
        setup = build_setup(
            SetupContext.from_recipe(recipe, temporary, model, records, label_names=label_names),
            train=SplitSource(records=records, shards_folder=Path(temporary) / "data"),
            validation_fraction=validation,
            loss_fn=None if isinstance(objective, str) else objective,
        )
        with restore_after_training(setup.net):
            return setup.build_trainer(
                distributed=DistributedContext(), callbacks=callbacks
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


def build_train_config(
    steps: int | None, epochs: int | None, settings: Mapping[str, Any]
) -> TrainConfig:
    """Build the TrainConfig; an unknown setting is an error that suggests the closest known one."""
    known_names = [*inspect.signature(fit).parameters, *TrainSettings.__annotations__]
    for name in settings:
        if name not in TrainSettings.__annotations__:
            raise ValueError(describe_unknown_name(name, known_names))
    config: TrainConfig = build_dataclass(
        TrainConfig, {"steps": steps, "epochs": epochs, **settings}, ""
    )
    return config


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
