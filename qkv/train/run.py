"""Training runs: train the model of a recipe in a run folder.

runs/name/
  recipe.toml        all settings, including defaults
  tokenizer/         the tokenizer that encoded the data
  data/              token shards
  checkpoints/       full training state, to resume from
  metrics.jsonl      one line per report            loss.svg    the loss curve
  tensorboard/       the same metrics as events, if TensorBoard is installed
  best/  last/       models, or adapters, for `qkv.load`
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import threading
import time
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
from qkv.train.loop.trainer import Report, Trainer, TrainerState
from qkv.train.objectives.registry import find_data_columns
from qkv.train.recipe import Recipe, as_list, format_recipe, parse_recipe, read_recipe
from qkv.train.report.history import METRICS_FILE
from qkv.train.report.plot import make_plot_callback, write_loss_plot
from qkv.train.report.tensorboard import make_tensorboard_callback
from qkv.train.setup import Setup, prepare_training

CHANGEABLE_KEYS = (  # settings that may differ when a run is resumed
    "device",
    "train.parallelism",
    "train.save_every",
    "train.log_every",
    "train.keep_checkpoints",
)
EXTENDABLE_KEYS = ("train.steps", "train.epochs")  # settings that may increase
RECIPE_FILE = "recipe.toml"
LOCK_FILE = "lock"  # contains the id of the process that uses the folder
SIGNAL_ECHO_SECONDS = 0.5  # torchrun forwards Ctrl-C to processes that have already received it


class TrainingInterrupted(KeyboardInterrupt):
    """Training stopped by Ctrl-C after everything was saved; its argument is the trainer state."""


def train_recipe(
    recipe: Recipe, *, resume: bool = False, accept_changes: bool = False,
    callbacks: Sequence[Callable[[Report], None]] = (),
    on_start: Callable[[Setup, TrainerState], None] = lambda setup, state: None,
    generator: TextGenerator | None = None, progress: ProgressReporter = ignore_progress,
) -> TrainerState:  # fmt: skip
    """Train the model of a recipe in its run folder, or resume the run in the folder.

    With several processes, all of which call this, the main process prepares the data, writes files
    and reports. `progress` is called during preparation, `on_start` right before the first step.
    `generator` decodes for `train.eval_generate`. Ctrl-C finishes the step, saves everything and
    raises `TrainingInterrupted`; a second Ctrl-C stops immediately."""
    folder = Path(recipe.run)
    original_recipe = recipe
    recipe = stdin.replace_stdin(original_recipe)
    has_stdin = recipe != original_recipe

    def prepare() -> Setup:
        nonlocal recipe
        if not has_stdin:
            recipe = find_data_columns(recipe, recipe.data.train)
        if distributed.is_main_process:
            lock.enter_context(lock_run_folder(folder))
            write_or_check_recipe(folder, recipe, resume=resume, accept_changes=accept_changes)
            if not contains_run(folder):
                if has_stdin and not (resume and stdin.has_saved_stdin(folder)):
                    stdin.save_stdin(folder)
                if is_tokenizer_stale(recipe, folder):
                    shutil.rmtree(folder / "tokenizer")
        return prepare_training(
            recipe, folder, generator, progress if distributed.is_main_process else ignore_progress
        )

    with init_distributed(recipe.device) as distributed, ExitStack() as lock:
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
                (folder / RECIPE_FILE).write_text(format_recipe(recipe), encoding="utf-8")
                on_start(setup, trainer.state)
        with stop_on_signals(trainer) as interrupts:
            try:
                state = trainer.train()
            finally:
                if distributed.is_main_process:
                    with suppress(
                        OSError
                    ):  # an error of a full disk must not replace the error that stopped training
                        write_loss_plot(folder)
            with trainer.use_final_weights():
                trainer.write_model(setup.save_model, folder / "last")
    if interrupts:
        raise TrainingInterrupted(state)
    return state


@contextmanager
def lock_run_folder(folder: Path) -> Iterator[None]:
    """Lock the run folder, which only one process may use at a time."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ValueError(f"{folder}: {error.strerror}; expected a writable folder") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner_pid = os.read(handle, 20).decode(errors="replace").strip() or "unknown"
        os.close(handle)
        raise ValueError(
            f"{folder}: in use by another process ({owner_pid}); wait for it, or choose another --run"
        ) from None
    os.ftruncate(handle, 0)
    os.write(handle, f"{os.getpid()}\n".encode())
    try:
        yield
    finally:
        os.close(handle)


@contextmanager
def remove_failed_start(folder: Path) -> Iterator[None]:
    """After an error in the block, remove the run folder if this process created or filled it."""
    was_empty = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    new_folders = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        yield
    except Exception:  # Ctrl-C keeps the data that is encoded
        lock_file = folder / LOCK_FILE
        if was_empty and lock_file.is_file() and lock_file.read_text().strip() == str(os.getpid()):
            for path in folder.iterdir():
                path.unlink() if path.is_file() else shutil.rmtree(path)
            for path in new_folders:
                with suppress(OSError):  # others have written into it
                    path.rmdir()
        raise


def write_or_check_recipe(
    folder: Path, recipe: Recipe, *, resume: bool, accept_changes: bool
) -> None:
    """Write the recipe of a new run, or check that it matches the recipe of the run to resume."""
    path = folder / RECIPE_FILE
    text = format_recipe(recipe)
    if not path.exists() or not contains_run(folder):
        if (
            path.exists() and path.read_text(encoding="utf-8") != text
        ):  # it stopped before the first step
            shutil.rmtree(folder / "tokenizer", ignore_errors=True)
        path.write_text(text, encoding="utf-8")
        return
    if not resume:
        raise ValueError(
            f"{folder}: already contains a run; --resume auto resumes it, --run sets another folder"
        )
    changes = diff_settings(read_recipe(path).to_dict(), parse_recipe(text, path).to_dict())
    if changes and not accept_changes:
        raise ValueError(
            f"{folder}: the recipe has changed: {'; '.join(changes)}; --resume changed accepts this"
        )
    if not accept_changes and (changed_files := find_changed_files(folder, recipe)):
        raise ValueError(
            f"{folder}: the data has changed: {', '.join(changed_files)} (size or time); "
            "--resume changed accepts this"
        )
    if tokenizer_changes := [change for change in changes if change.startswith("tokenizer.")]:
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


def contains_run(folder: Path) -> bool:
    """Return whether the folder contains a run that reached its first report."""
    return any((folder / name).exists() for name in (METRICS_FILE, "checkpoints"))


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


@contextmanager
def stop_on_signals(trainer: Trainer) -> Iterator[list[float]]:
    """Stop the trainer after the current step on SIGTERM or Ctrl-C; yield the times of each Ctrl-C."""
    interrupts: list[float] = []

    def on_sigterm(*_: object) -> None:
        trainer.should_stop = True

    def on_sigint(*_: object) -> None:
        trainer.should_stop = True
        interrupts.append(time.monotonic())
        if interrupts[-1] - interrupts[0] > SIGNAL_ECHO_SECONDS:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # only it can receive signals
        yield interrupts
        return
    old_sigterm = signal.signal(signal.SIGTERM, on_sigterm)
    old_sigint = signal.signal(signal.SIGINT, on_sigint)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGTERM, old_sigterm)
        signal.signal(signal.SIGINT, old_sigint)


def make_metrics_callback(folder: Path) -> Callable[[Report], None]:
    """Return a callback that appends every report to metrics.jsonl."""

    def write_report(report: Report) -> None:
        line = {name: value for name, value in asdict(report).items() if name != "class_report"}
        with (folder / METRICS_FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    return write_report
