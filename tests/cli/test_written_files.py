"""Commands that write a file: a kill or a full disk leaves the old file or the new one, and no input
is replaced."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from qkv.cli import main
from tests.cli.test_read import bad, model
from tools.attack.file_events import run_at_every_event

TICKETS = "text,label\n" + "".join(f"ticket number {i},{'ab'[i % 2]}\n" for i in range(40))
COMMANDS = {
    "vectors.npy": ["embed", "texts.txt", *model("bert"), "--out", "vectors.npy"],
    "bert.svg": ["show", "bert", "--save", "bert.svg"],
    "tickets.toml": ["new", "classify", "tickets.csv", "--out", "tickets.toml"],
}


@pytest.fixture
def folder(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(memory_path)
    Path("texts.txt").write_text("Anna lives in a small house.\nMarie plays!\n")
    Path("tickets.csv").write_text(TICKETS)
    return memory_path


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("vectors.npy", "kill"),
        ("bert.svg", "kill"),
        ("bert.svg", "EIO"),
        ("tickets.toml", "ENOSPC"),
    ],
)
def test_a_file_is_written_whole_or_not_at_all(name: str, fault: str, folder: Path) -> None:
    path = folder / name
    replaces = "--save" in COMMANDS[name]

    def reset() -> None:
        path.unlink(missing_ok=True)
        if replaces:
            path.write_text("old")

    reset()
    assert main(COMMANDS[name]) == 0
    expected = path.read_bytes()
    contents = []
    for ending in run_at_every_event(lambda: main(COMMANDS[name]), folder, fault, reset=reset):
        content = path.read_bytes() if path.exists() else None
        contents.append(content)
        assert content in (b"old" if replaces else None, expected), ending.names
        reset()
        assert main(COMMANDS[name]) == 0
        assert sorted(os.listdir()) == sorted(["texts.txt", "tickets.csv", name])
    assert contents[0] != expected
    assert contents[-1] == expected


def test_an_input_is_not_replaced(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "page.html").write_text("Wo ist der Bahnhof?")
    (folder / "link.html").symlink_to("page.html")
    arguments = ["translate", "page.html", *model("marian"), "--save"]
    for name in ("page.html", "./page.html", "link.html"):
        assert "the same file as the input" in bad(capsys, *arguments, name)
    assert (folder / "page.html").read_text() == "Wo ist der Bahnhof?"
    (folder / "dir.html").mkdir()
    os.mkfifo(folder / "pipe.html")
    for name in ("dir.html", "pipe.html"):
        assert "expected a file in an existing folder" in bad(capsys, *arguments, name)


def test_vectors_of_another_file_are_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(folder / "vectors.npy", np.zeros(3))
    assert "already exists" in bad(capsys, *COMMANDS["vectors.npy"])
    assert np.load(folder / "vectors.npy").shape == (3,)
