"""LoRA as a user meets it: recipes, runs that are killed, `merge`, `show` and `eval`, and mistakes."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import qkv
from qkv.cli import main
from qkv.nn.lora import adapters
from tests.cli.test_cli import bad, good
from tests.conftest import ROOT
from tests.project.test_docs import read
from tests.support import small_data, tiny
from tests.train.test_trainer import check_same_end

FEW = ["--learn.steps", "4", "--learn.warmup", "0", "--learn.log", "2", "--device", "cpu"]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model `bert`, labelled texts and the recipes, as the documents name them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    small_data.write("lora", tmp_path)
    (tmp_path / "base").rename("bert")
    shutil.copyfile("train.tsv", "test.tsv")
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")


def once(*flags: object) -> list[str]:
    """Each flag once, with the last of its values."""
    words = [str(each) for each in flags]
    return [word for pair in dict(zip(words[::2], words[1::2], strict=True)).items() for word in pair]


def trained(capsys: pytest.CaptureFixture[str], run: str = "run", *flags: object) -> str:
    given = ["--data.train", "train.tsv", "--model.load", "bert", "--run", run]
    return good(capsys, "train", "recipes/small/lora.toml", *once(*given, *FEW, *flags))


def logits(made: qkv.Model) -> torch.Tensor:
    with torch.no_grad():
        return made.run(torch.randint(5, 40, (2, 9), generator=torch.Generator().manual_seed(0)))["logits"]


def test_the_documents_commands(capsys: pytest.CaptureFixture[str]) -> None:
    section = read("docs/training.md").partition("## LoRA\n")[2]
    commands = section.partition("```sh\n")[2].partition("```")[0].splitlines()
    assert len(commands) == 6
    for command in commands:
        words = shlex.split(command, comments=True)
        assert words[0] == "qkv"
        good(capsys, *words[1:], *(FEW if words[1] == "train" else ()))
    assert len(adapters(qkv.load("runs/more/last").net)) == 8
    both = [qkv.load(each) for each in ("pets", "same")]
    assert torch.equal(*map(logits, both))
    assert tiny.apart(logits(both[0]), logits(qkv.load("bert", adapter="runs/pets/last"))) < 1e-4


def test_a_run_trains_adapters_and_what_is_new(capsys: pytest.CaptureFixture[str]) -> None:
    out = trained(capsys, "run", "--lora.rank", 2, "--data.valid", 0.2)
    assert re.match(r"model +bert, ([\d,]+) parameters, 6,850 of them learn\n", out)
    for name in ("best", "last"):
        config = json.loads(Path("run", name, "adapter_config.json").read_text())
        assert config["base_model_name_or_path"] == "bert"
        assert config["modules_to_save"] == ["bert.pooler", "classifier"]
        assert (config["r"], config["lora_alpha"]) == (2, 8)
        assert json.loads(Path("run", name, "head.json").read_text())["id2label"] == {
            "0": "other",
            "1": "pet",
        }
        assert not Path("run", name, "config.json").exists()
    made, base = qkv.load("run/last"), qkv.load("bert")
    assert made.tokenizer is not None
    own = dict(made.net.named_parameters())
    held = {name: p for name, p in base.net.named_parameters() if name in own}
    assert len(held) > 30
    assert all(torch.equal(own[name], p) for name, p in held.items())
    assert all(each.lora_b.weight.any() for each in adapters(made.net).values())
    recipe = Path("run", "recipe.toml").read_text()
    assert (
        '[lora]\nrank = 2\nalpha = 8.0\ndrop = 0.0\nroot = false\nwhere = ["q", "v", "up", "down"]\n'
        in recipe
    )


def test_queries_and_values_unless_told(capsys: pytest.CaptureFixture[str]) -> None:
    trained(capsys, "run", "--lora", "{}")
    assert {path.rpartition(".")[2] for path in adapters(qkv.load("run/last").net)} == {"q", "v"}
    trained(capsys, "one", "--lora.where", "feed.*")
    assert {path.rpartition(".")[2] for path in adapters(qkv.load("one/last").net)} == {"up", "down"}


def test_a_frozen_head_is_saved(capsys: pytest.CaptureFixture[str]) -> None:
    trained(capsys, "run", "--learn.freeze", '["heads.*"]')
    layers = ("heads.pooler.dense", "heads.label.out")
    assert {*qkv.load("run/last").beside} == {
        f"{layer}.{end}" for layer in layers for end in ("weight", "bias")
    }


def test_gpt2s_queries_and_values_are_one_tensor(capsys: pytest.CaptureFixture[str]) -> None:
    small_data.texts(Path(), random.Random(0))
    model = qkv.build("gpt2", vocab=60, width=16, depth=2, heads=2, length=32)
    model.tokenizer = qkv.Tokenizer.train(
        [Path("train.txt").read_text()], kind="char", vocab=60, purpose="gpt"
    )
    model.save("gpt2")
    Path("lm.toml").write_text(
        '[model]\nload = "gpt2"\n[data]\ntrain = "train.txt"\nlength = 16\nrows = 4\n'
        '[objective]\nname = "causal-lm"\n[learn]\nsteps = 2\n'
    )
    good(capsys, "train", "lm.toml", "--lora.rank", 2, "--device", "cpu")
    held = load_file("runs/lm/last/adapter_model.safetensors")
    assert held["base_model.model.transformer.h.1.attn.c_attn.lora_B.weight"].shape == (48, 2)
    assert "modules_to_save" in Path("runs/lm/last/adapter_config.json").read_text()
    assert logits(qkv.load("runs/lm/last")).shape == (2, 9, 60)
    flags = ["--lora.where", "q", "--run", "other", "--device", "cpu"]
    assert "lora: transformer.h.0.attn.c_attn holds q,k,v, which need one A together: where='q,k,v'" in bad(
        capsys, "train", "lm.toml", *flags
    )
    assert not Path("other/checkpoints").exists()


def test_a_model_of_the_hub(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named as the user did, and found again in the cache."""
    snapshot = Path("hub/models--some--one/snapshots/abc")
    snapshot.parent.mkdir(parents=True)
    Path("bert").rename(snapshot)
    Path("hub/models--some--one/refs").mkdir()
    Path("hub/models--some--one/refs/main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(Path("hub").absolute()))
    trained(capsys, "run", "--model.load", "some/one")
    assert qkv.load("run/last").base == "some/one"


# --- killed, and moved ---


def test_a_killed_run_goes_on_to_the_bit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    more = ["--lora.drop", "0.2", "--learn.steps", "14", "--learn.save", "1", "--learn.log", "1"]
    trained(capsys, "whole", *more)
    command = [sys.executable, "-m", "qkv", "train", "recipes/small/lora.toml", "--data.train", "train.tsv"]
    command += ["--model.load", "bert", "--run", "parts", *once(*FEW, *more), "--resume", "auto"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
    assert process.stdout is not None
    next(line for line in process.stdout if line.startswith("step  6/14"))
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not Path("parts/last").exists()
    good(capsys, *command[3:])
    check_same_end(tmp_path)
    both = [load_file(f"{run}/last/adapter_model.safetensors") for run in ("whole", "parts")]
    assert both[0].keys() == both[1].keys()
    assert all(torch.equal(x, both[1][name]) for name, x in both[0].items())


def test_a_run_does_not_go_on_with_another_rank(capsys: pytest.CaptureFixture[str]) -> None:
    trained(capsys, "run", "--lora.rank", 2)
    again = ["train", "run/recipe.toml", "--lora.rank", 3, "--resume"]
    assert "lora.rank: 2 -> 3; --resume changed goes on so" in bad(capsys, *again, "auto")
    assert "the checkpoint is of another network: encoder.layers.0.attend.q.lora_a.weight" in bad(
        capsys, *again, "changed"
    )


def test_eval_of_a_run_whose_model_was_moved(capsys: pytest.CaptureFixture[str]) -> None:
    trained(capsys, "run", "--learn.steps", 60)
    asked = ["eval", "run", "--data.test", "test.tsv", "--json"]
    found = json.loads(good(capsys, *asked))
    assert found["model"] == "run/last"
    assert found["values"]["accuracy"] > 0.95
    Path("bert").rename("elsewhere")
    assert "--model.load names the place of the model that run/last is of" in bad(capsys, *asked)
    assert json.loads(good(capsys, *asked, "--model.load", "elsewhere"))["values"] == found["values"]
    said = bad(capsys, "merge", "run/last", "--out", "merged")
    assert said.startswith(
        "run/last: an adapter of 'bert', which is no folder here and not in the hub's cache"
    )


def test_an_adapter_learns_on(capsys: pytest.CaptureFixture[str]) -> None:
    trained(capsys, "run", "--learn.steps", 12)
    recipe = ["train", "run/recipe.toml", "--learn.steps", 2, "--learn.rate", 1e-5, "--lora", ""]
    for number, start in enumerate((["--model.adapter", "run/last"], ["--model.load", "run/last"])):
        good(capsys, *recipe, *start, "--run", f"more{number}")
    one, two = (qkv.load(f"more{number}/last") for number in range(2))
    assert one.base == two.base == "bert"
    assert torch.equal(logits(one), logits(two))
    assert 0 < tiny.apart(logits(one), logits(qkv.load("run/last"))) < 1e-2
    other = ["--data.train", "three.tsv", "--model.adapter", "run/last", "--run", "other"]
    Path("three.tsv").write_text("text\tlabel\na\tone\nb\ttwo\nc\tthree\n")
    assert "labels 3: the model has adapters of another head" in bad(capsys, *recipe, *other)


# --- merge, show, convert ---


def test_merge_writes_a_plain_model(capsys: pytest.CaptureFixture[str]) -> None:
    trained(capsys)
    Path("bert/generation_config.json").write_text("{}")
    out = good(capsys, "merge", "run/last", "--out", "deep/plain")
    assert re.match(
        r"read    bert\nfolded  run/last, 8 layers\nmodel   bert, [\d,]+ parameters, heads: pooler, label\n"
        r"wrote   deep/plain\n        config.json .*\ncopied  generation_config.json\n$",
        out, re.DOTALL,
    )  # fmt: skip
    made, plain = qkv.load("run/last"), qkv.load("deep/plain")
    assert adapters(plain.net) == {}
    assert tiny.apart(logits(plain), logits(made)) < 1e-5
    assert plain.tokenizer is not None
    assert plain.config["id2label"] == {"0": "other", "1": "pet"}
    assert [each.name for each in Path("deep").iterdir()] == ["plain"]
    assert "deep/plain: there is something already; expected a new or an empty folder" in bad(
        capsys, "merge", "run/last", "--out", "deep/plain"
    )


def test_a_merge_that_fails_leaves_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    trained(capsys)
    before = sorted(Path().iterdir())
    with monkeypatch.context() as patch:
        patch.setattr("qkv.model.model.write_json", full)
        assert "No space left" in bad(capsys, "merge", "run/last", "--out", "plain")
    assert sorted(Path().iterdir()) == before


def test_show_draws_adapters(capsys: pytest.CaptureFixture[str]) -> None:
    trained(capsys, "run", "--lora.where", "encoder.layers.1.attend.q", "--lora.rank", 2)
    out = good(capsys, "show", "run/last")
    assert out.count("64 → 64, bias, an adapter of rank 2") == 1
    assert good(capsys, "show", "bert", "--adapter", "run/last").replace("bert", "last") == out.replace(
        "bert", "last"
    )
    assert bad(capsys, "show", "t5", "--adapter", "run/last") == (
        "--adapter run/last with t5: expected the folder of the model that it is of"
    )


def test_mistakes_with_folders(capsys: pytest.CaptureFixture[str]) -> None:
    trained(capsys)
    for command, said in {
        "convert run/last new": "run/last: an adapter; qkv merge run/last --out new folds it into its model",
        "merge bert --out new": "bert: a model, and no adapter to fold into it; expected --adapter and its",
        "merge bert --adapter bert --out new": "bert/adapter_config.json: No such file",
        "merge run/last --adapter run/last --out new": "run/last: an adapter itself, expected a model",
        "merge none/at/all --out new": "none/at/all: no such folder",
        "merge run/last": "--out",
    }.items():
        assert said in bad(capsys, *command.split())
        assert not Path("new").exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--lora.rank", "0"], "lora.rank is 0: expected a whole number, at least 1"),
        (["--lora.rank", "2.5"], "lora.rank is 2.5, expected a whole number"),
        (["--lora.alpha", "-1"], "lora.alpha is -1.0: expected a number, more than 0"),
        (["--lora.drop", "1"], "lora.drop is 1.0: expected a number, at least 0 and less than 1"),
        (["--lora.rnak", "4"], "lora.rnak is unknown; did you mean lora.rank?"),
        (["--lora.where", "3"], "lora.where is 3, expected a text or a list"),
        (["--lora", "8"], "lora is 8, expected a table"),
        (
            ["--lora.where", "quary"],
            "lora: pattern 'quary' matches no linear layer that is not new; nearest: ",
        ),
        (["--lora.where", "heads.label.out"], "matches no linear layer that is not new"),
        (
            ["--lora.where", '["q", "attend.q"]'],
            "lora: no adapter added: encoder.layers.0.attend.q is named twi",
        ),
        (["--model.load", "", "--model.family", "bert"], "lora: an adapter is of no use without its model"),
        (
            ["--model.load", "", "--lora", "", "--model.adapter", "x"],
            "model.adapter: an adapter is of no use",
        ),
        (["--model.adapter", "x"], "lora with model.adapter 'x', which learns on as it is: leave lora out"),
        (["--lora", "", "--model.adapter", "./x"], "./x: no such folder"),
        (["--lora", "", "--model.adapter", "bert"], "bert/adapter_config.json: No such file"),
        (
            ["--learn.optimiser", "muon"],
            "optimiser 'muon': no hidden matrix is left to train, expected adamw",
        ),
    ],
)
def test_mistakes_in_a_recipe(capsys: pytest.CaptureFixture[str], flags: list[str], said: str) -> None:
    given = ["--data.train", "train.tsv", "--model.load", "bert", "--run", "run", "--device", "cpu"]
    assert said in bad(capsys, "train", "recipes/small/lora.toml", *once(*given, *flags))


def test_mistakes_in_the_table_need_no_torch() -> None:
    code = (
        "import sys; from qkv.cli import main; assert main(sys.argv[1:]) == 2 and 'torch' not in sys.modules"
    )
    flags = ["train", "recipes/small/lora.toml", "--lora.rank", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, *flags], env=environment, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_help_names_the_adapter(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("merge", "show"):
        assert main([command, "--help"]) == 0
        assert "--adapter" in capsys.readouterr().out
