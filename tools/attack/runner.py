"""Runs the cases of an attack until its time is over, and keeps every failure as a folder."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from tools.attack.case import Attack, Case, call_in_fork, run_case

MAX_REASON_LINES = 3
MAX_LINE = 300
# Saves wait for the disk several times; a file system in memory makes them much faster.
MEMORY_FOLDER = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@dataclass(frozen=True)
class AttackResult:
    """What became of one attack: one row of the table."""

    name: str
    num_cases: int
    seconds: float
    num_failures: int
    is_complete: bool  # all cases that the attack has were run
    error: str | None = None  # the attack itself could not go on


class ProgressLine:
    """One line on a terminal that is rewritten; nothing elsewhere."""

    def __init__(self) -> None:
        self.is_live = sys.stdout.isatty()
        self.last_time = 0.0

    def update(self, text: str) -> None:
        """Rewrite the line, at most ten times a second."""
        if self.is_live and time.monotonic() - self.last_time > 0.1:
            self.last_time = time.monotonic()
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{text[:width]}", end="", flush=True)

    def print(self, text: str) -> None:
        """Replace the line by a text that stays."""
        print(f"\r\x1b[K{text}" if self.is_live else text, flush=True)


def iterate_cases(attack: Attack, name: str, seed: int, folder: Path) -> Iterator[Case]:
    """Return the cases of an attack for a seed, always the same ones in the same order."""
    return attack(folder, random.Random(f"{seed} {name}"))


def run_attack(
    name: str, attack: Attack, *, seed: int, seconds: float, failures: Path, header: str
) -> AttackResult:
    """Run an attack in a process of its own, so that nothing that it leaves reaches another one."""
    run = partial(_run_cases, name, attack, seed, seconds, failures, header)
    start = time.monotonic()
    outcome = call_in_fork(run, new_group=False)
    if outcome.error is not None:
        print(f"{name}: the attack did not end: {outcome.error}")
        return AttackResult(name, 0, time.monotonic() - start, 0, False, outcome.error)
    return AttackResult(**outcome.value)


def run_one_case(name: str, attack: Attack, *, seed: int, index: int, failures: Path) -> str | None:
    """Run case `index` of an attack again; return the reason of its failure."""
    with tempfile.TemporaryDirectory(prefix="qkv-attack-", dir=MEMORY_FOLDER) as root:
        cases = iterate_cases(attack, name, seed, _make_folder(Path(root) / "shared"))
        case = next(islice(cases, index, None), None)
        if case is None:
            raise ValueError(f"--case {index}: {name} has fewer cases")
        return _run_case(name, case, Path(root), seed, index, failures)


def _run_cases(
    name: str, attack: Attack, seed: int, seconds: float, failures: Path, header: str
) -> dict[str, object]:
    """Run cases until the time is over; return the fields of an `AttackResult`."""
    progress = ProgressLine()
    progress.update(f"{header} {name}: preparing")
    start = time.monotonic()
    num_cases = num_failures = 0
    is_complete = False
    with tempfile.TemporaryDirectory(prefix="qkv-attack-", dir=MEMORY_FOLDER) as root:
        cases = iterate_cases(attack, name, seed, _make_folder(Path(root) / "shared"))
        while not num_cases or time.monotonic() - start < seconds:
            case = next(cases, None)
            if case is None:
                is_complete = True
                break
            elapsed = time.monotonic() - start
            progress.update(
                f"{header} {name}: {num_cases} cases, {num_failures} failures, "
                f"{elapsed:.0f} of {seconds:.0f} s: {case.name}"
            )
            reason = _run_case(name, case, Path(root), seed, num_cases, failures)
            if reason is not None:
                num_failures += 1
                progress.print(_describe_failure(name, num_cases, case.name, reason))
            num_cases += 1
    result = AttackResult(name, num_cases, time.monotonic() - start, num_failures, is_complete)
    return asdict(result)


def _run_case(
    name: str, case: Case, root: Path, seed: int, index: int, failures: Path
) -> str | None:
    """Run a case in a folder of its own; move the folder to `failures` if it failed."""
    folder, output = _make_folder(root / "case"), root / "output.txt"
    output.unlink(missing_ok=True)
    reason, seconds = run_case(case, folder, output)
    if reason is not None:
        failure = failures / f"{name}-seed{seed}-{index}"
        shutil.rmtree(failure, ignore_errors=True)
        failure.mkdir(parents=True)
        facts = dict(
            attack=name, seed=seed, case=index, name=case.name, reason=reason, seconds=seconds,
            command=f"python -m tools.attack --only {name} --seed {seed} --case {index}",
        )  # fmt: skip
        text = json.dumps(facts, indent=2, ensure_ascii=False) + "\n"
        (failure / "case.json").write_text(text, encoding="utf-8", errors="backslashreplace")
        shutil.move(folder, failure / "files")
        if output.exists():
            shutil.move(output, failure / "output.txt")
    return reason


def _make_folder(folder: Path) -> Path:
    """Make an empty folder."""
    if folder.exists():
        for path in (folder, *folder.rglob("*")):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o700)  # a case may have removed the permission
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder


def _describe_failure(name: str, index: int, case_name: str, reason: str) -> str:
    """Return the failure in a few lines: the last ones of a traceback."""
    lines = [line[:MAX_LINE] for line in reason.strip().splitlines()[-MAX_REASON_LINES:]]
    return "\n    ".join([f"FAILED {name} {index}: {case_name}", *lines])
