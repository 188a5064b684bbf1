"""Kills of saves and of commands that write a model, and saves of several processes into one folder.

A killed save leaves the old model or the new one; the next one succeeds and removes what the kill left.
With several savers, every save succeeds, and a reader always finds a model of one of them."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path

import qkv.cli
from tools.attack.case import Case
from tools.attack.file_events import KILL, fork, run_with_fault
from tools.attack.saved_model import (
    KILLED,
    NOTHING,
    SAVES,
    SavedModels,
    describe_folder,
    is_temporary,
    list_files,
    restore_folder,
)

# Commands that write a new folder `out` from the folder `model`.
COMMANDS = {
    "export": ["export", "model", "out"],
    "export int8": ["export", "model", "out", "--quantization", "int8"],
    "export bin": ["export", "model", "out", "--weights-format", "bin"],
    "export ctranslate2": ["export", "model", "out", "--to", "ctranslate2"],
    "tokenizer train": "tokenizer train texts.txt --out out --type bpe --vocab-size 80".split(),
}


def attack_save_at_events(folder: Path, rng: random.Random) -> Iterator[Case]:
    """A save killed before each of its file events, over nothing and over other models."""
    models = SavedModels(folder)
    places = []
    for way in SAVES:
        for old_way in models.old:
            target = folder / "recorded" / "model"
            target.parent.mkdir(exist_ok=True)
            restore_folder(target, models.old[old_way])
            events = run_with_fault(
                partial(SAVES[way], models.model, target), target.parent, -1
            ).names
            places += [(way, old_way, event, name) for event, name in enumerate(events)]
    rng.shuffle(places)
    for way, old_way, event, name in places:
        run = partial(kill_at_event, models, way, old_way, event)
        yield Case(name=f"a save ({way}) over {old_way}, killed before {name}", run=run)


def kill_at_event(
    models: SavedModels, way: str, old_way: str, event: int, folder: Path
) -> str | None:
    target = folder / "model"
    restore_folder(target, models.old[old_way])
    ending = run_with_fault(partial(SAVES[way], models.model, target), folder, event, KILL)
    if ending.signal != signal.SIGKILL:
        return f"the event was not reached: {ending.error}"
    return models.find_problem(target, old_way, way, KILLED, may_leave_files=True)


def attack_save_at_random(folder: Path, rng: random.Random) -> Iterator[Case]:
    """A save killed at a random time, up to five times in a row."""
    models = SavedModels(folder)
    while True:
        way, old_way = rng.choice([*SAVES]), rng.choice([*models.old])
        times = [rng.uniform(0, 0.06) for _ in range(rng.choice((1, 1, 2, 5)))]
        name = (
            f"a save ({way}) over {old_way}, killed after {', '.join(f'{t:.3f}' for t in times)} s"
        )
        yield Case(name=name, run=partial(kill_at_times, models, way, old_way, times))


def kill_at_times(
    models: SavedModels, way: str, old_way: str, times: list[float], folder: Path
) -> str | None:
    target = folder / "model"
    restore_folder(target, models.old[old_way])
    for seconds in times:
        child = fork(partial(SAVES[way], models.model, target))
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        state = describe_folder(target)
        if state not in (models.states[old_way], models.new_states[way]):
            return f"neither the old nor the new model: {state}"
    return models.find_problem_of_next_save(target, way)


def attack_concurrent_saves(folder: Path, rng: random.Random) -> Iterator[Case]:
    """Several processes that save into one folder while others read it; some are killed."""
    models = SavedModels(folder)
    while True:
        ways = [rng.choice([*SAVES]) for _ in range(rng.choice((2, 3, 4)))]
        kill_time = rng.uniform(0, 0.2) if rng.random() < 0.5 else None
        name = f"saves ({', '.join(ways)}) at once" + (", one killed" if kill_time else "")
        yield Case(name=name, run=partial(save_at_once, models, ways, kill_time))


def save_at_once(
    models: SavedModels, ways: list[str], kill_time: float | None, folder: Path
) -> str | None:
    target = folder / "model"
    restore_folder(target, models.old["one file"])
    allowed = {models.states["one file"], *(models.new_states[way] for way in ways)}

    def save(way: str) -> None:
        for _ in range(3):
            SAVES[way](models.model, target)

    def read() -> None:
        for _ in range(10):
            if (state := describe_folder(target)) not in allowed:
                raise AssertionError(f"a reader found {state}")

    children = {fork(partial(save, way)): f"save ({way})" for way in ways}
    victim = next(iter(children))
    children[fork(read)] = "reader"
    if kill_time is not None:
        time.sleep(kill_time)
        os.kill(victim, signal.SIGKILL)
    statuses = {child: os.waitpid(child, 0)[1] for child in children}
    failed = [
        children[child]
        for child, status in statuses.items()
        if status and not (child == victim and kill_time is not None)
    ]
    if failed:
        return f"failed: {', '.join(failed)}; the output has the errors"
    state = describe_folder(target)
    if state not in allowed:
        return f"at the end, the folder has none of the models: {state}"
    return models.find_problem_of_next_save(target, ways[-1])


def attack_commands_at_events(folder: Path, rng: random.Random) -> Iterator[Case]:
    """A command that writes a folder, killed before each of its file events."""
    models = SavedModels(folder)
    source = models.old["one file"]
    assert source is not None
    places = []
    for name, command in COMMANDS.items():
        work = folder / name
        write_inputs(work, source)
        action = partial(run_in_folder, work, command)
        ending = run_with_fault(action, work, -1)
        if ending.error:
            raise RuntimeError(f"qkv {' '.join(command)}: {ending.error}")
        places += [(name, event, row) for event, row in enumerate(ending.names)]
    rng.shuffle(places)
    for name, event, row in places:
        expected = folder / name / "out"
        run = partial(kill_command, name, event, source, describe_output(expected))
        yield Case(name=f"{name}, killed before {row}", run=run)


def write_inputs(folder: Path, source: Path) -> None:
    """Write what the commands read."""
    shutil.copytree(source, folder / "model")
    (folder / "texts.txt").write_text("the cat sat on the mat\n" * 20, encoding="utf-8")


def run_in_folder(folder: Path, command: list[str]) -> None:
    """Run a command of qkv; raise ValueError unless it succeeds."""
    os.chdir(folder)
    with open(os.devnull, "w") as stream, redirect_stdout(stream):
        status = qkv.cli.main(command)
    if status:
        raise ValueError(f"exit status {status}")


def describe_output(folder: Path) -> str:
    """Return the names and sizes of the files, or "nothing"."""
    if not folder.exists():
        return NOTHING
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return repr([(str(path.relative_to(folder)), path.stat().st_size) for path in files])


def kill_command(name: str, event: int, source: Path, expected: str, folder: Path) -> str | None:
    """Kill a command; if it wrote nothing, run it again. Return what is wrong."""
    write_inputs(folder, source)
    action: Callable[[], None] = partial(run_in_folder, folder, COMMANDS[name])
    run_with_fault(action, folder, event, KILL)
    state = describe_output(folder / "out")
    if state not in (NOTHING, expected):
        return f"the output is incomplete: {state}"
    if state == NOTHING:
        run_in_folder(folder, COMMANDS[name])
        if (state := describe_output(folder / "out")) != expected:
            return f"the same command again wrote something else: {state}"
        if stray := [entry for entry in list_files(folder) if is_temporary(entry)]:
            return f"the same command again left temporary files: {', '.join(stray)}"
    return None
