"""Pipes, devices, full disks and closed readers as input and output of commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from qkv.cli import inputs
from qkv.data.read import lines
from tests.cli.test_read import bad, good
from tests.conftest import ROOT


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lines, "PIPE_WAIT_SECONDS", 0.2)


def test_a_pipe_is_read_as_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("pipe")
    writer = threading.Thread(target=lambda: Path("pipe").write_text("A fine film.\nAwful.\n"))
    writer.start()
    out = good(capsys, "classify", "pipe", "--json")
    writer.join()
    assert [line.split('"')[3] for line in out.splitlines()] == ["A fine film.", "Awful."]


def test_pipes_without_a_writer_and_devices(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("pipe", "pipe.csv"):
        os.mkfifo(name)
        assert f"{name}: a pipe without a writer" in bad(capsys, "classify", name)
    assert "/dev/zero: a device" in bad(capsys, "classify", "/dev/zero")
    assert "pipe.csv: a pipe without a writer" in bad(
        capsys, "eval", "builtin:classify", "--data", "pipe.csv"
    )
    assert "recipe not found" in bad(capsys, "train", "/dev/zero")
    Path("r.toml").write_text(
        'model.family = "gpt2"\ndata = { train = "pipe.csv", batch_size = 2 }\n'
        'objective.name = "causal-lm"\ntrain.steps = 1\n'
    )
    assert "pipe.csv: a pipe or device; expected a file" in bad(capsys, "train", "r.toml")
    assert not Path("runs").exists()


def test_too_many_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "MAX_LINES", 3)
    Path("texts.txt").write_text("a\n" * 4)
    assert "texts.txt: more than 3 lines" in bad(capsys, "classify", "texts.txt")


@pytest.mark.parametrize("path", ["a\nb", "\x1b[31m.npy", "a\udcff.npy", ""], ids=ascii)
def test_output_paths_with_control_characters(
    capsys: pytest.CaptureFixture[str], path: str
) -> None:
    for arguments in (
        ["embed", "x", "--model", "m", "--out", path],
        ["tokenizer", "train", "x.txt", "--out", path],
        ["new", "classify", "x.csv", "--out", path],
        ["merge", "m", "--out", path],
        ["export", "m", path],
        ["show", "gpt2", "--save", path],
        ["translate", "x", "--save", path],
    ):
        assert "expected a path without control characters" in bad(capsys, *arguments)
    assert not [*Path().iterdir()]


def run(*arguments: str, **options: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "qkv", *arguments]
    options = {"env": {**os.environ, "PYTHONPATH": str(ROOT)}, **options}
    return subprocess.Popen(command, stderr=subprocess.PIPE, **options)  # type: ignore[call-overload]


def test_a_full_disk(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    with open("/dev/full", "wb") as full:
        process = run("recipes", stdout=full)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 2
    assert error == b"qkv: the output is not complete: No space left on device\n"


@pytest.mark.parametrize("arguments", [["--help"], ["recipes"]], ids=str)
def test_a_closed_pipe(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = run(*arguments, stdout=writer)
    os.close(writer)
    assert process.communicate(timeout=60)[1] == b""
    assert process.returncode == 141


def test_an_interrupt_while_modules_are_imported(tmp_path: Path) -> None:
    (tmp_path / "cyclopts.py").write_text(
        f"import os, signal\nos.kill(os.getpid(), {int(signal.SIGINT)})\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    previous = signal.signal(
        signal.SIGINT, signal.SIG_DFL
    )  # it may be ignored, as in a background job
    try:
        process = run("recipes", env=environment)
    finally:
        signal.signal(signal.SIGINT, previous)
    _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (-signal.SIGINT, b"")
