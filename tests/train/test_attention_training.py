"""A small Transformer trains with every score and selection by one word in a recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv.cli import main
from qkv.nn.scores import SCORES
from qkv.nn.selections import SELECTIONS
from qkv.train.loop import checkpoint
from qkv.train.objectives import build_objective
from qkv.train.objectives.reinforce import prepare_hard_attention
from tests.support import compare
from tests.support.objectives import VOCAB, make_batch, make_row
from tests.support.recipes import CHARACTER_MODEL

TRAIN = """
[train]
steps = 6
lr = 1e-2
lr_schedule = "constant"
log_every = 3
save_every = 3
"""
TEXT = "the quick brown fox jumps over the lazy dog. " * 30
# Every score and every selection once.
PAIRS = [*zip(SCORES, SELECTIONS, strict=True)]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT)


def write_recipe(model: str = "", objective: str = "") -> None:
    text = CHARACTER_MODEL.replace("[tokenizer]", f"{model}\n[tokenizer]") + objective + "\n"
    Path("tiny.toml").write_text(text + TRAIN)


def train(*flags: object) -> int:
    return main(["train", "tiny.toml", *map(str, flags)])


def read_metrics(run: str = "runs/tiny") -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(run, "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("score", "select"), PAIRS)
def test_one_word_in_a_recipe(score: str, select: str, capsys: pytest.CaptureFixture[str]) -> None:
    objective = "baseline_decay = 0.9" if select == "hard" else ""
    write_recipe(f'attention_score = "{score}"\nattention_select = "{select}"', objective)
    assert train() == 0
    losses = [line["metrics"]["loss"] for line in read_metrics() if line["phase"] == "train"]
    assert losses[-1] < losses[0]
    model = qkv.load("runs/tiny/best")
    parameters = dict(model.net.named_parameters())
    capsys.readouterr()
    assert main(["show", "runs/tiny/best"]) == 0
    output = capsys.readouterr().out
    for word, default in ((score, "scaled-dot"), (select, "softmax")):
        assert (f" {word}" in output) == (word != default)
    kernel = "decoder.layers.0.attention.kernel"
    assert all(p.isfinite().all() for p in parameters.values())
    assert any(name.startswith(kernel) for name in parameters) == (
        score not in ("dot", "scaled-dot") or select == "local-p"
    )


@pytest.mark.parametrize("select", SELECTIONS)
@pytest.mark.parametrize("score", SCORES)
def test_every_pair_lowers_the_loss(score: str, select: str) -> None:
    """A few steps on one batch: every parameter gets a gradient, and the loss falls."""
    torch.manual_seed(0)
    model = qkv.build(
        "gpt2", vocab_size=VOCAB.vocab_size, width=12, depth=1, heads=2, max_positions=16, dropout=0.0,
        embedding_dropout=0.0, attention_dropout=0.0, attention_score=score, attention_select=select,
    )  # fmt: skip
    settings = {"baseline_decay": 0.9} if select == "hard" else {}
    objective = build_objective("causal-lm", VOCAB)
    objective = prepare_hard_attention(objective, model.net, settings)
    batch = make_batch(objective, [make_row(n, n) for n in (9, 6)])
    optimizer = torch.optim.Adam(model.net.parameters(), lr=1e-2)
    model.net.train()
    values = []
    for _ in range(8):
        loss = objective(model.net(batch))
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.net.parameters())
        optimizer.step()
        values.append(loss.item())
    assert values[-1] < 0.9 * values[0]


def test_settings_in_a_recipe() -> None:
    write_recipe('attention_score = { name = "cosine", temperature = 0.2 }')
    assert train("--model.attention_select", '{ name = "top-k", k = 2 }') == 0
    config = json.loads(Path("runs/tiny/best/config.json").read_text())
    assert config["attention_score"] == {"name": "cosine", "temperature": 0.2}
    assert config["attention_select"] == {"name": "top-k", "k": 2}
    model = qkv.load("runs/tiny/best")
    with qkv.look(model) as weights:
        model(torch.arange(5)[None])
    assert ((weights["decoder.layers.0.attention"] > 0).sum(-1) <= 2).all()


@pytest.mark.parametrize(
    ("model", "objective", "message"),
    [
        ('attention_select = "hard"', "", "hard attention without a baseline: set objective.base"),
        ('attention_select = "gumbel"', "baseline_decay = 0.9", "the model has no hard attention"),
        ('attention_select = "soft"', "", "attention_select is 'soft': expected one of softmax"),
        ('attention_score = "mlp"', "", "attention_score is 'mlp': expected one of dot"),
        ("attention_score = 3", "", "model.attention_score is 3, expected a text or a table"),
        ('position_embedding_type = "xl"\nattention_score = "cosine"', "", "'cosine' with the rel"),
    ],
)
def test_bad_input_is_one_line(
    model: str, objective: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_recipe(model, objective)
    assert train() == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert message in lines[0]
    assert not list(Path().glob("runs/*/checkpoints"))


def test_hard_attention_resumes_exactly() -> None:
    """The baseline is a part of the checkpoint."""
    write_recipe('attention_select = "hard"', "baseline_decay = 0.5\nentropy_weight = 0.01")
    flags = ("--train.grad_accum", 2)
    assert train(*flags, "--run", "runs/whole") == 0
    assert train(*flags, "--run", "runs/parts", "--train.steps", 3) == 0
    assert train(*flags, "--run", "runs/parts", "--resume", "auto") == 0
    uninterrupted, resumed = (
        checkpoint.read_latest_checkpoint(Path("runs", name, "checkpoints"))
        for name in ("whole", "parts")
    )
    assert uninterrupted is not None
    assert resumed is not None
    assert uninterrupted[0]["baseline"]["baseline"].isfinite()
    for file in ("net", "optimizer", "rng", "baseline"):
        compare.assert_bitwise_equal(
            resumed[0][file], uninterrupted[0][file], because=compare.RESUMED
        )


def test_hard_attention_is_evaluated_without_the_entropy_term() -> None:
    write_recipe('attention_select = "hard"', "baseline_decay = 0.9\nentropy_weight = 0.1")
    assert train() == 0
    metrics = read_metrics()
    train_metrics = next(line["metrics"] for line in metrics if line["phase"] == "train")
    eval_metrics = next(line["metrics"] for line in metrics if line["phase"] == "eval")
    assert {"loss", "attention_entropy"} <= train_metrics.keys()
    assert "attention_entropy" not in eval_metrics


def test_batches_of_hard_attention_are_the_same_in_workers() -> None:
    """The entropy term counts its targets in the process that builds a batch."""
    write_recipe('attention_select = "hard"', "baseline_decay = 0.9\nentropy_weight = 0.1")
    losses = []
    for num_workers in (0, 1):
        run = f"runs/workers-{num_workers}"
        assert train("--data.num_workers", num_workers, "--run", run, "--train.steps", 3) == 0
        lines = [line for line in read_metrics(run) if line["phase"] == "train"]
        losses.append([line["metrics"]["attention_entropy"] for line in lines])
    assert losses[0] == losses[1]


def test_fit_trains_hard_attention() -> None:
    write_recipe('attention_select = "softmax"')
    assert train("--train.steps", 1) == 0
    tokenizer = qkv.load("runs/tiny/best").tokenizer
    assert tokenizer is not None
    torch.manual_seed(0)
    model = qkv.build(
        "gpt2", vocab_size=len(tokenizer), width=16, depth=1, heads=2, max_positions=16,
        attention_select="hard",
    )  # fmt: skip
    model.tokenizer = tokenizer
    with pytest.raises(ValueError, match="hard attention without a baseline"):
        qkv.fit(model, [TEXT], steps=2, progress=False)
    report = qkv.fit(
        model, [TEXT], steps=4, batch_size=2, progress=False, max_length=8,
        objective_settings={"baseline_decay": 0.9},
    )  # fmt: skip
    assert report.steps == 4
