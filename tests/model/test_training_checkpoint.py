"""Checkpoints of a run as models: the weights of any step, with config and tokenizer of the run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import qkv
from qkv.weights.safetensors import read_safetensors, write_safetensors
from tests.cli.test_cli import good
from tests.cli.test_train import _home, bad
from tests.support.errors import assert_error

__all__ = ["_home"]  # gives every test its texts and its recipe
STEP = "run/checkpoints/00000002"
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def run(_home: None, tmp_path: Path, capsys: Capture) -> Path:
    arguments = ["--run", "run", "--train.save_every", 2, "--train.keep_checkpoints", 3]
    assert qkv.cli.main([*map(str, ["train", "tiny.toml", *arguments])]) == 0
    capsys.readouterr()
    return tmp_path / "run"


def test_a_checkpoint_is_the_model_of_its_step(run: Path) -> None:
    last, of_last_step, earlier = (
        dict(qkv.load(folder).net.named_parameters())
        for folder in (run / "last", run / "checkpoints/00000006", STEP)
    )
    for name, expected in read_safetensors(Path(STEP) / "net.safetensors").items():
        assert torch.equal(of_last_step[name], last[name])
        assert torch.equal(earlier[name], expected)
        assert not torch.equal(earlier[name], last[name])
    model = qkv.load(STEP)
    assert model.tokenizer is not None
    assert not model.net.training
    model.save("saved")
    inputs = model.tokenizer("the cat", return_tensors="pt")
    assert torch.equal(qkv.load("saved")(**inputs).logits, model(**inputs).logits)


def test_two_steps_are_compared(run: Path, capsys: Capture) -> None:
    arguments = ("the cat", "--model", STEP, "--compare", "run/checkpoints/00000006")
    assert qkv.cli.main(["look", *arguments, "--save", "steps.svg"]) == 0
    assert STEP in Path("steps.svg").read_text()


def test_commands_open_a_checkpoint(run: Path, capsys: Capture) -> None:
    assert "00000002: decoder" in good(capsys, "show", STEP)
    assert json.loads(good(capsys, "tokenizer", "show", STEP, "the cat", "--json"))["tokens"]
    assert "training checkpoint" in good(capsys, "export", STEP, "exported")
    for name, parameter in qkv.load("exported").net.named_parameters():
        assert torch.equal(parameter, qkv.load(STEP).net.get_parameter(name))
    Path("next.toml").write_text(
        f'[model]\nload = "{STEP}"\n[data]\ntrain = "text.txt"\nmax_length = 8\nbatch_size = 2\n'
        '[objective]\nname = "causal-lm"\n[train]\nsteps = 1\n'
    )
    assert qkv.cli.main(["train", "next.toml"]) == 0
    assert qkv.load("runs/next/last").tokenizer is not None


def test_the_average_of_the_weights(tmp_path: Path) -> None:
    """As in the saved models of the run."""
    arguments = ["--run", "average", "--train.save_every", "2", "--train.ema_decay", "0.5"]
    assert qkv.cli.main(["train", "tiny.toml", *arguments]) == 0
    last, checkpoint = (
        qkv.load(f"average/{folder}") for folder in ("last", "checkpoints/00000006")
    )
    raw = read_safetensors(tmp_path / "average/checkpoints/00000006/net.safetensors")
    for name, parameter in checkpoint.net.named_parameters():
        assert torch.equal(parameter, last.net.get_parameter(name))
        assert not torch.equal(parameter, raw[name])


def test_a_model_folder_with_files_of_a_checkpoint_is_a_model(run: Path) -> None:
    for name in ("net.safetensors", "state.json"):
        shutil.copy(Path(STEP) / name, run / "last")
    assert qkv.load(run / "last").tokenizer is not None


@pytest.mark.parametrize("prefix", ["discriminator.", "student."])
def test_the_model_beside_a_network_that_is_trained_with_it(run: Path, prefix: str) -> None:
    tensors = read_safetensors(Path(STEP) / "net.safetensors")
    expected = {name: x.clone() for name, x in tensors.items()}
    others = {"generator.weight": torch.zeros(2)}
    write_safetensors(
        Path(STEP) / "net.safetensors", others | {prefix + name: x for name, x in expected.items()}
    )
    for name, parameter in qkv.load(STEP).net.named_parameters():
        assert torch.equal(parameter, expected[name])


def test_a_run_without_a_model_and_damaged_checkpoints(run: Path, capsys: Capture) -> None:
    path = Path(STEP) / "net.safetensors"
    tensors = {name: x.clone() for name, x in read_safetensors(path).items()}
    name = next(iter(tensors))
    write_safetensors(path, tensors | {name: torch.zeros(1)})
    assert_error(lambda: qkv.load(STEP), "net.safetensors", name, "other shapes")
    path.write_bytes(b"{}")
    assert_error(lambda: qkv.load(STEP), "net.safetensors", "damaged")
    for folder in ("last", "best"):
        shutil.rmtree(run / folder, ignore_errors=True)
    assert "has saved no model yet" in bad(capsys, "look", "the cat", "--model", STEP)
