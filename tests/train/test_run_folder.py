"""The run folder: only folders of runs are written to, and whatever a kill leaves, the run goes on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qkv.cli import main
from qkv.text import Tokenizer
from qkv.train.loop import checkpoint
from qkv.train.run_folder import (
    MARK_FILE,
    lock_run_folder,
    read_recipe_text,
    remove_leftovers,
    write_recipe,
)
from tests.cli.test_cli import good
from tests.cli.test_train import ROOT, _home, bad
from tools.attack.file_events import run_at_every_event

__all__ = ["_home"]  # gives every test its texts and its recipe
Capture = pytest.CaptureFixture[str]
RESUME = ("train", "tiny.toml", "--resume", "auto")
Files = dict[str, tuple[int, bytes]]


def read_files(folder: Path) -> Files:
    """Return the modification times and contents of all files."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("flags", [(), ("--resume", "auto"), ("--resume", "changed")])
def test_folder_of_others_is_refused(flags: tuple[str, ...], capsys: Capture) -> None:
    """A folder with the names of a run's files, even a checkpoints folder, is not a run."""
    for name in ("tokenizer/vocab.json", "checkpoints/00000001/state.json", "loss.svg", "last/a"):
        Path("mine", name).parent.mkdir(parents=True, exist_ok=True)
        Path("mine", name).write_text("{}")
    shutil.copy("tiny.toml", "mine/recipe.toml")
    before = read_files(Path())
    for folder, recipe in (("mine", "mine/recipe.toml"), (".", "tiny.toml")):
        error = bad(capsys, "train", recipe, "--run", folder, *flags)
        assert error.startswith(f"{folder}: not empty, and not the folder of a run; expected a new")
        assert read_files(Path()) == before


def test_empty_folders_and_links(capsys: Capture) -> None:
    Path("empty").mkdir()
    Path("link").symlink_to("empty")
    Path("dangling").symlink_to("nowhere")
    good(capsys, "train", "tiny.toml", "--run", "link")
    assert Path("empty/last/model.safetensors").exists()
    assert "already contains a run" in bad(capsys, "train", "tiny.toml", "--run", "empty")
    good(capsys, *RESUME, "--run", "link")
    assert "dangling: File exists" in bad(capsys, "train", "tiny.toml", "--run", "dangling")
    assert not Path("nowhere").exists()


@pytest.mark.parametrize("run", ["", "a\nb", "a\x7fb", "\x1b[2J", "a\x85"])
def test_run_is_a_plain_path(run: str, capsys: Capture) -> None:
    before = read_files(Path())
    error = bad(capsys, "train", "tiny.toml", "--run", run)
    assert repr(run)[1:-1] in error
    assert "expected the path of a folder, without control characters" in error
    assert read_files(Path()) == before


@pytest.mark.filterwarnings("default")
def test_run_of_an_earlier_version_is_marked(capsys: Capture) -> None:
    good(capsys, "train", "tiny.toml", "--train.steps", 8)
    expected = Path("runs/tiny/last/model.safetensors").read_bytes()
    shutil.rmtree("runs")
    good(capsys, "train", "tiny.toml")
    Path("runs/tiny", MARK_FILE).unlink()
    assert "runs/tiny: already contains a run" in bad(capsys, "train", "tiny.toml")
    assert not Path("runs/tiny", MARK_FILE).exists()
    assert main([*RESUME, "--train.steps", "8"]) == 0
    warning = "runs/tiny: a run of an earlier version; .qkv-run now marks it as a run folder"
    assert capsys.readouterr().err == f"qkv: warning: {warning}\n"
    assert Path("runs/tiny", MARK_FILE).exists()
    # The schedule of 8 steps differs from that of 6: the run goes on, it is not repeated.
    assert Path("runs/tiny/last/model.safetensors").read_bytes() != expected


def test_failed_start_removes_only_own_files(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(recipe: object, folder: Path, *more: object) -> None:
        (folder / "notes.txt").write_text("written meanwhile")
        (folder / "data").mkdir()
        raise ValueError("no")

    monkeypatch.setattr("qkv.train.run.prepare_training", fail)
    assert bad(capsys, "train", "tiny.toml") == "no"
    assert [path.name for path in Path("runs/tiny").iterdir()] == ["notes.txt"]


def test_resumed_run_does_not_rewrite_its_recipe(capsys: Capture) -> None:
    good(capsys, "train", "tiny.toml")
    recipe = Path("runs/tiny/recipe.toml")
    before = recipe.stat()
    good(capsys, *RESUME)
    assert (recipe.stat().st_ino, recipe.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_recipe_is_replaced_in_one_step(tmp_path: Path) -> None:
    """A kill while a resumed run writes a changed recipe leaves the old one or the new one."""
    run = tmp_path / "run"
    run.mkdir()
    texts = []
    for ending in run_at_every_event(
        lambda: write_recipe(run, "new"), run, reset=lambda: write_recipe(run, "old")
    ):
        assert ending.signal == (9 if ending.reached else 0)
        texts.append(read_recipe_text(run))
    assert set(texts[:-1]) == {"old", "new"}
    assert texts[-1] == "new"
    remove_leftovers(run)
    assert [path.name for path in run.iterdir()] == ["recipe.toml"]


def test_damaged_recipe_of_a_run(capsys: Capture) -> None:
    """Without its recipe, nothing tells whether a run would go on with the same settings."""
    good(capsys, "train", "tiny.toml")
    recipe = Path("runs/tiny/recipe.toml")
    text = recipe.read_text()
    for damage in (lambda: recipe.write_text(""), lambda: recipe.unlink()):
        damage()
        error = bad(capsys, *RESUME)
        assert "runs/tiny/recipe.toml: " in error
        assert "--resume changed accepts the recipe of this command" in error
        good(capsys, "train", "tiny.toml", "--resume", "changed")
        assert recipe.read_text() == text


def test_torn_line_of_metrics_is_cut(capsys: Capture) -> None:
    good(capsys, "train", "tiny.toml")
    metrics = Path("runs/tiny/metrics.jsonl")
    old_lines = metrics.read_bytes()
    metrics.write_bytes(old_lines + b'{"step": 7, "ph\xff')
    good(capsys, *RESUME, "--train.steps", 8)
    assert metrics.read_bytes().startswith(old_lines)
    steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
    assert steps == [2, 3, 4, 6, 6, 8, 8]


def test_leftovers_are_swept(capsys: Capture) -> None:
    good(capsys, "train", "tiny.toml")
    run = Path("runs/tiny")
    before = {str(path) for path in run.rglob("*")}
    leftovers = ["checkpoints/.00000003.tmp", ".tokenizer.tmp", ".qkv-save-0123456789abcdef/files"]
    for name in leftovers:
        (run / name).mkdir(parents=True)
    (run / "notes.tmp").write_text("not ours")
    good(capsys, *RESUME)
    assert {str(path) for path in run.rglob("*")} == before | {str(run / "notes.tmp")}


def test_pretrained_tokenizer_is_copied_again(capsys: Capture) -> None:
    """A tokenizer that changed after an interrupted preparation is not mixed with a new model."""
    for vocab, folder in (("ab", "base"), ("cdefg", "other")):
        Tokenizer.train([vocab], type="char", template="plain").save(folder)
    flags = ("train", "tiny.toml", "--tokenizer", "{}", "--tokenizer.load", "base")
    with lock_run_folder(Path("runs/tiny")):
        pass
    assert "expected at least" in bad(capsys, *flags, "--data.max_length", 9999)
    assert Path("runs/tiny/tokenizer").exists()
    shutil.rmtree("base")
    Path("other").rename("base")
    bad(capsys, *flags, "--data.max_length", 9999)
    names = "tokenizer.json", "tokenizer_config.json"
    for name in names:
        assert Path("runs/tiny/tokenizer", name).read_bytes() == Path("base", name).read_bytes()


@pytest.mark.parametrize("target", ["metrics", "best"])
def test_folder_that_vanishes(
    target: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing creates it again."""
    if target == "metrics":
        write_checkpoint = checkpoint.write_checkpoint

        def vanish(*arguments: Any, **settings: Any) -> None:
            write_checkpoint(*arguments, **settings)
            shutil.rmtree("runs")

        monkeypatch.setattr(checkpoint, "write_checkpoint", vanish)
    else:
        monkeypatch.setattr("qkv.train.loop.trainer.is_better", lambda *_, **__: vanish_folder())

        def vanish_folder() -> bool:
            shutil.rmtree("runs")
            return True

    error = bad(capsys, "train", "tiny.toml", "--train.save_every", "1")
    assert error.startswith("runs/tiny: the run folder was removed or moved during training; ")
    assert not Path("runs").exists()


def test_checkpoint_is_renamed_before_it_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed while it removes a checkpoint leaves no part of it under its name."""
    removed: list[str] = []
    monkeypatch.setattr("qkv.train.loop.checkpoint.shutil.rmtree", make_recorder(removed))
    root = tmp_path / "checkpoints"
    for step in (1, 2, 3):
        checkpoint.write_checkpoint(root, step, {}, {}, keep_checkpoints=2)
    assert ".00000001.tmp" in removed
    assert [path.name for path in checkpoint.list_checkpoints(root)] == ["00000002", "00000003"]
    monkeypatch.undo()
    checkpoint.remove_partial_checkpoints(root)
    assert {path.name for path in root.iterdir()} == {"00000002", "00000003"}


def make_recorder(names: list[str]) -> Callable[..., None]:
    return lambda path, **_: names.append(path.name)


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("causal-lm", ["--torn"]),
        pytest.param("replaced-token-detection", [], marks=pytest.mark.slow),
    ],
)
def test_kill_at_every_file_event(name: str, flags: list[str]) -> None:
    """The same command resumes a run from what a kill leaves, and ends with the same files."""
    process = subprocess.run(
        [sys.executable, "-m", "tools.attack.training_kills", name, *flags],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True, capture_output=True,
        check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stdout + process.stderr
    assert process.stdout.endswith(" states, 0 problems\n")
