"""The run folder: default checkpoints, resuming, and errors."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from qkv.cli import main
from qkv.text import Tokenizer
from qkv.train.config import TrainConfig
from qkv.train.recipe import (
    DataConfig,
    LoraConfig,
    ModelConfig,
    ObjectiveConfig,
    Recipe,
    TokenizerConfig,
    parse_recipe,
    read_recipe,
)
from qkv.train.run_folder import lock_run_folder
from tests.cli.test_cli import good
from tests.cli.test_train import LABELS, RECIPE, ROOT, _home, bad

__all__ = ["_home"]  # gives every test its texts and its recipe
Capture = pytest.CaptureFixture[str]


def get_save_every(**settings: Any) -> int:
    table = "\n".join(f"{name} = {value}" for name, value in settings.items())
    text = RECIPE.partition("[train]")[0] + f"[train]\n{table}\n"
    return parse_recipe(text, Path("x.toml")).train.save_interval


def read_train_steps(folder: str) -> list[int]:
    lines = [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]
    return [line["step"] for line in lines if line["phase"] == "train"]


def test_default_save_every_is_a_tenth_of_the_steps() -> None:
    assert get_save_every(steps=1000) == 100
    assert get_save_every(steps=6) == 1
    assert get_save_every(steps=1000, save_every=0) == 0
    assert get_save_every(steps=1000, save_every=7) == 7
    with pytest.raises(
        ValueError, match=r"train\.save_every 0, expected from 1 to 24: train\.average_last needs 5"
    ):
        get_save_every(steps=100, average_last=5, keep_checkpoints=5)


def test_epochs(capsys: Capture) -> None:
    command = ("train", "tiny.toml", "--train.steps", "", "--train.log_every", 1)
    out = good(capsys, *command, "--train.epochs", 2)
    steps = read_train_steps("runs/tiny")
    assert re.search(rf"steps +{len(steps):,} in 2 epochs", out)
    assert f"{len(steps):,} of {len(steps):,} steps" in out
    recipe = read_recipe(Path("runs/tiny/recipe.toml"))
    assert (recipe.train.steps, recipe.train.epochs) == (None, 2)
    good(capsys, *command, "--train.epochs", 3, "--resume", "auto")
    assert len(read_train_steps("runs/tiny")) > len(steps)
    error = bad(capsys, *command, "--train.epochs", 1, "--resume", "auto")
    assert "train.epochs: 3 -> 1" in error
    error = bad(capsys, "train", "tiny.toml", "--train.epochs", 2)
    assert re.search(r"train.steps \d+ and train.epochs 2, expected only one of them", error)
    error = bad(capsys, "train", "tiny.toml", "--train.steps", "")
    assert "train.steps is missing; set it, or train.epochs" in error


@pytest.mark.filterwarnings("default")
def test_run_without_checkpoint_starts_over_with_a_warning(capsys: Capture) -> None:
    good(capsys, "train", "tiny.toml", "--train.save_every", 0)
    shutil.rmtree("runs/tiny/checkpoints")
    assert main(["train", "tiny.toml", "--resume", "auto"]) == 0
    warning = "qkv: warning: runs/tiny: no checkpoint to resume from; training starts from the beginning\n"
    assert capsys.readouterr().err == warning
    assert read_train_steps("runs/tiny") == [2, 4, 6]


def test_changed_recipe_is_written_only_if_it_works(capsys: Capture) -> None:
    good(capsys, "train", "tiny.toml")
    before = Path("runs/tiny/recipe.toml").read_text()
    command = ("train", "tiny.toml", "--resume")
    changes = ("--model.width", 32, "--objective.name", "causal-lm")
    assert "the recipe has changed: model.width: 16 -> 32; --resume changed" in bad(
        capsys, *command, "auto", *changes
    )
    assert "another network" in bad(capsys, *command, "changed", *changes)
    assert "gone.txt: no files found" in bad(
        capsys, *command, "changed", "--data.train", "gone.txt"
    )
    assert Path("runs/tiny/recipe.toml").read_text() == before
    error = bad(capsys, *command, "changed", "--tokenizer.type", "byte")
    assert "tokenizer.type: 'char' -> 'byte': the tokenizer of a run cannot change" in error
    good(capsys, *command, "changed", "--train.lr", 1e-3)
    assert "lr = 0.001" in Path("runs/tiny/recipe.toml").read_text()


def test_more_steps_do_not_count_as_a_change(capsys: Capture) -> None:
    good(capsys, "train", "tiny.toml")
    good(capsys, "train", "tiny.toml", "--train.steps", 8, "--resume", "auto")
    assert "train.steps: 8 -> 4" in bad(
        capsys, "train", "tiny.toml", "--train.steps", 4, "--resume", "auto"
    )
    out = good(capsys, "train", "tiny.toml", "--train.steps", 4, "--resume", "changed")
    assert "done   8 steps, more than the 4 of the recipe" in out


@pytest.mark.parametrize(
    ("file", "text", "objective", "message"),
    [
        (
            "a.csv",
            "review,stars\ngood,1\n",
            "sequence-classification",
            "line 2: no column 'text'; the columns are 'review', 'stars'",
        ),
        (
            "a.csv",
            "text;label\ngood;1\n",
            "sequence-classification",
            "line 2: no column 'text'; the columns are 'text;label'",
        ),
        (
            "a.csv",
            "Phrase,Label\ngood,1\n",
            "masked-lm",
            "line 2: no column 'text'; the columns are 'Phrase', 'Label'",
        ),
        (
            "a.csv",
            "Phrase,Label\ngood,1\n",
            "causal-lm",
            "line 2: no column 'text'; the columns are 'Phrase', 'Label'",
        ),
        (
            "a.csv",
            "de,en\ngut,good\n",
            "seq2seq",
            "line 2: no column 'source'; the columns are 'de', 'en'",
        ),
        (
            "a.jsonl",
            '{"text": 3, "label": 1}\n',
            "sequence-classification",
            "line 1: column 'text' holds 3, expected text",
        ),
    ],
)
def test_tokenizer_training_names_the_missing_column(
    capsys: Capture, file: str, text: str, objective: str, message: str
) -> None:
    Path(file).write_text(text)
    Path("labels.toml").write_text(LABELS)
    error = bad(capsys, "train", "labels.toml", "--data.train", file, "--objective.name", objective)
    assert f"{file}, {message}" in error


def test_error_for_changed_data(capsys: Capture) -> None:
    Path("valid.txt").write_text(Path("text.txt").read_text())
    command = ("train", "tiny.toml", "--data.validation", "valid.txt")
    good(capsys, *command)
    good(capsys, *command, "--resume", "auto")
    for name in ("text.txt", "valid.txt"):
        Path(name).write_text(Path(name).read_text() * 2)
        error = bad(capsys, *command, "--train.steps", 8, "--resume", "auto")
        assert f"the data has changed: {name} (size or time); --resume changed" in error
        good(capsys, *command, "--train.steps", 8, "--resume", "changed")


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (
            "a.csv",
            "text,label\ngood,1\nbad,\n",
            "a.csv, line 3: column 'label' holds '', expected a label",
        ),
        (
            "a.jsonl",
            '{"text": "good", "label": 1}\n{"text": "bad", "label": null}\n',
            "a.jsonl, line 2: column 'label' holds None, expected a label",
        ),
        (
            "a.csv",
            "text,label\ngood,1\nbad,1\n",
            "the training data has only one label, '1'; expected two or more",
        ),
    ],
)
def test_errors_for_labels(capsys: Capture, file: str, text: str, message: str) -> None:
    Path(file).write_text(text)
    Path("labels.toml").write_text(LABELS)
    assert message in bad(capsys, "train", "labels.toml", "--data.train", file)


def test_repeated_flags(capsys: Capture) -> None:
    recipe = parse_recipe(
        RECIPE, Path("x.toml"), "--data.train a --data.test=t --data.train b --data.train=c".split()
    )
    assert recipe.data.train == ["a", "b", "c"]
    assert recipe.data.test == "t"
    for flag, values in {
        "--train.lr": (1e-3, 2e-3),
        "--data.validation": (0.1, "valid.txt"),
    }.items():
        error = bad(capsys, "train", "tiny.toml", flag, values[0], flag, values[1])
        assert f"{flag} is given twice, {values[0]!r} and {values[1]!r}; expected once" in error


@pytest.mark.parametrize(
    ("flag", "value"), [("best_metric", "'bleu'"), ("patience", "2"), ("eval_generate", "5")]
)
def test_error_for_settings_that_need_validation_data(
    capsys: Capture, flag: str, value: str
) -> None:
    error = bad(capsys, "train", "tiny.toml", "--data.validation", 0.0, f"--train.{flag}", value)
    assert f"train.{flag} {value}: there is no validation data; set data.validation" in error


def test_error_for_a_validation_fraction_without_rows(capsys: Capture) -> None:
    Path("labels.toml").write_text(LABELS)
    Path("train.jsonl").write_text(
        '{"text": "good", "label": 1}\n{"text": "bad", "label": 0}\n' * 5
    )
    for fraction, count in ((0.001, 0), (0.999, 10)):
        error = bad(capsys, "train", "labels.toml", "--data.validation", fraction)
        assert (
            f"data.validation {fraction}: it would hold out {count} of 10 rows and train on {10 - count}"
            in error
        )
    assert "data.validation 0.001: it would hold out 1 of 1470 tokens" in bad(
        capsys, "train", "tiny.toml", "--data.validation", 0.001
    )


def test_error_names_the_columns_of_the_file(capsys: Capture) -> None:
    Path("labels.toml").write_text(LABELS)
    Path("a.csv").write_text("review,stars\ngood,1\nbad,0\n")
    flags = ("--data.train", "a.csv", "--data.columns.text", "review")
    error = bad(capsys, "train", "labels.toml", *flags)
    assert (
        "a.csv, line 2: no column 'label'; the columns are 'review', 'stars'; data.columns selects 'text'"
        in error
    )


def test_standard_input_is_saved_in_the_run_folder(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("labels.toml").write_text(LABELS)
    rows = b'{"text": "good", "label": 1}\n{"text": "bad", "label": 0}\n' * 5
    command = (
        "train",
        "labels.toml",
        "--data.train",
        "-",
        "--data.format",
        "jsonl",
        "--train.steps",
    )
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(rows)))
    assert "data.train and data.validation are both standard input" in bad(
        capsys, *command, 2, "--data.validation", "-"
    )
    assert "data       -, 10 documents" in good(capsys, *command, 2, "--data.validation", 0.2)
    out = good(capsys, *command, 4, "--data.validation", 0.2, "--resume", "auto")
    assert "done   4 of 4 steps" in out
    assert Path("runs/labels/stdin").read_bytes() == rows


def test_documentation_names_every_setting(capsys: Capture) -> None:
    page = (ROOT / "docs" / "training.md").read_text()
    table = page[page.index("| table | keys |") : page.index("An unknown key")]
    configs = (
        Recipe,
        ModelConfig,
        TokenizerConfig,
        DataConfig,
        ObjectiveConfig,
        TrainConfig,
        LoraConfig,
    )
    names = {item.name for config in configs for item in fields(config)} - {"overrides", "settings"}
    assert not {name for name in names if f"`{name}`" not in table}
    help_text = good(capsys, "train", "--help")
    assert "--run" in help_text
    assert "--device" in help_text


@pytest.mark.parametrize(
    "flags",
    [("--data.batch_size", 16), ("--train.ema_decay", 0.9), ("--train.freeze", '["embedding.*"]')],
)
def test_resume_with_changed_settings(flags: tuple[str, object], capsys: Capture) -> None:
    good(capsys, "train", "tiny.toml")
    out = good(capsys, "train", "tiny.toml", "--resume", "changed", "--train.steps", 9, *flags)
    assert "done   9 of 9 steps" in out


def test_error_for_resuming_with_another_optimizer(capsys: Capture) -> None:
    good(capsys, "train", "tiny.toml")
    command = (
        "train",
        "tiny.toml",
        "--resume",
        "changed",
        "--train.steps",
        9,
        "--train.optimizer",
        "muon",
    )
    assert "the checkpoint has the state of adamw, expected adamw" in bad(capsys, *command)


def test_saved_standard_input_of_an_unstarted_run_is_kept(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("labels.toml").write_text(LABELS)
    rows = b'{"text": "good", "label": 1}\n{"text": "bad", "label": 0}\n' * 5
    with lock_run_folder(Path("runs/labels")):
        Path("runs/labels/stdin").write_bytes(rows)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    command = (
        "train",
        "labels.toml",
        "--data.train",
        "-",
        "--data.format",
        "jsonl",
        "--data.validation",
        0.2,
    )
    good(capsys, *command, "--train.steps", 2, "--resume", "auto")
    assert Path("runs/labels/stdin").read_bytes() == rows


def test_stale_tokenizer_is_trained_again(capsys: Capture) -> None:
    with lock_run_folder(Path("runs/tiny")):  # a failed start removes only a folder that it created
        pass
    for letter in "ab":
        Path("text.txt").write_text(letter * 9)  # too short for a row
        assert "runs/tiny" not in bad(capsys, "train", "tiny.toml", "--data.max_length", 1000)
        tokenizer = Tokenizer.load("runs/tiny/tokenizer")
        assert (
            tokenizer.decode(tokenizer.encode("ab"), skip_special_tokens=True).strip("[UNK] ")
            == letter
        )


@pytest.mark.parametrize(
    ("flag", "hint"),
    [
        ("train.learning_rate", "train.lr"),
        ("train.max_steps", "train.steps"),
        ("train.num_train_epochs", "train.epochs"),
        ("data.batch", "data.batch_size"),
        ("lora.rank", "lora.r"),
    ],
)
def test_names_from_elsewhere_get_a_hint(flag: str, hint: str, capsys: Capture) -> None:
    error = bad(capsys, "train", "tiny.toml", f"--{flag}", 1)
    assert f"is unknown; did you mean {hint}?" in error


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ("--objective.source", 3, "--objective.name", "seq2seq"),
            "objective.source is 3, expected a text",
        ),
        (("--tokenizer.vocab_size", -3), "vocab_size -3, num_sentinels 0: expected more tokens"),
        (
            ("--tokenizer.num_sentinels", -1),
            "num_sentinels -1: expected more tokens than sentinels",
        ),
    ],
)
def test_errors_for_wrong_settings(
    flags: tuple[object, ...], message: str, capsys: Capture
) -> None:
    assert message in bad(capsys, "train", "tiny.toml", *flags)
