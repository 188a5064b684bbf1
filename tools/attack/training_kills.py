"""Kills of training runs: `qkv train` is killed at a file event or after some seconds, or a file event is an
I/O error; the same command resumes it, and the run folder is compared with that of a run without faults.

    python -m tools.attack.training_kills causal-lm --torn    # at every file event

Training runs in forks of this process, which only imports, so that a run costs a fraction of a second. Do
not call it in a process that has used several threads of torch."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # optimizers import it, which takes longer than a run

import qkv
import qkv.cli
import qkv.decode
import qkv.train.report.console
import qkv.train.run
from qkv.train.initial_model import TOKENIZER_FOLDER
from qkv.train.report.history import MetricsHistory
from qkv.train.run_folder import contains_run
from tools import small_data
from tools.attack.file_events import FileEvents

SETTINGS = (  # short, with every kind of file: two evaluations, three checkpoints, one of them removed
    "--train.steps 5 --train.warmup_steps 0 --train.log_every 1 --train.eval_every 2 --train.save_every 2"
    " --data.validation 0.1 --device cpu"
).split()
SHORT_SETTINGS = (
    "--train.steps 2 --train.warmup_steps 0 --train.log_every 1 --train.save_every 1"
    " --train.keep_checkpoints 1 --data.validation 0.1 --device cpu --model.width 16 --model.heads 2"
).split()
WITHOUT_DROPOUT = ("image-text-contrastive",)
UNCOMPARED = ("lock", "metrics.jsonl", "tensorboard")  # process ids, times


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


class ImageRecorder(FileEvents):
    """Copies the folder before every event, and with the file of an event torn: what a kill would leave."""

    flags = 0

    def __init__(self, root: Path, images: Path) -> None:
        super().__init__(root, -1, "kill")
        self.images = images
        self.known: set[bytes] = set()  # hashes of the copies

    def _audit(self, name: str, args: tuple[Any, ...]) -> None:
        if name == "open":
            self.flags = args[2]
        super()._audit(name, args)

    def _report(self, name: str, paths: list[str]) -> None:
        path = Path(paths[0])
        if not path.is_relative_to(self.root):
            return
        number, self.count = self.count, self.count + 1
        before = self.images / f"{number:04} before {name} {path.name}"
        torn = self.images / f"{number:04} torn {path.name}"
        if not os.path.exists(self.root):
            return
        shutil.copytree(self.root, before)
        if name == "open" and path.parent.is_dir():
            shutil.copytree(self.root, torn)
            with open(torn / path.relative_to(self.root), "ab") as file:
                if self.flags & os.O_TRUNC:
                    file.truncate(0)
                file.write(b'{"st')
        for image in (before, torn):
            if image.exists():
                digest = hash_folder(image)
                if digest in self.known:
                    shutil.rmtree(image)
                self.known.add(digest)


def hash_folder(folder: Path) -> bytes:
    """Return a hash of the names and contents below a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        digest.update(str(path.relative_to(folder)).encode())
        if path.is_file() and path.name != "lock":
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.digest()


@dataclass(frozen=True)
class Kill:
    """Where a process is killed: before a file event, in the middle of it, or after some seconds.

    `error` is an I/O error instead, such as ENOSPC: of the event, or of all from then on (`lasting`)."""

    event: int = -1
    torn: bool = False
    seconds: float | None = None
    error: str | None = None
    lasting: bool = False

    def __str__(self) -> str:
        if self.seconds is not None:
            return f"after {self.seconds:.3f} s"
        if self.error is not None:
            return f"{self.error} {'from' if self.lasting else 'at'} event {self.event}"
        return f"{'in' if self.torn else 'before'} event {self.event}"

    @property
    def statuses(self) -> tuple[int, ...]:
        """The exit statuses that it may have; the event may not be reached."""
        return (0, -signal.SIGKILL) if self.error is None else (0, 2)


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
        if self.name not in WITHOUT_DROPOUT:  # with dropout, the random state matters
            self.command += ["--model.dropout", "0.1"]
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

    def run_killed(self, kill: Kill | None, *flags: str) -> tuple[int, str]:
        """Run the command; return its exit status, negative after a signal, and its last line of stderr.

        Without a kill, the run folder is copied at every event."""
        errors = self.home / "errors"
        child = os.fork()
        if not child:
            self.run_in_child(kill, [*self.command, *flags], errors)
        if kill is not None and kill.seconds is not None:
            time.sleep(kill.seconds)
            os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return status, (errors.read_text().splitlines() or [""])[-1]

    def run_in_child(self, kill: Kill | None, command: list[str], errors: Path) -> None:
        """Run the command in this process, which is a fork, and exit."""
        code = 3
        try:
            torch.set_num_threads(1)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
            sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
            log = os.open(self.home / "events", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            if kill is None:
                ImageRecorder(self.folder, self.home / "killed-states").install()
            else:
                events = TornFileEvents if kill.torn else FileEvents
                fault = kill.error or "kill"
                events(self.folder, kill.event, fault, persistent=kill.lasting, log=log).install()
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
            if status not in kill.statuses:
                return f"does not go on: exit status {status}: {error}"
            if status == 2 and (problem := self.find_wrong_error()):
                return f"wrong error: {problem}"
            if check_models and (problem := self.find_unreadable()):
                return f"unreadable: {problem}"
        return self.find_problem_of_end(str(kills))

    def find_problem_of_end(self, label: str) -> str | None:
        """Resume the run and let it end; return what is wrong. The label decides the flags of a start."""
        flags = ["--resume", "auto"]
        if not contains_run(self.folder):
            flags = random.Random(label).choice([flags, []])  # both start it again
        status, error = self.run_killed(Kill(), *flags)
        if status:
            return f"does not go on: exit status {status}: {error}"
        files = self.snapshot()
        different = sorted(
            name for name in {*files, *self.expected} if files.get(name) != self.expected.get(name)
        )
        return f"differs: {', '.join(different)}" if different else None

    def find_wrong_error(self) -> str | None:
        """Return what is printed after exit status 2, unless it is one line after the warnings."""
        lines = (self.home / "errors").read_text().splitlines()
        lines = [line for line in lines if not line.startswith("qkv: warning: ")]
        is_right = len(lines) == 1 and lines[0].startswith("qkv: ")
        return None if is_right else "\n".join(lines)

    def find_unreadable(self) -> str | None:
        """Return the error of a model folder that is there and cannot be loaded."""
        base = self.home / "base"
        for name in ("best", "last"):
            folder = self.folder / name
            if (
                not (folder / "config.json").exists()
                and not (folder / "adapter_config.json").exists()
            ):
                continue
            child = os.fork()
            if not child:
                try:
                    is_adapter = (folder / "adapter_config.json").exists()
                    model = qkv.load(base, adapter=folder) if is_adapter else qkv.load(folder)
                    has_tokenizer = (self.folder / TOKENIZER_FOLDER).exists()
                    assert is_adapter or (model.tokenizer is not None) == has_tokenizer
                    os._exit(0)
                except BaseException as error:
                    (self.home / "errors").write_text(f"{type(error).__name__}: {error}")
                finally:
                    os._exit(1)
            if os.waitpid(child, 0)[1]:
                return f"{name}: {(self.home / 'errors').read_text()}"
        return None


def record_images(run: TrainingRun) -> list[Path]:
    """Return copies of the run folder: what a kill at each of its file events would leave.

    One run is copied at its events; equal states are kept once."""
    images = run.home / "killed-states"
    images.mkdir()
    status, error = run.run_killed(None, "--resume", "auto")
    assert not status, error
    return sorted(images.iterdir())


def resume_image(run: TrainingRun, image: Path) -> str | None:
    """Resume the run from an image; return what is wrong."""
    shutil.rmtree(run.folder, ignore_errors=True)
    shutil.copytree(image, run.folder)
    return run.find_problem_of_end(image.name)


def check_every_event(run: TrainingRun, *, torn: bool) -> Iterator[tuple[str, str | None]]:
    """Resume a run from what a kill at each of its file events leaves; yield the event and the problem.

    With `torn`, every file is also torn."""
    for image in record_images(run):
        if torn or " torn " not in image.name:
            yield image.name, resume_image(run, image)


def draw_kill(run: TrainingRun, rng: random.Random) -> Kill:
    if rng.random() < 0.5:
        return Kill(seconds=rng.uniform(0, run.seconds))
    return Kill(rng.randrange(len(run.events)), torn=rng.random() < 0.5)


def main(arguments: list[str]) -> int:
    """Resume runs from every state; print the problems, and return 1 if there is one."""
    parser = argparse.ArgumentParser(description="Kill training runs at every file event.")
    parser.add_argument("names", nargs="+", choices=list(small_data.WRITERS))
    parser.add_argument("--torn", action="store_true")
    options = parser.parse_args(arguments)
    num_problems = 0
    with tempfile.TemporaryDirectory(prefix="qkv-kills-") as temporary:
        for name in options.names:
            run = TrainingRun(name, Path(temporary) / name, settings=list(SHORT_SETTINGS))
            problems = dict(check_every_event(run, torn=options.torn))
            for event, problem in problems.items():
                if problem is not None:
                    num_problems += 1
                    print(f"{name}: {event}: {problem}", flush=True)
            print(
                f"{name}: {len(run.events)} file events, {len(problems)} states, {num_problems} problems"
            )
    return int(num_problems > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
