"""Training commands: train a model from a recipe, evaluate a run."""

from __future__ import annotations

import json
import os
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from qkv.cli.console import make_console, print_rich, show_progress_bar
from qkv.cli.decoding import DEFAULT_EVAL, EvalOptions
from qkv.cli.flags import BoolFlag, JsonFlag, drop_none
from qkv.formatting import format_count, format_duration
from qkv.memory import is_memory_error
from qkv.recipes import find_recipe, read_about

if TYPE_CHECKING:
    from rich.table import Table

    from qkv.train.config import TrainConfig
    from qkv.train.evaluate.class_report import ClassReport
    from qkv.train.evaluate.evaluation_loop import ProgressReporter
    from qkv.train.loop.trainer import Report, TrainerState
    from qkv.train.recipe import Recipe
    from qkv.train.report.console import ReportCallback, TrainingProgress
    from qkv.train.report.evaluation_report import EvaluationReport
    from qkv.train.report.history import MetricsHistory
    from qkv.train.setup import Setup
    from qkv.train.signals import StopSignals

RecipeOverride = Annotated[str, Parameter(allow_leading_hyphen=True)]  # --table.key value


def train(
    recipe: Path,
    /,
    *overrides: RecipeOverride,
    run: str | None = None,
    device: str | None = None,
    resume: Literal["auto", "changed"] | None = None,
) -> None:
    """Train a model from a recipe: a TOML file whose settings are also flags.

    qkv train shakespeare --data.train input.txt --run runs/mine --train.steps 500

    Parameters
    ----------
    recipe
        TOML file with the tables model, tokenizer, data, objective, train and, for adapters, lora;
        or the name of a recipe of the package: `qkv recipes` lists them
    overrides
        settings that override those of the recipe: --train.lr 3e-4
    run
        output folder; default: runs/ and the name of the recipe
    device
        auto, cpu, cuda or mps
    resume
        resume the run of the folder: auto, if the recipe is unchanged; changed, if it is not
    """
    from qkv.train.recipe import read_recipe
    from qkv.train.signals import StoppedBeforeTraining, handle_stop_signals

    flags = drop_none(run=run, device=device)
    # A JSON string is a TOML string: `--run 1` is the folder "1".
    settings = [
        f"--{name}={json.dumps(value, ensure_ascii=False)}" for name, value in flags.items()
    ]
    # Errors in the recipe are reported before torch is imported, by one process.
    try:
        path = find_recipe(str(recipe))
        run_recipe = read_recipe(path, [*overrides, *settings])
        check_files(run_recipe, path)
    except ValueError:
        if is_main_process():
            raise
        raise SystemExit(2) from None
    with handle_stop_signals() as stop_signals:
        try:
            run_training(run_recipe, resume, stop_signals)
        except StoppedBeforeTraining:
            stop_signals.request_stop = lambda: None  # another SIGTERM changes nothing
            if is_main_process():
                print("stopped before the first step; the same command starts or resumes the run")


def is_main_process() -> bool:
    """Return whether this process is the only one, or torchrun's rank 0."""
    return os.environ.get("RANK", "0") == "0"


def check_files(recipe: Recipe, path: Path) -> None:
    """Raise ValueError if a data file or the model of a run is missing.

    A recipe of the package says where they come from."""
    model = recipe.model.load
    try:
        for paths in (recipe.data.train, recipe.data.validation):
            if not isinstance(paths, float):
                for file in recipe.data.open_corpus(paths).list_files():
                    check_can_be_read_again(Path(file))
        if model is not None and model.startswith("runs/") and not Path(model).exists():
            raise ValueError(f"model.load {model}: no such folder")
    except ValueError as error:
        about = read_about(path)
        hint = f"; this recipe needs {about.data}" if about else ""
        raise ValueError(f"{error}{hint}") from None


def check_can_be_read_again(path: Path) -> None:
    """Raise ValueError for a pipe or device, which training cannot read several times."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ValueError(
            f"{path}: a pipe or device; expected a file; a pipe can be standard input, -"
        )


def run_training(recipe: Recipe, resume: str | None, stop_signals: StopSignals) -> None:
    """Train: print a summary, show the progress panel, print the result."""
    from rich.text import Text

    from qkv.train.evaluate.evaluation_loop import ignore_progress
    from qkv.train.evaluate.target_generator import TargetGenerator
    from qkv.train.report.console import show_progress
    from qkv.train.report.history import MetricsHistory
    from qkv.train.run import train_recipe
    from qkv.train.signals import TrainingInterrupted

    screen = make_console()
    start_time = time.monotonic()
    interrupted = False
    report_callbacks: list[ReportCallback] = []  # set when training starts
    evaluations: list[Report] = []
    with ExitStack() as stack:
        reading = stack.enter_context(ExitStack())
        progress: ProgressReporter = ignore_progress
        if is_main_process():
            progress = reading.enter_context(
                show_progress_bar(f"reading {format_paths(recipe.data.train)}")
            )

        def start_panel(prepared: Setup, state: TrainerState) -> None:
            nonlocal recipe
            reading.close()
            print_rich(build_run_summary(recipe, prepared, state))
            recipe = prepared.recipe  # with the number of steps, if it has epochs
            training_progress = build_training_progress(recipe, prepared, state)
            report_callbacks.append(stack.enter_context(show_progress(training_progress, screen)))

        try:
            state = train_recipe(
                recipe,
                resume=resume is not None,
                accept_changes=resume == "changed",
                callbacks=[
                    lambda report: report_callbacks[0](report),
                    lambda report: evaluations.append(report) if report.phase == "eval" else None,
                ],
                on_start=start_panel,
                generator=TargetGenerator({"num_beams": recipe.train.eval_num_beams}),
                progress=progress,
                stop_signals=stop_signals,
            )
        except TrainingInterrupted as interruption:
            (state,) = interruption.args
            interrupted = True
        except (MemoryError, RuntimeError) as error:
            if not is_memory_error(error):
                raise
            hint = (
                "use a smaller data.batch_size or data.batch_tokens, or a larger train.grad_accum"
            )
            raise ValueError(f"device {recipe.device}: out of memory; {hint}") from None
    if is_main_process():
        seconds = time.monotonic() - start_time
        if is_stopped(recipe.train, state):
            steps = f"step {state.step:,} of {recipe.train.total_steps:,}"
            print_rich(Text(f"stopped at {steps}; continue with --resume auto"))
        print_rich(build_run_result(recipe, state, MetricsHistory.read(Path(recipe.run)), seconds))
        if evaluations:
            print_class_report(evaluations[-1].class_report)
    if interrupted:
        raise KeyboardInterrupt


def format_paths(paths: str | list[str]) -> str:
    return paths if isinstance(paths, str) else ", ".join(paths)


def format_corpus_size(num_documents: int, num_tokens: int) -> str:
    size = f"{num_documents:,} document{'s' * (num_documents != 1)}"
    return f"{size}, {format_count(num_tokens)} tokens" if num_tokens else size


def build_training_progress(
    recipe: Recipe, prepared: Setup, state: TrainerState
) -> TrainingProgress:
    """Return the state of the progress panel; peak FLOP/s are measured on first use."""
    from qkv.train.distributed import get_world_size
    from qkv.train.loop.trainer import AUTOCAST_DTYPES
    from qkv.train.report.console import TrainingProgress
    from qkv.train.report.history import MetricsHistory
    from qkv.train.report.throughput import estimate_flops_per_token, measure_peak_flops

    folder = Path(recipe.run)
    device = prepared.model.device
    dtype = AUTOCAST_DTYPES[recipe.train.precision]
    return TrainingProgress(
        title=str(folder),
        train_config=recipe.train,
        flops_per_token=estimate_flops_per_token(prepared.model.net),
        step=state.step,
        state=state,
        measure_peak_flops=lambda: get_world_size() * measure_peak_flops(device, dtype),
        history=MetricsHistory.read(folder),
    )


def build_run_summary(recipe: Recipe, prepared: Setup, state: TrainerState) -> Table:
    """Build the table of model, data, objective, device and steps."""
    from qkv.data.store.shards import ShardIndex
    from qkv.train.distributed import get_world_size
    from qkv.train.evaluate.evaluate_model import count_text_tokens

    parameters = list(prepared.model.net.parameters())
    num_parameters = sum(p.numel() for p in parameters)
    num_trainable = sum(p.numel() for p in parameters if p.requires_grad)
    model = f"{prepared.model.family.name}, {num_parameters:,} parameters"
    if num_trainable < num_parameters:
        model += f", {num_trainable:,} trainable"
    data = format_paths(recipe.data.train)
    index = ShardIndex.read(Path(recipe.run) / "data" / "train")
    if index:
        data += f", {format_corpus_size(index.num_documents, count_text_tokens(index))}"
    device = f"{prepared.model.device}, {recipe.train.precision}"
    if get_world_size() > 1:
        device += f", {get_world_size()} processes"
    steps = f"{prepared.recipe.train.total_steps:,}"
    if recipe.train.epochs:
        steps += f" in {recipe.train.epochs:,} epoch{'s' * (recipe.train.epochs != 1)}"
    if state.step:
        steps += f", resumed after {state.step:,}"
    facts = {} if prepared.embeddings is None else {"embeddings": str(prepared.embeddings)}
    return build_facts_table(
        model=model, **facts, data=data, objective=recipe.objective.name, device=device, steps=steps
    )


def is_stopped(config: TrainConfig, state: TrainerState) -> bool:
    """Return whether a signal ended the run, and not its last step or early stopping."""
    stopped_early = 0 < config.patience <= state.evals_since_best
    return state.step < config.total_steps and not stopped_early


def build_run_result(
    recipe: Recipe, state: TrainerState, history: MetricsHistory, seconds: float
) -> Table:
    """Build the table of steps done or time, best metric and saved models."""
    folder = Path(recipe.run)
    config = recipe.train
    metric = config.best_metric
    best: Report | None = history.find_best(metric, higher_is_better=config.maximizes_metric)
    facts = {"time": format_duration(seconds)}
    if not is_stopped(config, state):
        done = f"{state.step:,} of {config.total_steps:,} steps in {format_duration(seconds)}"
        if state.step > config.total_steps:
            done = f"{state.step:,} steps, more than the {config.total_steps:,} of the recipe"
        elif state.step < config.total_steps:
            done += f", early stopping on {metric}"
        facts = {"done": done}
    if best is not None:
        facts["best"] = (
            f"{folder / 'best'}, {metric} {best.metrics[metric]:.4g} at step {best.step:,}"
        )
    return build_facts_table(**facts, last=str(folder / "last"), curve=str(folder / "loss.svg"))


def eval(
    model: str,
    /,
    *overrides: RecipeOverride,
    data: Annotated[list[str] | None, Parameter(negative="")] = None,
    search: EvalOptions = DEFAULT_EVAL,
    lowercase: BoolFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Evaluate a model, or the best model of a run, on labeled data.

    qkv eval builtin:classify --data reviews.csv

    Parameters
    ----------
    model
        folder, hub id or builtin: name of a model; or folder of a run
    overrides
        settings of a recipe, which override those of the run: --data.columns.text review
    data
        file to evaluate on; of a run, the default is data.test of its recipe
    lowercase
        also compute lowercased BLEU
    as_json
        print JSON
    """
    from qkv.train.evaluate.evaluate_model import evaluate_checkpoint
    from qkv.train.evaluate.evaluate_run import evaluate_run
    from qkv.train.evaluate.target_generator import TargetGenerator

    is_run = (Path(model) / "recipe.toml").exists()
    has_test = any(flag.split("=")[0] == "--data.test" for flag in overrides)
    if data is None and not is_run and not has_test:
        has_parent_run = (Path(model).parent / "recipe.toml").exists()
        hint = f", or evaluate the run {Path(model).parent}" if has_parent_run else ""
        raise ValueError(f"{model}: no data to evaluate on; set --data FILE{hint}")
    if data is not None:
        paths = data[0] if len(data) == 1 else data
        overrides = (*overrides, f"--data.test={json.dumps(paths, ensure_ascii=False)}")
    generator = TargetGenerator(search.settings)
    with show_progress_bar(f"reading {model}") as progress:
        evaluate_files = evaluate_run if is_run else evaluate_checkpoint
        result = evaluate_files(model, overrides, generator, lowercase=lowercase, progress=progress)
    if as_json:
        print(json.dumps(asdict(result)))
        return
    corpus_size = format_corpus_size(result.num_records, result.num_tokens)
    facts = {
        "checkpoint": str(result.checkpoint),
        "data": f"{format_paths(result.data or [])}, {corpus_size}",
    }
    facts |= {name.replace("_", " "): f"{value:.4g}" for name, value in result.metrics.items()}
    if result.settings:
        facts["settings"] = ", ".join(f"{name} {value}" for name, value in result.settings.items())
    facts |= {f"{name.replace('_', ' ')} is": text for name, text in result.signatures.items()}
    print_rich(build_facts_table(**facts))
    print_class_report(result)


def print_class_report(report: ClassReport | EvaluationReport) -> None:
    """Print the scores of every class and the confusion matrix, if there are classes."""
    from qkv.train.report.tables import format_evaluation

    if report.class_scores:
        print(f"\n{format_evaluation({}, report.class_scores, report.confusion_matrix)}")


def build_facts_table(**facts: str) -> Table:
    """Build a table of names and values."""
    from rich.table import Column, Table

    table = Table.grid(
        "", Column(overflow="fold"), padding=(0, 2)
    )  # a path or signature is one long word
    for name, fact in facts.items():
        table.add_row(name, fact)
    return table
