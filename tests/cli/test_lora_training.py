"""LoRA on the command line: recipes, resumed runs, `merge`, `show`, `eval` and errors."""

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
from qkv.nn.lora import lora_layers
from tests.cli.test_cli import bad, good
from tests.conftest import ROOT
from tests.project.test_docs import read
from tests.support import compare
from tests.train.test_trainer import check_same_end
from tools import small_data

FEW = [
    "--train.steps",
    "4",
    "--train.warmup_steps",
    "0",
    "--train.log_every",
    "2",
    "--device",
    "cpu",
]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model `bert` and labeled texts, as the documentation names them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    small_data.write_data("lora", tmp_path)
    (tmp_path / "base").rename("bert")
    shutil.copyfile("train.tsv", "test.tsv")


def once(*flags: object) -> list[str]:
    """Return each flag once, with the last of its values."""
    words = [*map(str, flags)]
    return [
        word for pair in dict(zip(words[::2], words[1::2], strict=True)).items() for word in pair
    ]


def trained(capsys: pytest.CaptureFixture[str], run: str = "run", *flags: object) -> str:
    flags_before = ["--data.train", "train.tsv", "--model.load", "bert", "--run", run]
    return good(capsys, "train", "small/lora", *once(*flags_before, *FEW, *flags))


def logits(model: qkv.Model) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.randint(5, 40, (2, 9), generator=torch.Generator().manual_seed(0)))[
            "logits"
        ]


def test_the_commands_of_the_documentation(capsys: pytest.CaptureFixture[str]) -> None:
    section = read("docs/training.md").partition("## LoRA\n")[2]
    commands = section.partition("```sh\n")[2].partition("```")[0].splitlines()
    assert len(commands) == 6
    for command in commands:
        words = shlex.split(command, comments=True)
        assert words[0] == "qkv"
        good(capsys, *words[1:], *(FEW if words[1] == "train" else ()))
    assert len(lora_layers(qkv.load("runs/more/last").net)) == 8
    pair = [qkv.load(name) for name in ("pets", "same")]
    compare.assert_bitwise_equal(*map(logits, pair), because=compare.SAME_KERNELS)
    assert (
        compare.max_difference(logits(pair[0]), logits(qkv.load("bert", adapter="runs/pets/last")))
        < 1e-4
    )


def test_a_run_trains_adapters_and_the_new_head(capsys: pytest.CaptureFixture[str]) -> None:
    out = trained(capsys, "run", "--lora.r", 2, "--data.validation", 0.2)
    assert re.match(r"model +bert, ([\d,]+) parameters, 6,850 trainable\n", out)
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
    adapted = qkv.load("run/last")
    base = qkv.load("bert")
    assert adapted.tokenizer is not None
    parameters = dict(adapted.net.named_parameters())
    base_parameters = {name: p for name, p in base.net.named_parameters() if name in parameters}
    assert len(base_parameters) > 30
    compare.assert_bitwise_equal(
        {name: parameters[name] for name in base_parameters},
        base_parameters,
        because=compare.UNWRITTEN,
    )
    assert all(layer.lora_b.weight.any() for layer in lora_layers(adapted.net).values())
    recipe = Path("run", "recipe.toml").read_text()
    assert (
        "[lora]\nr = 2\nlora_alpha = 8.0\nlora_dropout = 0.0\nuse_rslora = false\n"
        'target_modules = ["q", "v", "up", "down"]\n' in recipe
    )


def test_queries_and_values_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    trained(capsys, "run", "--lora", "{}")
    assert {path.rpartition(".")[2] for path in lora_layers(qkv.load("run/last").net)} == {"q", "v"}
    trained(capsys, "one", "--lora.target_modules", "feed_forward.*")
    assert {path.rpartition(".")[2] for path in lora_layers(qkv.load("one/last").net)} == {
        "up",
        "down",
    }


def test_a_frozen_head_is_saved(capsys: pytest.CaptureFixture[str]) -> None:
    trained(capsys, "run", "--train.freeze", '["heads.*"]')
    layers = ("heads.pooler.dense", "heads.sequence_classification.out")
    assert {*qkv.load("run/last").adapter_parameters_to_save} == {
        f"{layer}.{end}" for layer in layers for end in ("weight", "bias")
    }


def test_gpt2s_queries_and_values_are_one_tensor(capsys: pytest.CaptureFixture[str]) -> None:
    small_data.write_texts(Path(), random.Random(0))
    model = qkv.build("gpt2", vocab_size=60, width=16, depth=2, heads=2, max_positions=32)
    model.tokenizer = qkv.Tokenizer.train(
        [Path("train.txt").read_text()], type="char", vocab_size=60, template="gpt"
    )
    model.save("gpt2")
    Path("lm.toml").write_text(
        '[model]\nload = "gpt2"\n[data]\ntrain = "train.txt"\nmax_length = 16\nbatch_size = 4\n'
        '[objective]\nname = "causal-lm"\n[train]\nsteps = 2\n'
    )
    good(capsys, "train", "lm.toml", "--lora.r", 2, "--device", "cpu")
    tensors = load_file("runs/lm/last/adapter_model.safetensors")
    assert tensors["base_model.model.transformer.h.1.attn.c_attn.lora_B.weight"].shape == (48, 2)
    assert "modules_to_save" in Path("runs/lm/last/adapter_config.json").read_text()
    assert logits(qkv.load("runs/lm/last")).shape == (2, 9, 60)
    flags = ["--lora.target_modules", "q", "--run", "other", "--device", "cpu"]
    assert (
        "lora: transformer.h.0.attn.c_attn contains q,k,v, which must share one A: set target_modules='q,k,v'"
        in bad(capsys, "train", "lm.toml", *flags)
    )
    assert not Path("other/checkpoints").exists()


def test_a_model_of_the_hub(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The adapter names its model by hub id, which is found in the cache."""
    snapshot = Path("hub/models--some--one/snapshots/abc")
    snapshot.parent.mkdir(parents=True)
    Path("bert").rename(snapshot)
    Path("hub/models--some--one/refs").mkdir()
    Path("hub/models--some--one/refs/main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(Path("hub").absolute()))
    trained(capsys, "run", "--model.load", "some/one")
    assert qkv.load("run/last").base_model_name == "some/one"


# --- killed and moved runs ---


def test_a_killed_run_resumes_exactly(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    more = [
        "--lora.lora_dropout",
        "0.2",
        "--train.steps",
        "14",
        "--train.save_every",
        "1",
        "--train.log_every",
        "1",
    ]
    trained(capsys, "uninterrupted", *more)
    command = [
        sys.executable,
        "-m",
        "qkv",
        "train",
        "small/lora",
        "--data.train",
        "train.tsv",
    ]
    command += [
        "--model.load",
        "bert",
        "--run",
        "interrupted",
        *once(*FEW, *more),
        "--resume",
        "auto",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
    assert process.stdout is not None
    next(line for line in process.stdout if line.startswith("step  6/14"))
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not Path("interrupted/last").exists()
    good(capsys, *command[3:])
    check_same_end(tmp_path)
    pair = [
        load_file(f"{run}/last/adapter_model.safetensors")
        for run in ("uninterrupted", "interrupted")
    ]
    compare.assert_bitwise_equal(pair[1], pair[0], because=compare.RESUMED)


def test_a_run_does_not_resume_with_another_rank(capsys: pytest.CaptureFixture[str]) -> None:
    trained(capsys, "run", "--lora.r", 2)
    command = ["train", "run/recipe.toml", "--lora.r", 3, "--resume"]
    assert "lora.r: 2 -> 3; --resume changed" in bad(capsys, *command, "auto")
    assert (
        "the checkpoint is of another network: encoder.layers.0.attention.q.lora_a.weight"
        in bad(capsys, *command, "changed")
    )


def test_eval_of_a_run_whose_model_was_moved(capsys: pytest.CaptureFixture[str]) -> None:
    trained(capsys, "run", "--train.steps", 60)
    command_line = ["eval", "run", "--data.test", "test.tsv", "--json"]
    result = json.loads(good(capsys, *command_line))
    assert result["checkpoint"] == "run/last"
    assert result["metrics"]["accuracy"] > 0.95
    Path("bert").rename("elsewhere")
    assert "set the base model of run/last with --model.load" in bad(capsys, *command_line)
    assert (
        json.loads(good(capsys, *command_line, "--model.load", "elsewhere"))["metrics"]
        == result["metrics"]
    )
    message = bad(capsys, "merge", "run/last", "--out", "merged")
    assert message.startswith(
        "run/last: the base model 'bert' is neither a folder nor in the hub's cache"
    )


def test_an_adapter_is_trained_further(capsys: pytest.CaptureFixture[str]) -> None:
    trained(capsys, "run", "--train.steps", 12)
    recipe = ["train", "run/recipe.toml", "--train.steps", 2, "--train.lr", 1e-5, "--lora", ""]
    for number, start in enumerate((["--model.adapter", "run/last"], ["--model.load", "run/last"])):
        good(capsys, *recipe, *start, "--run", f"more{number}")
    first, second = (qkv.load(f"more{number}/last") for number in range(2))
    assert first.base_model_name == second.base_model_name == "bert"
    compare.assert_bitwise_equal(
        logits(first), logits(second), because="both runs have the same batches and kernels"
    )
    assert 0 < compare.max_difference(logits(first), logits(qkv.load("run/last"))) < 1e-2
    other = ["--data.train", "three.tsv", "--model.adapter", "run/last", "--run", "other"]
    Path("three.tsv").write_text("text\tlabel\na\tone\nb\ttwo\nc\tthree\n")
    assert "labels 3: the model has adapters of another head" in bad(capsys, *recipe, *other)


# --- merge, show, export ---


def test_merge_writes_a_plain_model(capsys: pytest.CaptureFixture[str]) -> None:
    trained(capsys)
    Path("bert/generation_config.json").write_text("{}")
    out = good(capsys, "merge", "run/last", "--out", "deep/plain")
    assert re.match(
        r"read    bert\nmerged  run/last, 8 layers\n"
        r"model   bert, [\d,]+ parameters, heads: pooler, sequence-classification\n"
        r"wrote   deep/plain\n        config.json .*\ncopied  generation_config.json\n$",
        out, re.DOTALL,
    )  # fmt: skip
    adapted, plain = qkv.load("run/last"), qkv.load("deep/plain")
    assert lora_layers(plain.net) == {}
    assert compare.max_difference(logits(plain), logits(adapted)) < 1e-5
    assert plain.tokenizer is not None
    assert plain.config["id2label"] == {"0": "other", "1": "pet"}
    assert [name.name for name in Path("deep").iterdir()] == ["plain"]
    assert "deep/plain: already exists; expected a new or an empty folder" in bad(
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
        patch.setattr("qkv.model.model.save_json", full)
        assert "No space left" in bad(capsys, "merge", "run/last", "--out", "plain")
    assert sorted(Path().iterdir()) == before


def test_show_has_adapters(capsys: pytest.CaptureFixture[str]) -> None:
    trained(capsys, "run", "--lora.target_modules", "encoder.layers.1.attention.q", "--lora.r", 2)
    out = good(capsys, "show", "run/last")
    assert out.count("64 → 64, bias, an adapter of rank 2") == 1
    assert good(capsys, "show", "bert", "--adapter", "run/last").replace(
        "bert", "last"
    ) == out.replace("bert", "last")
    assert bad(capsys, "show", "t5", "--adapter", "run/last") == (
        "--adapter run/last with t5: expected the folder of its model, not a family"
    )


def test_errors_with_folders(capsys: pytest.CaptureFixture[str]) -> None:
    trained(capsys)
    for command, message in {
        "export run/last new": "run/last: an adapter; qkv merge run/last --out new merges it into its model",
        "merge bert --out new": "bert: a model without an adapter; expected --adapter and its",
        "merge bert --adapter bert --out new": "bert/adapter_config.json: No such file",
        "merge run/last --adapter run/last --out new": "run/last: an adapter, expected a model",
        "merge none/at/all --out new": "none/at/all: no such folder",
        "merge run/last": "--out",
    }.items():
        assert message in bad(capsys, *command.split())
        assert not Path("new").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--lora.r", "0"], "lora.r is 0: expected a whole number, at least 1"),
        (["--lora.r", "2.5"], "lora.r is 2.5, expected a whole number"),
        (["--lora.lora_alpha", "-1"], "lora.lora_alpha is -1.0: expected a number, more than 0"),
        (
            ["--lora.lora_dropout", "1"],
            "lora.lora_dropout is 1.0: expected a number, at least 0 and less than 1",
        ),
        (["--lora.lora_aplha", "4"], "lora.lora_aplha is unknown; did you mean lora.lora_alpha?"),
        (["--lora.target_modules", "3"], "lora.target_modules is 3, expected a text or a list"),
        (["--lora", "8"], "lora is 8, expected a table"),
        (
            ["--lora.target_modules", "quary"],
            "lora: pattern 'quary' matches no linear layer that is not new; nearest: ",
        ),
        (
            ["--lora.target_modules", "heads.sequence_classification.out"],
            "matches no linear layer that is not new",
        ),
        (
            ["--lora.target_modules", '["q", "attention.q"]'],
            "lora: no adapter added: encoder.layers.0.attention.q is named twi",
        ),
        (
            ["--model.load", "", "--model.family", "bert"],
            "lora: an adapter needs a pretrained model",
        ),
        (
            ["--model.load", "", "--lora", "", "--model.adapter", "x"],
            "model.adapter: an adapter needs a pretrained model",
        ),
        (
            ["--model.adapter", "x"],
            "lora with model.adapter 'x', which is trained further without changes: remove",
        ),
        (["--lora", "", "--model.adapter", "./x"], "./x: no such folder"),
        (["--lora", "", "--model.adapter", "bert"], "bert/adapter_config.json: No such file"),
        (
            ["--train.optimizer", "muon"],
            "optimizer 'muon': no hidden matrix is trainable, expected adamw",
        ),
    ],
)
def test_errors_in_a_recipe(
    capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    flags_before = [
        "--data.train",
        "train.tsv",
        "--model.load",
        "bert",
        "--run",
        "run",
        "--device",
        "cpu",
    ]
    assert message in bad(capsys, "train", "small/lora", *once(*flags_before, *flags))


def test_errors_in_the_table_need_no_torch() -> None:
    code = (
        "import sys; from qkv.cli import main\n"
        "assert main(sys.argv[1:]) == 2 and 'torch' not in sys.modules"
    )
    flags = ["train", "small/lora", "--lora.r", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, *flags], env=environment, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_help_names_the_adapter(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("merge", "show"):
        assert main([command, "--help"]) == 0
        assert "--adapter" in capsys.readouterr().out
