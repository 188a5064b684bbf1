"""The attack on readers of files finds what it looks for."""

import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.attack import files
from tools.attack.case import run_case
from tools.attack.mutations import mutate_file
from tools.attack.targets import Target


def raise_error(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    ("read", "reason"),
    [
        (lambda folder: raise_error(KeyError("x")), "KeyError"),
        (lambda folder: raise_error(ValueError("two\nlines")), "not one line"),
        (lambda folder: raise_error(ValueError("x" * 10_000)), "not one line"),
        (lambda folder: sys.exit(3), "SystemExit"),
        (lambda folder: os.kill(os.getpid(), signal.SIGKILL), "killed by signal SIGKILL"),
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
    monkeypatch.setattr("tools.attack.files.MAX_BYTES", 2**27)
    problem = read_changed_file(tmp_path, read)
    assert problem is not None
    assert reason in problem


def read_changed_file(folder: Path, read: Callable[[Path], object]) -> str | None:
    """Return what the attack says of a reader."""
    valid = folder / "valid" / "a"
    valid.mkdir(parents=True)
    (valid / "a.json").write_text("{}")
    case = files.make_case(Target("a", valid, read), "a.json", 0, folder / "valid")
    (folder / "work").mkdir()
    return run_case(case, folder / "work", folder / "output.txt")[0]


def test_a_reader_that_accepts_or_refuses_is_right(tmp_path: Path) -> None:
    assert read_changed_file(tmp_path / "1", lambda folder: None) is None
    assert read_changed_file(tmp_path / "2", lambda folder: raise_error(OSError("x"))) is None


def test_a_reader_that_does_not_end_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.attack.files.MAX_SECONDS", 1)

    def wait(_: Path) -> None:
        while True:
            pass

    assert read_changed_file(tmp_path, wait) == "did not end in time"


def test_a_mutation_depends_on_the_seed_alone() -> None:
    data = b'{"a": [1, 2, 3], "b": "text"}'
    mutations = [mutate_file("a.json", data, random.Random(seed)) for seed in range(20)]
    assert mutations == [mutate_file("a.json", data, random.Random(seed)) for seed in range(20)]
    assert len({*mutations}) > 10
