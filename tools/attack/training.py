"""Attacks on training runs: kills and I/O errors, after which the same command resumes the run.

The run must go on, its models must be readable, and at the end it must be equal to a run without faults."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from functools import partial
from itertools import cycle
from pathlib import Path

from tools import small_data
from tools.attack.case import Case
from tools.attack.training_kills import (
    Kill,
    TrainingRun,
    draw_kill,
    record_images,
    resume_image,
)

TIMEOUT = 120.0
SETTINGS = (  # few file events: one checkpoint at a time
    "--train.steps 2 --train.warmup_steps 0 --train.log_every 1 --train.save_every 1"
    " --train.keep_checkpoints 1 --data.validation 0.1 --device cpu"
).split()
ERRORS = ("ENOSPC", "EIO", "EROFS", "EACCES")
MAX_ERRORS = 40  # of an objective, before the next one


def attack_training_at_random(folder: Path, rng: random.Random) -> Iterator[Case]:
    """A training run of each objective, killed one to four times at random times and file events."""
    runs: dict[str, TrainingRun] = {}
    for name in cycle(shuffle_names(rng)):
        if name not in runs:
            runs[name] = TrainingRun(name, folder / name)
        case_rng = random.Random(rng.getrandbits(64))
        run_case = partial(run_random_kills, runs[name], case_rng)
        yield Case(name=f"{name}, killed at random", run=run_case, timeout=TIMEOUT)


def attack_training_at_events(folder: Path, rng: random.Random) -> Iterator[Case]:
    """A short training run of each objective, killed before and in each of its file events."""
    for name in shuffle_names(rng):
        run = TrainingRun(name, folder / name, settings=list(SETTINGS))
        images = record_images(run)
        rng.shuffle(images)
        for image in images:
            run_case = partial(run_image, run, image)
            yield Case(name=f"{name}, killed: {image.name}", run=run_case, timeout=TIMEOUT)
        shutil.rmtree(run.home)


def attack_training_with_errors(folder: Path, rng: random.Random) -> Iterator[Case]:
    """A training run of each objective with an I/O error at one of its file events."""
    for name in shuffle_names(rng):
        run = TrainingRun(name, folder / name, settings=list(SETTINGS))
        errors = [
            Kill(event, error=error, lasting=lasting)
            for event in range(len(run.events))
            for error in ERRORS
            for lasting in (False, True)
        ]
        for error in rng.sample(errors, MAX_ERRORS):
            description = f"{name}, {error}: {run.events[error.event]}"
            yield Case(name=description, run=partial(run_kills, run, [error]), timeout=TIMEOUT)
        shutil.rmtree(run.home)


def shuffle_names(rng: random.Random) -> list[str]:
    """Return the names of the small recipes, one or more per objective, in random order."""
    return rng.sample([*small_data.WRITERS], len(small_data.WRITERS))


def run_random_kills(run: TrainingRun, rng: random.Random, folder: Path) -> str | None:
    """Kill a run one to four times; the times depend on the duration of the run."""
    return run_kills(run, [draw_kill(run, rng) for _ in range(rng.choice([1, 1, 2, 4]))], folder)


def run_kills(run: TrainingRun, kills: list[Kill], folder: Path) -> str | None:
    """Kill a run; keep its folder if something is wrong."""
    print(f"{run.name}: {', '.join(map(str, kills))}")
    return keep_run(run, run.find_problem(kills), folder)


def run_image(run: TrainingRun, image: Path, folder: Path) -> str | None:
    """Resume a run from an image; keep the image if something is wrong."""
    problem = resume_image(run, image)
    if problem is not None:
        shutil.copytree(image, folder / "image")
    return keep_run(run, problem, folder)


def keep_run(run: TrainingRun, problem: str | None, folder: Path) -> str | None:
    """Copy the run to the folder of the case if there is a problem; return the problem."""
    if problem is not None and run.folder.exists():
        shutil.copytree(run.folder, folder / "run")
    return problem
