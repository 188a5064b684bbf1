"""fit: train a model in memory, with the training loop of recipes, for example in a notebook."""

from __future__ import annotations

import inspect
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack, cast

from rich.console import Console
from torch import Tensor, nn

from qkv.data.read.examples import Examples, read_examples
from qkv.data.read.record import Record
from qkv.hints import describe_unknown_name
from qkv.model.model import Model
from qkv.train.config import TrainConfig, TrainSettings
from qkv.train.distributed import DistributedContext
from qkv.train.evaluate.class_report import EMPTY_CLASS_REPORT
from qkv.train.evaluate.evaluation_set import check_without_validation
from qkv.train.evaluate.evaluator import MetricFunction
from qkv.train.evaluate.target_generator import TargetGenerator
from qkv.train.initial_model import check_model_fits, check_tokenizer, save_tokenizers
from qkv.train.label_names import prepare_label_names, set_problem_type
from qkv.train.loop.activation_checkpointing import restore_block_forwards
from qkv.train.loop.trainer import Report
from qkv.train.objectives.context import SetupContext
from qkv.train.objectives.objective import ForwardOutputs
from qkv.train.objectives.registry import (
    check_head,
    choose_max_length,
    choose_objective,
    get_objective_spec,
    infer_objective_settings,
)
from qkv.train.recipe import (
    DataConfig,
    ModelConfig,
    ObjectiveConfig,
    Recipe,
    build_dataclass,
)
from qkv.train.report.console import TrainingProgress, show_progress
from qkv.train.report.fit_report import FitReport
from qkv.train.report.history import MetricsHistory
from qkv.train.setup import Setup, SplitSource, build_setup

# Fine-tuning of BERT-base (Devlin et al. 2019, appendix A.3); smaller models take higher rates (Turc et
# al. 2019).
BERT_BASE_LR = 5e-5
BERT_BASE_WIDTH = 768
MIN_REPORTS = 10  # of a training shorter than this many times `log_every`
ClassWeights = str | Sequence[float] | Mapping[str, float]


def fit(
    model: Model, data: Examples, *, validation: float | Examples = 0.0, steps: int | None = None,
    epochs: int | None = None, objective: str | Callable[[ForwardOutputs], Tensor] | None = None,
    base_objective: str | None = None, columns: Mapping[str, str] | None = None,
    batch_size: int = 16, max_length: int = 0, overflow: str | None = None,
    class_weights: ClassWeights | None = None,
    metrics: Mapping[str, MetricFunction] | None = None,
    objective_settings: Mapping[str, Any] | None = None, progress: bool = True,
    callbacks: Sequence[Callable[[Report], None]] = (), **train_settings: Unpack[TrainSettings],
) -> FitReport:  # fmt: skip
    """Train a model in place for a number of steps or epochs, and set it to evaluation mode.

    `data` is a path (CSV, TSV, JSONL, ...), a Corpus, a pandas DataFrame, a Dataset of Hugging Face, or
    an iterable of texts, of tuples such as (text, label) or of dicts such as {"text": ..., "label":
    ...}. `columns` maps names of the objective to those of the data, such as {"text": "review"}.
    `validation` is a fraction of the data to hold out, or data of the same kinds.

    `objective` is by default the one that trains the head of the model. It is a name, or a loss
    function `outputs -> loss` on the batches of `base_objective`; the loss is a scalar tensor. The
    function receives the outputs of the network, or, with a contrastive base objective, only the
    embeddings of the full batch. `class_weights` are "balanced", or weights by label id or name.
    `metrics` are functions `(predictions, references) -> number` by name, computed on the validation
    data. `objective_settings` are other settings of the objective, `train_settings` other keys of the
    table `[train]` of a recipe. `lr` is by default 3e-4; of a loaded model, at most 5e-5 * 768 / width.

    For objectives with rows of equal length, `max_length` defaults to the maximum of the model, at most
    512. `overflow` is the mode for longer texts: "error" (the default), "truncate" or "window"; see
    docs/long-texts.md."""
    name = objective if isinstance(objective, str) else base_objective
    name = choose_objective(model, name, "objective" if objective is None else "base_objective")
    if "lr" not in train_settings:
        train_settings["lr"] = choose_lr(model)
    settings = infer_objective_settings(model, name) | dict(objective_settings or {})
    if class_weights is not None:
        settings["class_weights"] = class_weights
    fraction = float(validation) if isinstance(validation, int | float) else 0.0
    validation_data = None if isinstance(validation, int | float) else validation
    recipe = Recipe(
        model=ModelConfig(),
        data=DataConfig(
            train="",
            batch_size=batch_size,
            max_length=max_length or choose_max_length(model, name),
            overflow=overflow,
            validation=fraction if validation_data is None else "validation",
        ),
        objective=ObjectiveConfig(name=name, settings=settings),
        train=build_train_config(steps, epochs, cast(Mapping[str, Any], train_settings)),
    )
    check_without_validation(recipe)
    if metrics and not recipe.data.validation:
        raise ValueError(
            f"metrics {', '.join(metrics)}: there is no validation data; set validation, such as 0.1"
        )
    spec = get_objective_spec(recipe)
    if objective is None or isinstance(objective, str):
        check_head(spec, model, name)
    check_tokenizer(model, spec)
    check_model_fits(model, model.tokenizer, recipe.data.max_length)
    records = read_examples(data, column_names=spec.columns, columns=columns)
    label_names = prepare_label_names(model, recipe, spec, records)
    set_problem_type(model, recipe)
    start_time = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="qkv-") as temporary:
        save_tokenizers(model, Path(temporary))

        def open_split(split_records: Iterable[Record], split_name: str) -> SplitSource:
            folder = Path(temporary) / "data" / split_name
            return SplitSource(records=split_records, shards_folder=folder)

        evaluation = None
        if validation_data is not None:
            evaluation = open_split(
                read_examples(validation_data, column_names=spec.columns, columns=columns),
                "validation",
            )
        setup = build_setup(
            SetupContext.from_recipe(recipe, temporary, model, records, label_names=label_names),
            train=open_split(records, "train"),
            evaluation=evaluation,
            validation_fraction=fraction,
            loss_fn=None if isinstance(objective, str) else objective,
            metrics=metrics or {},
            generator=build_generator(recipe),
        )
        if "log_every" not in train_settings:
            setup = with_default_log_every(setup)
        return train_with_report(setup, callbacks, is_shown=progress, start_time=start_time)


def train_with_report(
    setup: Setup,
    callbacks: Sequence[Callable[[Report], None]],
    *,
    is_shown: bool,
    start_time: float,
) -> FitReport:
    """Train the model of a setup, show the progress if `is_shown`, and return the report."""
    history = MetricsHistory()
    with restore_after_training(setup.net), show_fit_progress(setup, is_shown=is_shown) as show:
        trainer = setup.build_trainer(
            distributed=DistributedContext(),
            callbacks=(history.add, show, *callbacks),
            generator=build_generator(setup.recipe),
        )
        state = trainer.train()
        trainer.apply_final_weights()
    reports = history.validation or history.train
    class_report = reports[-1].class_report if reports else EMPTY_CLASS_REPORT
    return FitReport(
        objective=setup.objective.name,
        metrics=reports[-1].metrics if reports else {},
        class_scores=class_report.class_scores,
        confusion_matrix=class_report.confusion_matrix,
        history=history,
        steps=state.step,
        num_tokens=state.num_tokens,
        seconds=time.perf_counter() - start_time,
    )


def build_generator(recipe: Recipe) -> TargetGenerator:
    """Return the generator of the texts that `eval_generate` asks for."""
    return TargetGenerator({"num_beams": recipe.train.eval_num_beams})


def choose_lr(model: Model) -> float:
    """Return the default learning rate: lower for a wide model that was loaded, which is fine-tuned."""
    width = model.args.get("width")
    if model.tokenizer_folder is None or width is None:
        return TrainConfig.lr
    return min(TrainConfig.lr, BERT_BASE_LR * BERT_BASE_WIDTH / width)


def with_default_log_every(setup: Setup) -> Setup:
    """Return the setup with more frequent reports if the training is short."""
    train_config = setup.recipe.train
    log_every = min(train_config.log_every, max(train_config.total_steps // MIN_REPORTS, 1))
    recipe = replace(setup.recipe, train=replace(train_config, log_every=log_every))
    return replace(setup, recipe=recipe)


@contextmanager
def show_fit_progress(setup: Setup, *, is_shown: bool) -> Iterator[Callable[[Report], None]]:
    """Show the reports as `qkv train` does: a live panel on a terminal, else lines."""
    if not is_shown:
        yield lambda report: None
        return
    training_progress = TrainingProgress(
        title=f"{setup.model.family.name}, {setup.objective.name}",
        train_config=setup.recipe.train,
        flops_per_token=0.0,
        measure_peak_flops=lambda: 0.0,  # measuring takes longer than a small training
    )
    console = Console(highlight=False, markup=False, emoji=False)
    with show_progress(training_progress, console) as show_report:
        yield show_report


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
