"""Kills of training runs: `qkv train` is killed at a file event or after some seconds, the same command
resumes it, and the run folder is compared with that of a run that was not killed.

    python -m tests.support.training_kills causal-lm seq2seq --count 100 --seed 1

Training runs in forks of this process, which only imports, so that a run costs a fraction of a second. Do
not call it in a process that has used several threads of torch."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import qkv
import qkv.cli
import qkv.decode
import qkv.train.report.console
import qkv.train.run
from qkv.train.report.history import MetricsHistory
from qkv.train.run_folder import contains_run
from tests.support import small_data
from tests.support.file_events import FileEvents

SETTINGS = (  # short, with every kind of file: two evaluations, three checkpoints, one of them removed
    "--train.steps 5 --train.warmup_steps 0 --train.log_every 1 --train.eval_every 2 --train.save_every 2"
    " --data.validation 0.1 --device cpu"
).split()
UNCOMPARED = ("lock", "metrics.jsonl", "tensorboard")  # process ids, times
MAX_RESUMES = 20


class TornFileEvents(FileEvents):
    """A kill after the Nth event if it opens a file: the file is created or emptied, or has half a line."""

    flags = 0

    def _audit(self, name: str, args: tuple[Any, ...]) -> None:
        if name == "open":
            self.flags = args[2]
        super()._audit(name, args)

    def _report(self, name: str, paths: list[str]) -> None:
        if name == "open" and self.count == self.event and paths[0].startswith(self.root + os.sep):
            self.event = -1  # the next line is an event too
            os.write(os.open(paths[0], self.flags, 0o644), b'{"st')
            os.kill(os.getpid(), signal.SIGKILL)
        super()._report(name, paths)


@dataclass(frozen=True)
class Kill:
    """Where a process is killed: before a file event, in the middle of it, or after some seconds."""

    event: int = -1
    torn: bool = False
    seconds: float | None = None

    def __str__(self) -> str:
        if self.seconds is not None:
            return f"after {self.seconds:.3f} s"
        return f"{'in' if self.torn else 'before'} event {self.event}"


@dataclass
class TrainingRun:
    """A short run of a small recipe, in the subfolder `run` of a folder with its data."""

    name: str
    home: Path
    settings: list[str] = field(default_factory=lambda: list(SETTINGS))
    expected: dict[str, bytes] = field(default_factory=dict)  # files of a run that was not killed
    seconds: float = 0.0  # its duration
    events: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        child = os.fork()  # a teacher is built with torch
        if not child:
            flags = small_data.write_data(self.name, self.home)
            (self.home / "flags.json").write_text(json.dumps(flags))
            os._exit(0)
        os.waitpid(child, 0)
        flags = json.loads((self.home / "flags.json").read_text())
        self.command = ["train", f"small/{self.name}", *flags, "--run", str(self.folder)]
        self.command += self.settings
        start_time = time.monotonic()
        status, output = self.run_killed(Kill(), "--resume", "auto")
        self.seconds = time.monotonic() - start_time
        if status:
            raise RuntimeError(f"{self.name}: exit status {status} without a kill: {output}")
        self.events = (self.home / "events").read_text().splitlines()
        self.expected = self.snapshot()
        shutil.rmtree(self.folder)

    @property
    def folder(self) -> Path:
        return self.home / "run"

    def run_killed(self, kill: Kill, *flags: str) -> tuple[int, str]:
        """Run the command; return its exit status, negative after a signal, and its last line of stderr."""
        errors = self.home / "errors"
        child = os.fork()
        if not child:
            self.run_in_child(kill, [*self.command, *flags], errors)
        if kill.seconds is not None:
            time.sleep(kill.seconds)
            os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return status, (errors.read_text().splitlines() or [""])[-1]

    def run_in_child(self, kill: Kill, command: list[str], errors: Path) -> None:
        """Run the command in this process, which is a fork, and exit."""
        code = 3
        try:
            torch.set_num_threads(1)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
            sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
            log = os.open(self.home / "events", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            events = TornFileEvents if kill.torn else FileEvents
            events(self.folder, kill.event, "kill", log=log).install()
            code = qkv.cli.main(command)
            sys.stderr.flush()
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(code)

    def snapshot(self) -> dict[str, bytes]:
        """Return the content of all files of the run, and the metrics without times."""
        files = {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and not {*path.relative_to(self.folder).parts} & {*UNCOMPARED}
        }
        history = MetricsHistory.read(self.folder)
        reports = [(r.step, r.phase, r.metrics) for r in [*history.train, *history.validation]]
        return files | {"reports": repr(reports).encode()}

    def find_problem(self, kills: list[Kill], *, check_models: bool = True) -> str | None:
        """Kill the run and its resumed processes one after another, then let it end; return what is
        wrong: it does not go on, a model is unreadable, or a file differs."""
        if self.folder.exists():
            shutil.rmtree(self.folder)
        for kill in kills:
            status, error = self.run_killed(kill, "--resume", "auto")
            if status not in (0, -signal.SIGKILL):
                return f"does not go on: exit status {status}: {error}"
            if check_models and (problem := self.find_unreadable()):
                return f"unreadable: {problem}"
        flags = ["--resume", "auto"]
        if not contains_run(self.folder):
            flags = random.Random(str(kills)).choice([flags, []])  # both start it again
        status, error = self.run_killed(Kill(), *flags)
        if status:
            return f"does not go on: exit status {status}: {error}"
        files = self.snapshot()
        different = sorted(
            name
            for name in {*files, *self.expected}
            if files.get(name) != self.expected.get(name)
        )
        return f"differs: {', '.join(different)}" if different else None

    def find_unreadable(self) -> str | None:
        """Return the error of a model folder that is there and cannot be loaded."""
        base = self.home / "base"
        for name in ("best", "last"):
            folder = self.folder / name
            if not (folder / "config.json").exists() and not (folder / "adapter_config.json").exists():
                continue
            child = os.fork()
            if not child:
                try:
                    is_adapter = (folder / "adapter_config.json").exists()
                    model = qkv.load(base, adapter=folder) if is_adapter else qkv.load(folder)
                    assert model.tokenizer is not None
                    os._exit(0)
                except BaseException as error:
                    (self.home / "errors").write_text(f"{type(error).__name__}: {error}")
                finally:
                    os._exit(1)
            if os.waitpid(child, 0)[1]:
                return f"{name}: {(self.home / 'errors').read_text()}"
        return None


def kill_at_every_event(run: TrainingRun, *, torn: bool = False) -> Iterator[tuple[Kill, str | None]]:
    """Kill a run once at each of its file events; yield the kill and the problem, if there is one."""
    for event, name in enumerate(run.events):
        if not torn or name.startswith("open "):
            kill = Kill(event, torn=torn)
            yield kill, run.find_problem([kill])


def kill_at_random(
    run: TrainingRun, count: int, rng: random.Random
) -> Iterator[tuple[list[Kill], str | None]]:
    """Kill a run at random times and events, `count` times, one to four times until it ends."""
    while count > 0:
        kills = [draw_kill(run, rng) for _ in range(min(rng.choice([1, 1, 2, 4]), count))]
        count -= len(kills)
        yield kills, run.find_problem(kills)


def draw_kill(run: TrainingRun, rng: random.Random) -> Kill:
    if rng.random() < 0.5:
        return Kill(seconds=rng.uniform(0, run.seconds))
    return Kill(rng.randrange(len(run.events)), torn=rng.random() < 0.5)


def attack_training(
    names: list[str],
    count: int,
    seed: int,
    folder: Path,
    report: Callable[[str], object] = print,
) -> Counter[str]:
    """Kill runs of small recipes `count` times in all; return how many ended well and how many did not."""
    results: Counter[str] = Counter()
    for number, name in enumerate(names):
        run = TrainingRun(name, folder / name)
        share = (count * (number + 1)) // len(names) - (count * number) // len(names)
        for kills, problem in kill_at_random(run, share, random.Random(f"{seed} {name}")):
            results["kills"] += len(kills)
            if problem is not None:
                results[problem.partition(":")[0]] += 1
                report(f"{name}: {', '.join(map(str, kills))}: {problem}")
        report(f"{name}: {len(run.events)} file events, {run.seconds:.2f} s; so far {dict(results)}")
    return results


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Kill training runs and resume them.")
    parser.add_argument("names", nargs="*", default=list(small_data.WRITERS))
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every-event", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="qkv-kills-") as temporary:
        if not options.every_event:
            results = attack_training(options.names, options.count, options.seed, Path(temporary))
            return int(results.keys() != {"kills"})
        failed = False
        for name in options.names:
            run = TrainingRun(name, Path(temporary) / name)
            for torn in (False, True):
                for kill, problem in kill_at_every_event(run, torn=torn):
                    if problem is not None:
                        print(f"{name}: {kill} ({run.events[kill.event]}): {problem}", flush=True)
                        failed = True
            print(f"{name}: {len(run.events)} file events, {run.seconds:.2f} s", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
