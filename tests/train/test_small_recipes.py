"""The small recipes: each objective learns, from files to a saved model, in parts as in one batch."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import qkv
from qkv.data.batches.sampler import Indices, Place
from qkv.model.build import build
from qkv.text import Tokenizer
from qkv.train.evaluate.validation import over
from qkv.train.loop.checkpoint import finished
from qkv.train.loop.ema import mean_of
from qkv.train.loop.trainer import Report
from qkv.train.objectives import OBJECTIVES, words_of
from qkv.train.objectives.objective import Objective
from qkv.train.objectives.registry import KINDS
from qkv.train.objectives.wrappers import Twin
from qkv.train.recipe import Recipe, read_recipe
from qkv.train.run import train
from qkv.train.setup import Prepared, prepared
from qkv.train.setup_context import Given
from tests.support import small_data

RECIPES = Path(__file__).resolve().parent.parent.parent / "recipes" / "small"

# What the mean loss of the last ten steps falls below. Who knows only how frequent words are stays above.
# fmt: off
BELOW = {
    "causal-lm": {"loss": 1.4},               "recurrence": {"loss": 1.3},
    "control-codes": {"loss": 0.6},           "permutation-lm": {"loss": 1.5},
    "masked-lm": {"loss": 1.1},               "next-sentence": {"lm": 1.3, "pair": 0.5},
    "sentence-order": {"lm": 1.8, "pair": 0.3}, "replaced-token": {"lm": 1.5, "replaced": 11.0},
    "distillation": {"soft": 1.6, "lm": 4.6, "cosine": 0.25}, "seq2seq": {"loss": 1.1},
    "generative-answers": {"loss": 0.5},      "summaries": {"loss": 0.2},
    "denoising": {"loss": 1.1},               "multilingual-denoising": {"loss": 1.2},
    "span-corruption": {"loss": 2.1},         "experts": {"loss": 2.2, "balance": 0.035, "z": 0.01},
    "sentence-vectors": {"loss": 0.2},        "image-text": {"loss": 1.8},  # three captions: ln(16 / 3)
    "label": {"loss": 0.2},                   "labels": {"loss": 0.2},
    "regression": {"loss": 0.1},              "tag": {"loss": 0.1},
    "span": {"start": 0.5, "end": 0.5},       "choice": {"loss": 0.3},
    "lora": {"loss": 0.1},  # the new head alone stays above 0.5
}
# fmt: on
TOGETHER = ("sentence-vectors", "image-text")  # all rows of a batch are told from each other: test_backward


def recipe_of(name: str, folder: Path, *flags: str) -> Recipe:
    if name == "image-text":
        pytest.importorskip("PIL")
    given = small_data.write(name, folder)
    return read_recipe(
        RECIPES / f"{name}.toml", [*given, "--run", str(folder / "run"), "--device", "cpu", *flags]
    )


def test_every_objective_has_a_small_recipe() -> None:
    assert {path.stem for path in RECIPES.glob("*.toml")} == BELOW.keys() == small_data.MAKERS.keys()
    flags = ["--data.train", "x"]
    taught = {read_recipe(path, flags).objective.name for path in RECIPES.glob("*.toml")}
    assert taught == OBJECTIVES.keys()
    assert all(path.read_text().startswith("# ") for path in RECIPES.glob("*.toml"))


@pytest.mark.parametrize("name", BELOW)
def test_a_small_recipe_learns(name: str, tmp_path: Path) -> None:
    train(recipe_of(name, tmp_path))
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    found = json.loads(lines[-1])["values"]
    assert {part: found[part] for part in BELOW[name] if found[part] >= BELOW[name][part]} == {}
    model = qkv.load(tmp_path / "run" / "last")
    assert model.tokenizer is not None
    if name == "replaced-token":
        generator = qkv.load(tmp_path / "run" / "last" / "generator")
        own, other = (dict(m.net.named_parameters()) for m in (model, generator))
        assert torch.equal(own["encoder.embed.tokens.weight"], other["encoder.embed.tokens.weight"])


def gradients(net: nn.Module, goal: Objective, made: Prepared, parts: list[Indices]) -> dict[str, Tensor]:
    """Of a batch in parts, each part's mean weighed by its share of the targets."""
    batches = [goal.collate(made.feed.draw(part, 0, goal.noise)) for part in parts]
    counts = [goal.counts(batch) for batch in batches]
    net.zero_grad(set_to_none=True)
    for batch, count in zip(batches, counts, strict=True):
        for name, loss in goal.parts(net(batch)).items():
            (loss * (count[name] / sum(each[name] for each in counts))).backward(retain_graph=True)
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", [name for name in BELOW if name not in ("recurrence", *TOGETHER)])
def test_two_parts_of_a_batch_are_worth_the_whole(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Twin, "sampled", lambda self, logits: logits.argmax(-1))
    made = prepared(recipe_of(name, tmp_path), tmp_path / "run")
    net, place = made.net.double().eval(), Place()
    for held in getattr(net, "_beside", ()):
        held.double()
    whole, halves = (gradients(net, made.objective, made, made.feed.parts(place, n)) for n in (1, 2))
    assert whole.keys() == halves.keys()
    for key in whole:
        torch.testing.assert_close(halves[key], whole[key], atol=1e-9, rtol=1e-6)


def test_a_memory_does_not_go_on_from_part_to_part(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"learn\.accumulate 2: .*expected 1"):
        prepared(recipe_of("recurrence", tmp_path, "--learn.accumulate", "2"), tmp_path / "run")


def test_a_model_goes_on_with_another_head(tmp_path: Path) -> None:
    """Masked words first, then labels: what the network learned is kept, the head is new."""
    home = tmp_path / "first"
    home.mkdir()
    train(recipe_of("masked-lm", home, "--model.family", "bert", "--learn.steps", "3", "--learn.warmup", "0"))
    path = tmp_path / "label.toml"
    path.write_text(
        '[model]\n[data]\nlength = 48\nrows = 32\n[objective]\nname = "label"\n[learn]\nsteps = 1\n'
    )
    flags = ["--model.load", str(home / "run" / "last"), "--run", str(tmp_path / "run"), "--device", "cpu"]
    made = prepared(read_recipe(path, [*flags, *small_data.write("label", tmp_path)]), tmp_path / "run")
    before, after = qkv.load(home / "run" / "last"), made.model
    assert after.args["head"] == "label"
    assert after.config["architectures"] == ["BertForSequenceClassification"]
    assert after.config["label2id"] == {"other": 0, "pet": 1}
    own, held = (dict(model.net.named_parameters()) for model in (after, before))
    shared = [name for name in own if name.startswith("encoder.")]
    assert shared
    assert all(torch.equal(own[name], held[name]) for name in shared)


def test_blocks_of_one_long_text_are_rows_of_one_length_in_a_frame(tmp_path: Path) -> None:
    flags = ["--data.unit", "file", "--objective.whole", "true", "--data.static", "true"]
    made = prepared(recipe_of("masked-lm", tmp_path, *flags), tmp_path / "run")
    batch = made.objective.collate(made.feed.draw(made.feed.batches(0)[0], 0, made.objective.noise))
    assert batch.rows is not None
    assert batch.rows.ids is not None
    text = made.model.tokenizer
    assert text is not None
    assert batch.rows.ids.shape == (16, 64)
    assert {*batch.rows.ids[:, 0].tolist()} == {text.cls}
    assert {*batch.rows.ids[:, -1].tolist()} == {text.sep}
    block = int(made.feed.batches(0)[0][0])
    again = [made.feed.draw(np.array([block]), n, made.objective.noise)[0]["tokens"] for n in (0, 1)]
    assert (again[0] == again[1]).all()  # the mask is static
    assert block in np.concatenate(made.feed.batches(1))


@pytest.mark.parametrize("name", ["label", "replaced-token", "distillation", "lora"])
def test_a_saved_model_has_the_loss_that_was_measured(name: str, tmp_path: Path) -> None:
    more = ["--data.valid", "0.2", "--learn.steps", "20", "--learn.measure", "20"]
    recipe, run = recipe_of(name, tmp_path, *more), tmp_path / "run"
    train(recipe)
    measured = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["values"]
    made, model = prepared(recipe, run), qkv.load(run / "best")
    assert made.trial is not None
    assert model.tokenizer is not None
    words = words_of(model.tokenizer, model, length=recipe.data.length)
    given = Given(recipe=recipe, home=str(run / "tokenizer"), model=model, words=words, learnt=run / "best")
    net, _ = KINDS[recipe.objective.name].net(given)
    with torch.no_grad():
        again = over(made.trial.feed, made.objective)(net.eval())
    assert again["loss"] == pytest.approx(measured["loss"], rel=1e-6)


def test_a_row_is_no_longer_than_a_loaded_model_reads(tmp_path: Path) -> None:
    build("bert", "tiny", vocab=200, length=8).save(tmp_path / "model")
    path = small_data.labelled(tmp_path, random.Random(0))
    Tokenizer.train([path], kind="wordpiece", vocab=200, purpose="bert").save(tmp_path / "model")
    recipe = tmp_path / "label.toml"
    recipe.write_text('[model]\n[data]\nrows = 4\n[objective]\nname = "label"\n[learn]\nsteps = 1\n')
    flags = ["--model.load", str(tmp_path / "model"), "--data.train", str(path), "--device", "cpu"]
    with pytest.raises(ValueError, match=r"train\.tsv, line 2: \d+ tokens, expected at most 8"):
        prepared(read_recipe(recipe, flags), tmp_path / "run")
    with pytest.raises(ValueError, match=r"data\.length 9, expected at most 8"):
        prepared(read_recipe(recipe, [*flags, "--data.length", "9"]), tmp_path / "run")


MORE = {
    "permutation-lm": ["--data.unit", "file", "--objective.memory", "true", "--model.memory", "16"],
    "sentence-vectors": ["--model.drop", "0.1", "--model.attend_drop", "0.1"],
    "image-text": ["--learn.accumulate", "3"],
    "lora": ["--lora.drop", "0.2"],
}


@pytest.mark.parametrize(
    "name", ["replaced-token", "distillation", "recurrence", "permutation-lm", "lora", *TOGETHER]
)
def test_a_stopped_run_goes_on_to_the_bit(name: str, tmp_path: Path) -> None:
    more = ["--learn.steps", "12", "--learn.log", "6", *MORE.get(name, [])]
    for each in ("whole", "stopped"):
        (tmp_path / each).mkdir()

    def stop(report: Report) -> None:
        if report.step == 6:
            os.kill(os.getpid(), signal.SIGTERM)

    train(recipe_of(name, tmp_path / "whole", *more))
    recipe = recipe_of(name, tmp_path / "stopped", *more)
    assert train(recipe, callbacks=[stop]).step == 6
    assert train(recipe, resume=True).step == 12
    file = "adapter_model.safetensors" if name == "lora" else "model.safetensors"
    weights = [load_file(tmp_path / each / "run" / "last" / file) for each in ("whole", "stopped")]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_the_last_model_is_the_mean_of_the_last_checkpoints(tmp_path: Path) -> None:
    flags = "--data.valid 0.2 --learn.steps 5 --learn.warmup 0 --learn.save 2 --learn.keep 3 --learn.last 3"
    train(recipe_of("label", tmp_path, *flags.split()))
    right = mean_of(path / "net.safetensors" for path in finished(tmp_path / "run" / "checkpoints"))
    for name in ("last", "best"):  # nothing else was measured
        model = qkv.load(tmp_path / "run" / name)
        assert all(torch.equal(p, right[key]) for key, p in model.net.named_parameters())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--objective.name", "mask"], r"objective\.name 'mask', expected one of causal-lm"),
        (["--objective.whol", "true"], r"objective\.whol: masked-lm has no such setting"),
        (["--data.length", "0"], r"data\.length 0, expected the number of tokens in a row"),
        (["--data.length", "2"], r"rows of 0 tokens beside the special ones"),
        (["--data.rows", "0"], r"data\.rows or data\.tokens is missing"),
        (
            ["--data.long", "refuse", "--data.length", "12"],
            r"train\.txt, line \d+: \d+ tokens, expected at most 10",
        ),
        (["--data.long", "some"], r"data\.long 'some', expected one of refuse, cut, split"),
        (["--model.length", "32"], r"data\.length 64, expected at most 31: the model has no more positions"),
        (["--model.vocab", "50"], r"tokens in the tokenizer, but the model knows 50"),
        (["--text.purpose", "plain"], r"the tokenizer has no mask token"),
        (["--objective.name", "label"], r"train\.txt, line 1: no column 'label'; the columns are 'text'"),
        (["--objective.name", "distillation"], r"objective\.teacher is missing"),
    ],
)
def test_a_recipe_that_is_wrong_says_so_in_one_line(flags: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        train(recipe_of("masked-lm", tmp_path, *flags))
    assert "\n" not in str(raised.value)


def test_a_decoder_starts_with_what_its_family_starts_with(tmp_path: Path) -> None:
    made = prepared(recipe_of("denoising", tmp_path), tmp_path / "run")
    text = made.model.tokenizer
    assert text is not None
    batch = made.objective.collate(made.feed.draw(made.feed.batches(0)[0], 0, made.objective.noise))
    assert batch.target is not None
    assert batch.target.ids is not None
    assert {*batch.target.ids[:, 0].tolist()} == {text.eos}
    assert {*batch.target.ids[:, 1].tolist()} == {text.bos}


def test_batches_of_so_many_tokens_have_many_rows(tmp_path: Path) -> None:
    for name in ("masked-lm", "next-sentence", "label"):
        (tmp_path / name).mkdir()
        flags = ["--data.rows", "0", "--data.tokens", "480"]
        made = prepared(recipe_of(name, tmp_path / name, *flags), tmp_path / name / "run")
        assert max(map(len, made.feed.batches(0))) >= 480 // 64
