"""Run: a recipe becomes a folder with a trained model in it.

runs/name/
  recipe.toml        every setting, written out
  tokenizer/         the one that the data was encoded with
  data/              token shards
  checkpoints/       from which the run goes on
  metrics.jsonl      a line for every report        loss.svg    the curve
  best/  last/       models, or adapters, as `qkv.load` opens them
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

from qkv.data.store.shards import Index
from qkv.train import stdin
from qkv.train.distributed import joined
from qkv.train.evaluate.generation import Writer
from qkv.train.evaluate.validation import Tell, silent
from qkv.train.loop.trainer import Report, State, Trainer
from qkv.train.recipe import Recipe, parse_recipe, read_recipe, several, to_toml
from qkv.train.report.history import METRICS
from qkv.train.report.plot import draw, drawer
from qkv.train.report.tensorboard import board
from qkv.train.setup import Prepared as Prepared
from qkv.train.setup import prepared
from qkv.train.setup_model import corpus, taught_by_others

FREE = ("device", "learn.parallel", "learn.save", "learn.log", "learn.keep")  # may differ when a run goes on
RECIPE = "recipe.toml"
ECHO = 0.5  # seconds; torchrun passes a Ctrl-C on to processes that have heard it themselves


class Interrupted(KeyboardInterrupt):
    """Ctrl-C came, and all was saved: where the run stands is its argument."""


def train(
    recipe: Recipe, *, resume: bool = False, accept: bool = False,
    callbacks: Sequence[Callable[[Report], None]] = (),
    begun: Callable[[Prepared, State], None] = lambda made, state: None,
    writer: Writer | None = None, tell: Tell = silent,
) -> State:  # fmt: skip
    """Trains as the recipe says, in its folder; goes on where it was stopped, if asked to.

    Of several processes, each of which calls this, the first prepares the data, writes and tells.
    `begun` is told what it is made of and where it stands, right before the first step; until then `tell` is
    told how far it is. `writer` decodes, where `learn.write` asks for it. After Ctrl-C the step is done, all
    is saved, and `Interrupted` raised; a second one does not wait for that."""
    folder, given = Path(recipe.run), recipe
    recipe = stdin.from_file(given)

    def prepare() -> Prepared:
        if team.first:
            lock.enter_context(owned(folder))
            begin(folder, recipe, resume=resume, accept=accept)
            if not holds_run(folder):
                if recipe != given and not (resume and stdin.held(folder)):
                    stdin.read(folder)
                if taught_by_others(recipe, folder):
                    shutil.rmtree(folder / "tokenizer")
        return prepared(recipe, folder, writer, tell if team.first else silent)

    with joined(recipe.device) as team, ExitStack() as lock:
        made = team.prepare(prepare)
        trainer = Trainer(
            net=made.net, feed=made.feed, objective=made.objective, learn=recipe.learn, folder=folder,
            callbacks=(recorder(folder), drawer(folder), board(folder), *callbacks),
            save_best=made.save, team=team, workers=recipe.data.workers,
        )  # fmt: skip
        if made.trial is not None:
            trainer.evaluate = made.trial.measure(made.model, recipe.learn, writer, trainer.spread)
        if resume and not trainer.restore() and team.first and holds_run(folder):
            warnings.warn(f"{folder}: no checkpoint to go on from; the run begins anew", stacklevel=2)
            (folder / METRICS).unlink(missing_ok=True)
        if team.first:
            (folder / RECIPE).write_text(to_toml(recipe), encoding="utf-8")
            begun(made, trainer.state)
        with stoppable(trainer) as interrupts:
            try:
                state = trainer.run()
            finally:
                if team.first:
                    with suppress(OSError):  # a full disk: what stopped the run is to be told
                        draw(folder)
            with trainer.settled():
                trainer.write(made.save, folder / "last")
    if interrupts:
        raise Interrupted(state)
    return state


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """The folder of a run belongs to one process at a time."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ValueError(f"{folder}: {error.strerror}; expected a folder that can be written to") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        other = os.read(handle, 20).decode(errors="replace").strip() or "unknown"
        os.close(handle)
        raise ValueError(
            f"{folder}: in use by another process ({other}); wait for it, or choose another --run"
        ) from None
    os.ftruncate(handle, 0)
    os.write(handle, f"{os.getpid()}\n".encode())
    try:
        yield
    finally:
        os.close(handle)


def begin(folder: Path, recipe: Recipe, *, resume: bool, accept: bool) -> None:
    """Writes the recipe of a new run down, or sees that it is still the one the run began with."""
    path, text = folder / RECIPE, to_toml(recipe)
    if not path.exists() or not holds_run(folder):
        if path.exists() and path.read_text(encoding="utf-8") != text:  # it never came to the first step
            shutil.rmtree(folder / "tokenizer", ignore_errors=True)
        path.write_text(text, encoding="utf-8")
        return
    if not resume:
        raise ValueError(
            f"{folder}: holds a run already; --resume auto goes on with it, --run names another folder"
        )
    changed = differences(read_recipe(path).as_dict(), parse_recipe(text, path).as_dict())
    if changed and not accept:
        raise ValueError(
            f"{folder}: the recipe is not what it was: {'; '.join(changed)}; --resume changed goes on so"
        )
    if not accept and (other := changed_data(folder, recipe)):
        raise ValueError(
            f"{folder}: the data is not what it was: {', '.join(other)} (size or time); "
            "--resume changed goes on with it"
        )
    if text_changes := [each for each in changed if each.startswith("text.")]:
        raise ValueError(
            f"{folder}: {'; '.join(text_changes)}: the run has a tokenizer, which it learnt with and keeps; "
            "--run names another folder, for a new one"
        )


def changed_data(folder: Path, recipe: Recipe) -> list[str]:
    """Files that are not those which the shards of a run were made of."""
    found = []
    for name, path in (("train", recipe.data.train), ("valid", recipe.data.valid)):
        held = Index.read(folder / "data" / name)
        if held is None or isinstance(path, float):
            continue
        if held.made_from.get("corpus") != corpus(recipe, path).fingerprint():
            found += several(path)
    return found


def holds_run(folder: Path) -> bool:
    """Whether a run came to its first report there."""
    return any((folder / name).exists() for name in (METRICS, "checkpoints"))


def differences(old: dict[str, Any], new: dict[str, Any], path: str = "") -> list[str]:
    """What changed, one `name: old -> new` each. More steps are no change."""
    found = []
    for name in sorted({*old, *new}):
        a, b = old.get(name), new.get(name)
        longer = f"{path}{name}" == "learn.steps" and new[name] > old[name]
        if isinstance(a, dict) and isinstance(b, dict):
            found += differences(a, b, f"{path}{name}.")
        elif a != b and f"{path}{name}" not in FREE and not longer:
            found.append(f"{path}{name}: {a!r} -> {b!r}")
    return found


@contextmanager
def stoppable(trainer: Trainer) -> Iterator[list[float]]:
    """SIGTERM and Ctrl-C ask the trainer to save and leave. Gives the times of the latter, as they come."""
    interrupts: list[float] = []

    def ask(*_: object) -> None:
        trainer.stop = True

    def interrupt(*_: object) -> None:
        trainer.stop = True
        interrupts.append(time.monotonic())
        if interrupts[-1] - interrupts[0] > ECHO:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # which alone hears signals
        yield interrupts
        return
    before = signal.signal(signal.SIGTERM, ask), signal.signal(signal.SIGINT, interrupt)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGINT, before[1])


def recorder(folder: Path) -> Callable[[Report], None]:
    """Writes every report as a line of metrics.jsonl."""

    def record(report: Report) -> None:
        with (folder / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(report)) + "\n")

    return record
