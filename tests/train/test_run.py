"""The folder of a run: how often it is saved, what it goes on with, and what is refused then."""

from __future__ import annotations

import io
import json
import shutil
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from qkv.cli import main
from qkv.text import Tokenizer
from qkv.train.config import Learn
from qkv.train.recipe import DataPart, LoraPart, ModelPart, ObjectivePart, Recipe, TextPart, parse_recipe
from tests.cli.test_cli import good
from tests.cli.test_train import LABELS, RECIPE, ROOT, _home, bad

__all__ = ["_home"]  # every test has its texts and its recipe
Capture = pytest.CaptureFixture[str]


def saves(**learn: Any) -> int:
    table = "\n".join(f"{name} = {value}" for name, value in learn.items())
    return parse_recipe(RECIPE.partition("[learn]")[0] + f"[learn]\n{table}\n", Path("x.toml")).learn.save


def steps_in(folder: str) -> list[int]:
    lines = [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]
    return [line["step"] for line in lines if line["kind"] == "train"]


def test_a_recipe_that_does_not_say_saves_ten_times() -> None:
    assert saves(steps=1000) == 100
    assert saves(steps=6) == 1
    assert saves(steps=1000, save=0) == 0
    assert saves(steps=1000, save=7) == 7
    with pytest.raises(ValueError, match=r"learn\.save 0, expected from 1 to 24: learn\.last wants 5"):
        saves(steps=100, last=5, keep=5)


@pytest.mark.filterwarnings("default")
def test_a_run_without_a_checkpoint_begins_anew_and_says_so(capsys: Capture) -> None:
    good(capsys, "train", "tiny.toml", "--learn.save", 0)
    shutil.rmtree("runs/tiny/checkpoints")
    assert main(["train", "tiny.toml", "--resume", "auto"]) == 0
    said = "qkv: warning: runs/tiny: no checkpoint to go on from; the run begins anew\n"
    assert capsys.readouterr().err == said
    assert steps_in("runs/tiny") == [2, 4, 6]


def test_a_changed_recipe_is_written_once_it_is_known_to_work(capsys: Capture) -> None:
    good(capsys, "train", "tiny.toml")
    before = Path("runs/tiny/recipe.toml").read_text()
    again = ("train", "tiny.toml", "--resume")
    wider = ("--model.width", 32, "--objective.name", "causal-lm")
    assert "it was: model.width: 16 -> 32; --resume changed" in bad(capsys, *again, "auto", *wider)
    assert "another network" in bad(capsys, *again, "changed", *wider)
    assert "gone.txt: nothing" in bad(capsys, *again, "changed", "--data.train", "gone.txt")
    assert Path("runs/tiny/recipe.toml").read_text() == before
    said = bad(capsys, *again, "changed", "--text.kind", "byte")
    assert "text.kind: 'char' -> 'byte': the run has a tokenizer" in said
    good(capsys, *again, "changed", "--learn.rate", 1e-3)
    assert "rate = 0.001" in Path("runs/tiny/recipe.toml").read_text()


def test_more_steps_are_no_change(capsys: Capture) -> None:
    good(capsys, "train", "tiny.toml")
    good(capsys, "train", "tiny.toml", "--learn.steps", 8, "--resume", "auto")
    assert "learn.steps: 8 -> 4" in bad(capsys, "train", "tiny.toml", "--learn.steps", 4, "--resume", "auto")
    out = good(capsys, "train", "tiny.toml", "--learn.steps", 4, "--resume", "changed")
    assert "done   8 steps, no more than 4 were asked for" in out


@pytest.mark.parametrize(
    ("file", "text", "objective", "words"),
    [
        (
            "a.csv",
            "review,stars\ngood,1\n",
            "label",
            "line 2: no column 'text'; the columns are 'review', 'stars'",
        ),
        ("a.csv", "text;label\ngood;1\n", "label", "line 2: no column 'text'; the columns are 'text;label'"),
        (
            "a.csv",
            "Text,Label\ngood,1\n",
            "masked-lm",
            "line 2: no column 'text'; the columns are 'Text', 'Label'",
        ),
        (
            "a.csv",
            "Text,Label\ngood,1\n",
            "causal-lm",
            "line 2: no column 'text'; the columns are 'Text', 'Label'",
        ),
        ("a.csv", "de,en\ngut,good\n", "seq2seq", "line 2: no column 'source'; the columns are 'de', 'en'"),
        ("a.jsonl", '{"text": 3, "label": 1}\n', "label", "line 1: column 'text' holds 3, expected text"),
    ],
)
def test_a_new_tokenizer_says_which_column_is_missing(
    capsys: Capture, file: str, text: str, objective: str, words: str
) -> None:
    Path(file).write_text(text)
    Path("labels.toml").write_text(LABELS)
    said = bad(capsys, "train", "labels.toml", "--data.train", file, "--objective.name", objective)
    assert f"{file}, {words}" in said


def test_changed_data_is_refused(capsys: Capture) -> None:
    Path("valid.txt").write_text(Path("text.txt").read_text())
    again = ("train", "tiny.toml", "--data.valid", "valid.txt")
    good(capsys, *again)
    good(capsys, *again, "--resume", "auto")
    for name in ("text.txt", "valid.txt"):
        Path(name).write_text(Path(name).read_text() * 2)
        said = bad(capsys, *again, "--learn.steps", 8, "--resume", "auto")
        assert f"the data is not what it was: {name} (size or time); --resume changed" in said
        good(capsys, *again, "--learn.steps", 8, "--resume", "changed")


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("a.csv", "text,label\ngood,1\nbad,\n", "a.csv, line 3: column 'label' holds '', expected a label"),
        (
            "a.jsonl",
            '{"text": "good", "label": 1}\n{"text": "bad", "label": null}\n',
            "a.jsonl, line 2: column 'label' holds None, expected a label",
        ),
        ("a.csv", "text,label\ngood,1\nbad,1\n", "the data has one label alone, '1'; expected two at least"),
    ],
)
def test_labels_that_are_missing_or_alone(capsys: Capture, file: str, text: str, words: str) -> None:
    Path(file).write_text(text)
    Path("labels.toml").write_text(LABELS)
    assert words in bad(capsys, "train", "labels.toml", "--data.train", file)


def test_a_flag_that_is_repeated(capsys: Capture) -> None:
    recipe = parse_recipe(
        RECIPE, Path("x.toml"), "--data.train a --data.test=t --data.train b --data.train=c".split()
    )
    assert recipe.data.train == ["a", "b", "c"]
    assert recipe.data.test == "t"
    for flag, values in {"--learn.rate": (1e-3, 2e-3), "--data.valid": (0.1, "valid.txt")}.items():
        said = bad(capsys, "train", "tiny.toml", flag, values[0], flag, values[1])
        assert f"{flag} is given twice, {values[0]!r} and {values[1]!r}; expected once" in said


@pytest.mark.parametrize(("flag", "value"), [("watch", "'bleu'"), ("patience", "2"), ("write", "5")])
def test_what_is_not_measured_is_not_watched(capsys: Capture, flag: str, value: str) -> None:
    said = bad(capsys, "train", "tiny.toml", "--data.valid", 0.0, f"--learn.{flag}", value)
    assert f"learn.{flag} {value}: nothing is measured; expected data.valid" in said


def test_a_share_of_no_row(capsys: Capture) -> None:
    Path("labels.toml").write_text(LABELS)
    Path("train.jsonl").write_text('{"text": "good", "label": 1}\n{"text": "bad", "label": 0}\n' * 5)
    for share, kept in ((0.001, 0), (0.999, 10)):
        said = bad(capsys, "train", "labels.toml", "--data.valid", share)
        assert f"data.valid {share}: {kept} of 10 rows would be kept and {10 - kept} learned from" in said
    assert "data.valid 0.001: 1 of 1470 tokens" in bad(capsys, "train", "tiny.toml", "--data.valid", 0.001)


def test_a_column_that_is_not_picked_is_told_with_those_of_the_file(capsys: Capture) -> None:
    Path("labels.toml").write_text(LABELS)
    Path("a.csv").write_text("review,stars\ngood,1\nbad,0\n")
    picks = ("--data.train", "a.csv", "--data.columns.text", "review")
    said = bad(capsys, "train", "labels.toml", *picks)
    assert (
        "a.csv, line 2: no column 'label'; the columns are 'review', 'stars'; data.columns picks 'text'"
        in said
    )


def test_standard_input_is_read_once_and_kept(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("labels.toml").write_text(LABELS)
    rows = b'{"text": "good", "label": 1}\n{"text": "bad", "label": 0}\n' * 5
    command = ("train", "labels.toml", "--data.train", "-", "--data.form", "jsonl", "--learn.steps")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(rows)))
    assert "data.train and data.valid are standard input" in bad(capsys, *command, 2, "--data.valid", "-")
    assert "data       -, 10 documents" in good(capsys, *command, 2, "--data.valid", 0.2)
    out = good(capsys, *command, 4, "--data.valid", 0.2, "--resume", "auto")
    assert "done   4 of 4 steps" in out
    assert Path("runs/labels/stdin").read_bytes() == rows


def test_the_documentation_names_every_setting(capsys: Capture) -> None:
    page = (ROOT / "docs" / "training.md").read_text()
    table = page[page.index("| table | says |") : page.index("An unknown key")]
    parts = (Recipe, ModelPart, TextPart, DataPart, ObjectivePart, Learn, LoraPart)
    names = {each.name for part in parts for each in fields(part)} - {"changes", "settings"}
    assert not {name for name in names if f"`{name}`" not in table}
    shown = good(capsys, "train", "--help")
    assert "--run" in shown
    assert "--device" in shown


@pytest.mark.parametrize(
    "flags",
    [("--data.rows", 16), ("--learn.average", 0.9), ("--learn.freeze", '["embed.*"]')],
)
def test_goes_on_with_what_was_changed(flags: tuple[str, object], capsys: Capture) -> None:
    good(capsys, "train", "tiny.toml")
    out = good(capsys, "train", "tiny.toml", "--resume", "changed", "--learn.steps", 9, *flags)
    assert "done   9 of 9 steps" in out


def test_another_optimiser_cannot_go_on(capsys: Capture) -> None:
    good(capsys, "train", "tiny.toml")
    again = ("train", "tiny.toml", "--resume", "changed", "--learn.steps", 9, "--learn.optimiser", "muon")
    assert "the checkpoint has what adamw remembers, expected adamw" in bad(capsys, *again)


def test_standard_input_of_a_run_that_never_began_is_kept(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("labels.toml").write_text(LABELS)
    rows = b'{"text": "good", "label": 1}\n{"text": "bad", "label": 0}\n' * 5
    Path("runs/labels").mkdir(parents=True)
    Path("runs/labels/stdin").write_bytes(rows)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    command = ("train", "labels.toml", "--data.train", "-", "--data.form", "jsonl", "--data.valid", 0.2)
    good(capsys, *command, "--learn.steps", 2, "--resume", "auto")
    assert Path("runs/labels/stdin").read_bytes() == rows


def test_a_tokenizer_of_texts_that_were_mended_is_made_anew(capsys: Capture) -> None:
    for letter in "ab":
        Path("text.txt").write_text(letter * 9)  # too short for a row
        assert "runs/tiny" not in bad(capsys, "train", "tiny.toml", "--data.length", 1000)
        known = Tokenizer.load("runs/tiny/tokenizer")
        assert known.decode(known.encode("ab").ids).strip("[UNK] ") == letter


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--objective.source", 3, "--objective.name", "seq2seq"), "objective.source is 3, expected a text"),
        (("--text.vocab", -3), "vocab -3, sentinels 0: expected more tokens"),
        (("--text.sentinels", -1), "sentinels -1: expected more tokens than sentinels"),
    ],
)
def test_settings_that_are_none(flags: tuple[object, ...], said: str, capsys: Capture) -> None:
    assert said in bad(capsys, "train", "tiny.toml", *flags)
