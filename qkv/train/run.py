"""Training runs: train the model of a recipe in a run folder.

runs/name/
  .qkv-run           marks a folder that a run may write to
  recipe.toml        all settings, including defaults
  tokenizer/         the tokenizer that encoded the data
  data/              token shards
  checkpoints/       full training state, to resume from
  metrics.jsonl      one line per report            loss.svg    the loss curve
  tensorboard/       the same metrics as events, if TensorBoard is installed
  best/  last/       models, or adapters, for `qkv.load`
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qkv.data.store.shards import ShardIndex
from qkv.train import stdin
from qkv.train.distributed import init_distributed
from qkv.train.evaluate.evaluation_loop import ProgressReporter, ignore_progress
from qkv.train.evaluate.generation import TextGenerator
from qkv.train.initial_model import is_tokenizer_stale
from qkv.train.loop.trainer import Report, TrainerState
from qkv.train.objectives.registry import find_data_columns
from qkv.train.recipe import Recipe, as_list, format_recipe, parse_recipe, read_recipe
from qkv.train.report.history import METRICS_FILE
from qkv.train.report.plot import make_plot_callback, write_loss_plot
from qkv.train.report.tensorboard import make_tensorboard_callback
from qkv.train.run_folder import (
    MARK_FILE,
    RECIPE_FILE,
    contains_run,
    discard_tokenizer,
    lock_run_folder,
    read_recipe_text,
    remove_failed_start,
    write_recipe,
)
from qkv.train.setup import Setup, prepare_training
from qkv.train.signals import StopSignals, TrainingInterrupted, handle_stop_signals

CHANGEABLE_KEYS = (  # settings that may differ when a run is resumed
    "device",
    "train.parallelism",
    "train.save_every",
    "train.log_every",
    "train.keep_checkpoints",
)
EXTENDABLE_KEYS = ("train.steps", "train.epochs")  # settings that may increase


def train_recipe(
    recipe: Recipe, *, resume: bool = False, accept_changes: bool = False,
    callbacks: Sequence[Callable[[Report], None]] = (),
    on_start: Callable[[Setup, TrainerState], None] = lambda setup, state: None,
    generator: TextGenerator | None = None, progress: ProgressReporter = ignore_progress,
    stop_signals: StopSignals | None = None,
) -> TrainerState:  # fmt: skip
    """Train the model of a recipe in its run folder, or resume the run in the folder.

    With several processes, all of which call this, the main process prepares the data, writes files
    and reports. `progress` is called during preparation, `on_start` right before the first step.
    `generator` decodes for `train.eval_generate`. SIGTERM finishes the step and saves everything;
    before the first step, it raises `StoppedBeforeTraining`. Ctrl-C finishes the step, saves everything
    and raises `TrainingInterrupted`; a second Ctrl-C stops immediately. `stop_signals` are those of a
    surrounding `handle_stop_signals`."""
    folder = Path(recipe.run)
    original_recipe = recipe
    recipe = stdin.replace_stdin(original_recipe)
    has_stdin = recipe != original_recipe

    def prepare() -> Setup:
        nonlocal recipe
        if not has_stdin:
            recipe = find_data_columns(recipe, recipe.data.train)
        if distributed.is_main_process:
            lock.enter_context(lock_run_folder(folder, resume=resume))
            if contains_run(folder):
                check_recipe(folder, recipe, accept_changes=accept_changes)
            else:
                start_run(folder, recipe, save_stdin=has_stdin, resume=resume)
        return prepare_training(
            recipe, folder, generator, progress if distributed.is_main_process else ignore_progress
        )

    with (
        handle_stop_signals(stop_signals) as signals,
        init_distributed(recipe.device) as distributed,
        ExitStack() as lock,
    ):
        with remove_failed_start(folder):
            setup = distributed.run_main_process_first(prepare)
            trainer = setup.build_trainer(
                distributed=distributed,
                folder=folder,
                callbacks=(
                    make_metrics_callback(folder),
                    make_plot_callback(folder),
                    make_tensorboard_callback(folder),
                    *callbacks,
                ),
                generator=generator,
            )
            if (
                resume
                and not trainer.restore_checkpoint()
                and distributed.is_main_process
                and contains_run(folder)
            ):
                warnings.warn(
                    f"{folder}: no checkpoint to resume from; training starts from the beginning",
                    stacklevel=2,
                )
                (folder / METRICS_FILE).unlink(missing_ok=True)
            if distributed.is_main_process:
                write_recipe(folder, format_recipe(recipe))
                on_start(setup, trainer.state)
        signals.start(trainer.request_stop)
        with report_missing_folder(folder):
            try:
                state = trainer.train()
            finally:
                if distributed.is_main_process:
                    # An error of a full disk must not replace the error that stopped training.
                    with suppress(OSError):
                        write_loss_plot(folder)
            with trainer.use_final_weights():
                trainer.write_model(setup.save_model, folder / "last")
    if signals.interrupts:
        raise TrainingInterrupted(state)
    return state


@contextmanager
def report_missing_folder(folder: Path) -> Iterator[None]:
    """Convert an error in the block to one about the run folder, if it was removed or moved."""
    try:
        yield
    except (OSError, ValueError) as error:
        if (folder / MARK_FILE).exists():
            raise
        raise ValueError(
            f"{folder}: the run folder was removed or moved during training; {error}"
        ) from None


def start_run(folder: Path, recipe: Recipe, *, save_stdin: bool, resume: bool) -> None:
    """Write the recipe of a run that has not started; discard what another recipe or other data left."""
    text = format_recipe(recipe)
    if read_recipe_text(folder) != text:
        discard_tokenizer(folder)  # before the recipe is replaced, which would hide the difference
        write_recipe(folder, text)
    if save_stdin and not (resume and stdin.has_saved_stdin(folder)):
        stdin.save_stdin(folder)
    if is_tokenizer_stale(recipe, folder):
        discard_tokenizer(folder)


def check_recipe(folder: Path, recipe: Recipe, *, accept_changes: bool) -> None:
    """Check that a recipe matches that of the run to resume."""
    path = folder / RECIPE_FILE
    try:
        old_recipe = read_recipe(path)
    except ValueError as error:
        if accept_changes:
            return
        raise ValueError(f"{error}; --resume changed accepts the recipe of this command") from None
    text = format_recipe(recipe)
    changes = diff_settings(old_recipe.to_dict(), parse_recipe(text, path).to_dict())
    if changes and not accept_changes:
        raise ValueError(
            f"{folder}: the recipe has changed: {'; '.join(changes)}; --resume changed accepts this"
        )
    if not accept_changes and (changed_files := find_changed_files(folder, recipe)):
        raise ValueError(
            f"{folder}: the data has changed: {', '.join(changed_files)} (size or time); "
            "--resume changed accepts this"
        )
    tokenizers = ("tokenizer", "image_tokenizer")
    if tokenizer_changes := [change for change in changes if change.startswith(tokenizers)]:
        raise ValueError(
            f"{folder}: {'; '.join(tokenizer_changes)}: the tokenizer of a run cannot change; "
            "start a new run in another folder with --run"
        )


def find_changed_files(folder: Path, recipe: Recipe) -> list[str]:
    """Return the data files that differ from those that the run's shards were built from."""
    changed = []
    for name, path in (("train", recipe.data.train), ("validation", recipe.data.validation)):
        index = ShardIndex.read(folder / "data" / name)
        if index is None or isinstance(path, float):
            continue
        if index.provenance.get("corpus") != recipe.data.open_corpus(path).fingerprint():
            changed += as_list(path)
    return changed


def diff_settings(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """Return the changed settings, each as `name: old -> new`; more steps or epochs are allowed."""
    changes = []
    for name in sorted({*old, *new}):
        old_value = old.get(name)
        new_value = new.get(name)
        key = f"{prefix}{name}"
        is_extension = key in EXTENDABLE_KEYS and old_value and new_value and new_value > old_value
        if isinstance(old_value, dict) and isinstance(new_value, dict):
            changes += diff_settings(old_value, new_value, f"{key}.")
        elif old_value != new_value and key not in CHANGEABLE_KEYS and not is_extension:
            changes.append(f"{key}: {old_value!r} -> {new_value!r}")
    return changes


def make_metrics_callback(folder: Path) -> Callable[[Report], None]:
    """Return a callback that appends every report to metrics.jsonl."""

    def write_report(report: Report) -> None:
        line = {name: value for name, value in asdict(report).items() if name != "class_report"}
        with (folder / METRICS_FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")  # one write; `remove_leftovers` cuts a torn line

    return write_report
