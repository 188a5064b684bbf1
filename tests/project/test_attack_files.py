"""The attack on readers of files: a short one finds nothing, and it would find what it looks for."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tools import attack_files
from tools.attack_files import run_cases
from tools.attack_mutations import mutate_file
from tools.attack_targets import Target


def test_a_short_attack_finds_no_failure() -> None:
    report = attack_files.attack_files(seed=0, seconds=120, max_cases=150)
    assert report.failures == [], report.format_table()
    assert report.num_cases == 150
    assert report.accepted.total() > 10
    assert report.refused.total() > 10


def raise_error(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    ("read", "reason"),
    [
        (lambda folder: {}["x"], "KeyError"),
        (lambda folder: raise_error(ValueError("two\nlines")), "not one line"),
        (lambda folder: raise_error(ValueError("x" * 10_000)), "not one line"),
        (lambda folder: sys.exit(3), "SystemExit"),
        (lambda folder: os.kill(os.getpid(), signal.SIGKILL), "status -9"),
        (lambda folder: Path("/etc/passwd").read_text(), "opened outside of the folder"),
        (lambda folder: (folder / "new").write_text("a"), "opened for writing"),
        (lambda folder: (folder / "a.json").unlink(), "os.remove"),
        (lambda folder: subprocess.run(["true"], check=False), "subprocess.Popen"),
        (lambda folder: socket.create_connection(("127.0.0.1", 9)), "socket.connect"),
        (lambda folder: len(b"x" * 2**28), "bytes of memory"),
    ],
)
def test_a_failure_is_found(
    tmp_path: Path, read: Callable[[Path], object], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.attack_files.MAX_BYTES", 2**27)
    folder = tmp_path / "valid" / "a"
    folder.mkdir(parents=True)
    (folder / "a.json").write_text("{}")
    (case,) = run_cases([Target("a", folder, read)], 0, 0, 1, tmp_path)
    assert case[3] == "failed"
    assert reason in case[4]


def test_a_reader_that_does_not_end_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.attack_files.MAX_SECONDS", 1)
    folder = tmp_path / "valid" / "a"
    folder.mkdir(parents=True)
    (folder / "a.json").write_text("{}")

    def wait(_: Path) -> None:
        while True:
            pass

    (case,) = run_cases([Target("a", folder, wait)], 0, 0, 1, tmp_path)
    assert case[3:] == ("failed", "more than 1 seconds")


def test_a_case_of_a_seed_is_always_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": [1, 2, 3], "b": "text"}')
    target = Target("a", tmp_path, lambda folder: None)
    data = (tmp_path / "a.json").read_bytes()

    def mutate(case: int) -> bytes:
        _, name, rng = attack_files.draw_case([target], 5, case)
        return mutate_file(name, data, rng)

    assert mutate(3) == mutate(3)
    assert len({mutate(case) for case in range(20)}) > 10
