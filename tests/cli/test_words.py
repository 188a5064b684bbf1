"""The commands of word vectors, and bad input: one line on stderr, exit status 2, nothing lost."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from safetensors import SafetensorError

import qkv
from qkv.cli import main
from qkv.words import WordVectors, checkpoint, trainer, write
from tests.words.conftest import make_topic_lines

TRAIN = "words train corpus.txt --vector-size 8 --min-count 2 --sample 0 --num-threads 1".split()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a corpus and vectors in which king - man + woman is queen."""
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_text("\n".join(make_topic_lines(300)) + "\n")
    words = ["king", "queen", "man", "woman", "apple"]
    rows = [[1.0, 1, 0], [1, -1, 0], [0, 1, 0.1], [0, -1, 0.1], [0, 0, 1]]
    WordVectors(words, torch.tensor(rows)).save("royal.txt")
    return tmp_path


def good(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def bad(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the one line of an error."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


def list_names() -> list[str]:
    return sorted(os.listdir())


def test_train_and_near(capsys: pytest.CaptureFixture[str]) -> None:
    output = good(capsys, *TRAIN, "--lr", "0.05")
    assert "skip-gram, 5 epochs" in output
    assert "23 words, 8 dimensions" in output
    assert list_names() == ["corpus.txt", "royal.txt", "vectors.bin"]
    rows = good(capsys, "words", "near", "cat", "--topn", "4", "--json").splitlines()
    near = {json.loads(row)["word"] for row in rows}
    assert near == {"dog", "mouse", "horse", "rabbit"}
    expected = qkv.words.train(
        "corpus.txt", vector_size=8, min_count=2, sample=0.0, lr=0.05, num_threads=1
    )
    assert torch.equal(qkv.words.load("vectors.bin").vectors, expected.vectors)


def test_analogy(capsys: pytest.CaptureFixture[str]) -> None:
    output = good(capsys, *"words analogy king man woman --vectors royal.txt --topn 1".split())
    word, score = output.split()[-2:]
    assert word == "queen"
    assert float(score) == pytest.approx(1, abs=0.05)
    assert "woman" not in good(capsys, *"words near woman --vectors royal.txt --topn 9".split())


def test_eval(capsys: pytest.CaptureFixture[str]) -> None:
    Path("pairs.tsv").write_text("king\tqueen\t5\nking\tapple\t1\nKing\tman\t9\nking\tzebra\t9\n")
    Path("questions.txt").write_text(
        ": family\nman woman king queen\nman woman queen king\n: gram1\nman x king queen\n"
    )
    command = "words eval pairs.tsv questions.txt --vectors royal.txt".split()
    rows = [json.loads(line) for line in good(capsys, *command, "--json").splitlines()]
    scores = {(row["section"], row["metric"]): row for row in rows}
    assert scores["similarity", "spearman"]["used"] == 3
    assert scores["similarity", "spearman"]["all"] == 4
    assert scores["family", "accuracy"]["score"] == 0.5
    assert scores["gram1", "accuracy"]["used"] == 0
    assert scores["all", "accuracy"]["all"] == 3
    assert scores["all semantic", "accuracy"]["used"] == 2
    table = good(capsys, *command)
    assert "out-of-vocabulary" in table
    assert any(line.split()[-2:] == ["3", "1"] for line in table.splitlines())


def test_convert(capsys: pytest.CaptureFixture[str]) -> None:
    assert "5 words" in good(capsys, "words", "convert", "royal.txt", "royal.bin")
    good(capsys, *"words convert royal.bin royal.glove --format glove --limit 2".split())
    assert Path("royal.glove").read_text() == "king 1.0 1.0 0.0\nqueen 1.0 -1.0 0.0\n"
    assert "already exists" in bad(capsys, "words", "convert", "royal.txt", "royal.bin")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("words near rabit --vectors royal.txt", ["'rabit'"]),
        ("words near qeen --vectors royal.txt", ["did you mean queen?"]),
        ("words analogy king man wooman --vectors royal.txt", ["did you mean woman"]),
        ("words near king", ["vectors.bin: not found", "qkv words train"]),
        ("words near", ["no word"]),
        ("words near king --vectors no.txt", ["no.txt", "No such file"]),
        ("words near king --vectors royal.txt --topn 0", ["topn is 0"]),
        ("words near king --vectors royal.txt --limit 0", ["limit is 0"]),
        ("words near king --vectors corpus.txt", ["corpus.txt", "number"]),
        ("words eval --vectors royal.txt", ["no test file"]),
        ("words eval no.tsv --vectors royal.txt", ["no.tsv"]),
        ("words eval corpus.txt --vectors royal.txt", ["corpus.txt"]),
        ("words train", ["no file"]),
        ("words train no.txt", ["no.txt: no files found"]),
        ("words train corpus.txt --out royal.txt", ["already exists"]),
        ("words train corpus.txt --out no/v.bin", ["does not exist"]),
        ("words train corpus.txt --min-count 99999", ["min_count", "lower"]),
        ("words train corpus.txt --vector-size 0", ["vector_size is 0"]),
        ("words train corpus.txt --lr nan", ["lr is nan"]),
        ("words train corpus.txt --alpha 0.1", ["--alpha", "--lr"]),
        ("words train corpus.txt --workers 2", ["--workers", "--num-threads"]),
        ("words train empty.txt", ["empty.txt: empty"]),
        ("words train corpus.txt --out v.xz", ["v.xz", ".gz"]),
        ("words train corpus.txt --out v.bin.bz2", ["v.bin.bz2", ".gz"]),
        ("words convert royal.txt x.xz", [".gz"]),
    ],
)  # fmt: skip
def test_bad_input(command: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty.txt").touch()
    names = list_names()
    line = bad(capsys, *command.split())
    assert [word for word in words if word not in line] == []
    assert list_names() == names


SLOW_TRAINING = """
import sys, time
from qkv.cli import main
from qkv.words import trainer
train_block = trainer.WordTrainer.train_block
trainer.SAVE_SECONDS = 0.1
trainer.MAX_SAVE_SHARE = 1.0
trainer.WordTrainer.train_block = lambda *args: (train_block(*args), time.sleep(0.1))
main(sys.argv[1:])
"""


def test_a_killed_training_continues_to_the_same_vectors(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*TRAIN, "--epochs", "12", "--out"]
    good(capsys, *arguments, "expected.bin")
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_TRAINING, *arguments, "v.bin"], cwd=folder
    )
    while not Path("v.bin.training/checkpoint.safetensors").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not Path("v.bin").exists()
    assert "(continued)" in good(capsys, *arguments, "v.bin")
    assert Path("v.bin").read_bytes() == Path("expected.bin").read_bytes()
    assert list_names() == ["corpus.txt", "expected.bin", "royal.txt", "v.bin"]


def test_an_interrupted_training_says_how_to_continue(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(self: trainer.WordTrainer, number: int) -> None:
        train_block(self, number)
        raise KeyboardInterrupt

    train_block = trainer.WordTrainer.train_block
    with monkeypatch.context() as patch:
        patch.setattr(trainer.WordTrainer, "train_block", interrupt)
        assert main(TRAIN) == 130
    message = capsys.readouterr().err
    assert message == "qkv: stopped; the same command continues from vectors.bin.training\n"
    assert "another epochs" in bad(capsys, *TRAIN, "--epochs", "1")
    assert "(continued)" in good(capsys, *TRAIN)


def test_vectors_that_were_not_written_need_no_new_training(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good(capsys, *TRAIN, "--out", "expected.bin")

    def fail(*args: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(write, "iter_rows", fail)
        assert "No space left" in bad(capsys, *TRAIN)
    assert "vectors.bin" not in list_names()
    monkeypatch.setattr(trainer.WordTrainer, "train_block", fail)
    assert "(continued)" in good(capsys, *TRAIN)
    assert Path("vectors.bin").read_bytes() == Path("expected.bin").read_bytes()
    assert list_names() == ["corpus.txt", "expected.bin", "royal.txt", "vectors.bin"]


def test_a_full_disk_for_the_checkpoint_does_not_lose_the_vectors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*args: object, **settings: object) -> NoReturn:
        raise SafetensorError("I/O error: No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", fail)
    good(capsys, *TRAIN)
    assert "vectors.bin" in list_names()
    monkeypatch.setattr(trainer, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(trainer, "REPORT_SECONDS", 0.0)
    monkeypatch.setattr(trainer, "BLOCK_SIZE", 100)
    line = bad(capsys, *TRAIN, "--out", "v.bin")
    assert "checkpoint.safetensors: not written" in line
    assert "No space left" in line


def test_other_settings_do_not_continue(capsys: pytest.CaptureFixture[str]) -> None:
    Path("vectors.bin.training").mkdir()
    assert "not the folder of a training" in bad(capsys, *TRAIN)
    assert Path("vectors.bin.training").exists()
