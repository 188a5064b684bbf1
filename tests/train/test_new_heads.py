"""A new head on a loaded model: load with the head, fit, save and load give the same predictions."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv.families import get_family
from qkv.train.config import TrainConfig
from qkv.train.evaluate.evaluate_model import evaluate_checkpoint
from qkv.train.evaluate.evaluate_run import evaluate_run
from qkv.train.objectives.registry import find_objective_spec
from qkv.train.recipe import DataConfig, ModelConfig, ObjectiveConfig, Recipe
from qkv.train.run import train_recipe
from tests.support import tiny

TEXTS = ["the cat sat on the mat", "the dog lay on the rug", "a bird sang in the tree"] * 4
TEMPLATES = dict.fromkeys(("roberta", "bart", "mbart"), "roberta")
TEMPLATES |= dict.fromkeys(("transformer", "marian", "t5", "switch"), "seq2seq")
TEMPLATES |= dict.fromkeys(("gpt", "gpt2", "gpt3", "ctrl", "sparse", "llama"), "gpt")
TEMPLATES |= {"transformer-xl": "plain", "xlnet": "xlnet"}


def make_data(head: str) -> list[Any]:
    """Return examples of the objective of a head, as tuples or dicts in its order of columns."""
    words = [text.split() for text in TEXTS]
    if head == "sequence-classification":
        return [(text, row[1]) for text, row in zip(TEXTS, words, strict=True)]
    if head == "token-classification":
        return [(row, ["O", "B-PET", *["O"] * (len(row) - 2)]) for row in words]
    if head == "question-answering":
        return [
            (text, "who?", [{"text": row[1], "start": text.index(row[1])}])
            for text, row in zip(TEXTS, words, strict=True)
        ]
    if head == "multiple-choice":
        return [(text, ["a rug", "in the tree"], index % 2) for index, text in enumerate(TEXTS)]
    if head in ("sentence-embedding", "seq2seq"):
        return [(text, f"{row[1]} {row[2]}") for text, row in zip(TEXTS, words, strict=True)]
    return list(TEXTS)


def save_body(family: str, folder: Path) -> None:
    """Save a tiny model of a family with a tokenizer and the head that it has by default."""
    template = TEMPLATES.get(family, "bert")
    tokenizer = qkv.Tokenizer.train(TEXTS, type="word", vocab_size=40, template=template)
    ids = dict(pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id)
    ids["decoder_start_token_id"] = tokenizer.eos_token_id
    defaults = get_family(family).defaults
    known: dict[str, Any] = {
        name: value for name, value in ids.items() if name in defaults and value is not None
    }
    model = tiny.build(family, dtype=torch.float32, **known)
    model.tokenizer = tokenizer
    model.save(folder)


TASK_HEADS = ("sequence-classification", "token-classification", "question-answering")
CASES = {
    "bert": (*TASK_HEADS, "masked-lm", "pretraining", "multiple-choice", "sentence-embedding"),
    "electra": ("sequence-classification", "masked-lm"),
    "xlnet": ("question-answering", "lm"),
    "modernbert": ("multiple-choice",),
    "gpt2": ("sequence-classification", "question-answering", "lm", "double-heads"),
    "llama": ("token-classification",),
    "transformer-xl": ("sequence-classification", "lm"),
    "bart": ("sequence-classification", "lm"),
    "t5": ("token-classification", "question-answering", "lm"),
}
# Heads whose parameters are those of the embedding, or that the objective does not train.
HEADS_WITHOUT_UPDATES = ("lm", "double-heads", "sentence-embedding")
LABEL_NAMES = {
    "sequence-classification": ["bird", "cat", "dog"],
    "token-classification": ["O", "B-PET"],
}


def load_with_head(folder: Path, head: str) -> qkv.Model:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the parameters of the head are new
        return qkv.load(folder, head=head, label_names=LABEL_NAMES.get(head))


@pytest.mark.parametrize(
    ("family", "head"), [(family, head) for family, heads in CASES.items() for head in heads]
)
def test_load_fit_save_load(family: str, head: str, tmp_path: Path) -> None:
    save_body(family, tmp_path / "body")
    model = load_with_head(tmp_path / "body", head)
    is_seq2seq = family in tiny.ENCODER_DECODERS and head == "lm"
    data = make_data("seq2seq" if is_seq2seq else head)
    before = {name: p.clone() for name, p in model.named_parameters()}
    settings: dict[str, Any] = dict(max_length=16, batch_size=4)
    report = qkv.fit(model, data, validation=data[:6], steps=2, lr=1e-2, progress=False, **settings)
    assert {*report.metrics} > {"loss"} or head == "sentence-embedding"
    changed = [name for name, p in model.named_parameters() if not torch.equal(p, before[name])]
    assert changed
    assert any(name.startswith("heads.") for name in changed) or head in HEADS_WITHOUT_UPDATES
    model.save(tmp_path / "mine")
    loaded = qkv.load(tmp_path / "mine")
    assert (loaded.args["head"], loaded.pooling) == (model.args["head"], model.pooling)
    assert loaded.config.get("id2label") == model.config.get("id2label")
    evaluations = [qkv.evaluate(m, data[:6], **settings) for m in (model, loaded)]
    assert evaluations[0].metrics == evaluations[1].metrics
    assert report.metrics.items() <= evaluations[0].metrics.items()
    assert evaluations[0].confusion_matrix == evaluations[1].confusion_matrix


@pytest.mark.parametrize(
    ("family", "head"), [("bert", "lm"), ("bert", "next-sentence-prediction"), ("gpt2", "none")]
)
def test_error_for_a_head_without_an_objective(family: str, head: str, tmp_path: Path) -> None:
    save_body(family, tmp_path / "body")
    model = load_with_head(tmp_path / "body", head)
    with pytest.raises(ValueError, match=rf"^objective: the head '{head}' of this {family} model"):
        qkv.fit(model, TEXTS, steps=1)
    with pytest.raises(ValueError, match=rf"^objective: the head '{head}' of this {family} model"):
        qkv.evaluate(model, TEXTS)


@pytest.mark.parametrize("head", [*TASK_HEADS, "multiple-choice"])
def test_recipe(head: str, tmp_path: Path) -> None:
    """A recipe gives a loaded model the head of its objective, and the run saves it."""
    save_body("bert", tmp_path / "body")
    columns = find_objective_spec(head).columns
    lines = [json.dumps(dict(zip(columns, example, strict=True))) for example in make_data(head)]
    (tmp_path / "data.jsonl").write_text("\n".join(lines))
    recipe = Recipe(
        model=ModelConfig(load=str(tmp_path / "body")),
        data=DataConfig(train=str(tmp_path / "data.jsonl"), validation=0.25, batch_size=4),
        objective=ObjectiveConfig(name=head),
        train=TrainConfig(steps=2, lr=1e-2),
        run=str(tmp_path / "run"),
        device="cpu",
    )
    train_recipe(recipe)
    model = qkv.load(tmp_path / "run" / "last")
    assert model.args["head"] == head
    report = qkv.evaluate(model, tmp_path / "data.jsonl")
    flags = ["--data.test", str(tmp_path / "data.jsonl"), "--device", "cpu"]
    assert evaluate_run(tmp_path / "run", flags).metrics.keys() == report.metrics.keys()
    assert evaluate_checkpoint(str(tmp_path / "run" / "last"), flags).metrics == report.metrics


def test_replaced_token_detection(tmp_path: Path) -> None:
    """The discriminator is trained with a new generator; without it, it cannot be evaluated."""
    save_body("electra", tmp_path / "body")
    model = load_with_head(tmp_path / "body", "replaced-token-detection")
    report = qkv.fit(model, TEXTS, validation=0.5, steps=1, max_length=16, progress=False)
    assert report.objective == "replaced-token-detection"
    with pytest.raises(ValueError, match=r"needs the trained generator; set objective\.generator"):
        qkv.evaluate(model, TEXTS, max_length=16)
