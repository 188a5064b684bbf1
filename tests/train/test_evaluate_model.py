"""`qkv.evaluate` and `qkv eval` of models that are not runs."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv.cli.decoding import EvalOptions
from qkv.train.config import TrainConfig
from qkv.train.evaluate.target_generator import EVAL_GENERATION_SETTINGS
from qkv.train.objectives.registry import find_data_columns
from qkv.train.recipe import DataConfig, ModelConfig, ObjectiveConfig, Recipe
from tests.cli.test_cli import good
from tests.cli.test_train import bad

REVIEWS = [
    ("A wonderful film, I loved it.", "positive"),
    ("Boring and far too long.", "negative"),
    ("What a great movie!", "positive"),
]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def classifier() -> qkv.Model:
    return qkv.load("builtin:classify")


def write_reviews(folder: Path) -> Path:
    path = folder / "reviews.csv"
    path.write_text("\n".join(["review,sentiment", *(f'"{a}",{b}' for a, b in REVIEWS)]))
    return path


def test_evaluate(classifier: qkv.Model, tmp_path: Path) -> None:
    report = qkv.evaluate(classifier, REVIEWS)
    assert report.objective == "sequence-classification"
    assert (report.num_records, report.checkpoint, report.data) == (3, None, None)
    predictions = [qkv.task("classify", classifier)(text).label for text, _ in REVIEWS]
    references = [label for _, label in REVIEWS]
    num_correct = sum(a == b for a, b in zip(predictions, references, strict=True))
    assert report.metrics["accuracy"] == num_correct / 3
    assert report.confusion_matrix is not None
    assert report.confusion_matrix.label_names == ("negative", "positive")
    assert sum(map(sum, report.confusion_matrix.counts)) == 3
    assert report.class_scores["positive"].support == 2
    assert str(report).startswith("sequence-classification: 3 records\n\nloss ")
    assert "confusion matrix" in report.plot()
    assert report.plot() in report._repr_html_()
    assert qkv.evaluate(classifier, write_reviews(tmp_path)).metrics == report.metrics


def test_custom_metrics_and_columns(classifier: qkv.Model) -> None:
    data = [{"a": text, "b": label} for text, label in REVIEWS]
    report = qkv.evaluate(
        classifier,
        data,
        columns={"text": "a", "label": "b"},
        metrics={"positive": lambda predictions, references: references.count("positive")},
    )
    assert report.metrics["positive"] == 2.0


def test_the_model_is_not_changed(classifier: qkv.Model) -> None:
    config = json.dumps(classifier.config)
    weights = {name: p.clone() for name, p in classifier.named_parameters()}
    for mode in (True, False):
        classifier.train(mode)
        qkv.evaluate(classifier, REVIEWS)
        assert classifier.net.training == mode
    assert json.dumps(classifier.config) == config
    assert all(torch.equal(p, weights[name]) for name, p in classifier.named_parameters())


def test_errors(classifier: qkv.Model) -> None:
    with pytest.raises(ValueError, match="example 0: label 'good', expected one of negative, pos"):
        qkv.evaluate(classifier, [("a", "good")])
    with pytest.raises(ValueError, match="'masked-lm' with a model of head 'sequence-class"):
        qkv.evaluate(classifier, ["a"], objective="masked-lm")
    model = qkv.build("gpt2", vocab_size=50, width=16, heads=2, depth=1)
    with pytest.raises(ValueError, match="the model has no tokenizer"):
        qkv.evaluate(model, ["a"])


# --- the command ---


def test_eval_of_a_model(capsys: Capture, tmp_path: Path) -> None:
    path = write_reviews(tmp_path)
    out = good(capsys, "eval", "builtin:classify", "--data", path)
    assert re.search(r"^checkpoint +builtin:classify$", out, re.MULTILINE)
    assert re.search(r"^accuracy +[01]", out, re.MULTILINE)
    assert re.search(r"^positive +[\d.]+ +[\d.]+ +[\d.]+ +2$", out, re.MULTILINE)
    assert re.search(r"^reference ↓  prediction → +negative +positive$", out, re.MULTILINE)
    result = json.loads(good(capsys, "eval", "builtin:classify", "--data", path, "--json"))
    report = qkv.evaluate(qkv.load("builtin:classify"), path)
    assert result["metrics"] == report.metrics
    assert report.confusion_matrix is not None
    assert result["confusion_matrix"]["counts"] == [*map(list, report.confusion_matrix.counts)]
    assert result["class_scores"]["negative"]["support"] == 1


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["builtin:classify"], "builtin:classify: no data to evaluate on; set --data FILE"),
        (["builtin:classify", "--data", "gone.csv"], "gone.csv: no files found"),
        (["nowhere", "--data", "reviews.csv"], "nowhere"),
        (
            ["builtin:classify", "--data", "reviews.csv", "--data.columns.text", "stars"],
            "no column 'stars' (for text)",
        ),
        (
            ["builtin:classify", "--data", "reviews.csv", "--model.width", "8"],
            "model.width: the sizes of a loaded model cannot change",
        ),
        (
            ["builtin:translate", "--data", "reviews.csv"],
            "no column 'source'; the columns are 'review', 'sentiment'",
        ),
    ],
)
def test_errors_are_one_line(
    command: list[str],
    message: str,
    capsys: Capture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_reviews(tmp_path)
    assert message in bad(capsys, "eval", *command)


def test_eval_of_generated_texts(capsys: Capture, tmp_path: Path) -> None:
    pytest.importorskip("sacrebleu")
    path = tmp_path / "pairs.tsv"
    path.write_text("source\ttarget\nGuten Morgen!\tGood morning!\n")
    settings: list[Any] = ["--num-beams", 1, "--max-new-tokens", 8, "--json"]
    result = json.loads(good(capsys, "eval", "builtin:translate", "--data", path, *settings))
    assert result["objective"] == "seq2seq"
    assert {"loss", "accuracy", "bleu", "chrf", "rouge1"} <= {*result["metrics"]}


def test_evaluate_generates_texts(capsys: Capture, tmp_path: Path) -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    model = qkv.load("builtin:translate")
    pairs = [("Guten Morgen!", "Good morning!"), ("Wo ist das Haus?", "Where is the house?")]
    settings: dict[str, Any] = dict(num_beams=2, max_new_tokens=8)
    texts: list[str] = []

    def keep_texts(predictions: list[str], references: list[str]) -> float:
        assert references == [target for _, target in pairs]
        texts.extend(predictions)
        return len(texts)

    report = qkv.evaluate(model, pairs, generation_settings=settings, metrics={"n": keep_texts})
    assert report.metrics["n"] == 2
    references = [[target for _, target in pairs]]
    assert report.metrics["bleu"] == sacrebleu.metrics.BLEU().corpus_score(texts, references).score
    assert report.metrics["chrf"] == sacrebleu.metrics.CHRF().corpus_score(texts, references).score
    assert report.settings == {"num_beams": 2, "length_penalty": 1.0, "max_new_tokens": 8}
    assert report.signatures["bleu"].startswith("nrefs:1")
    assert report.metrics["perplexity"] == pytest.approx(math.exp(report.metrics["loss"]))
    path = tmp_path / "pairs.tsv"
    path.write_text("source\ttarget\n" + "".join(f"{a}\t{b}\n" for a, b in pairs))
    flags: list[Any] = ["--num-beams", 2, "--max-new-tokens", 8, "--json"]
    result = json.loads(good(capsys, "eval", "builtin:translate", "--data", path, *flags))
    del report.metrics["n"]
    assert result["metrics"] == pytest.approx(report.metrics)
    without_texts = qkv.evaluate(model, pairs, generate=False)
    assert {*without_texts.metrics} == {"loss", "accuracy", "perplexity", "bits_per_token"}
    with pytest.raises(ValueError, match="computed from generated texts; set generate=True"):
        qkv.evaluate(model, pairs, generate=False, metrics={"n": keep_texts})
    with pytest.raises(ValueError, match="did you mean num_beams"):
        qkv.evaluate(model, pairs, generation_settings={"num_beam": 2})


def test_defaults_of_the_search_are_those_of_the_command() -> None:
    assert EvalOptions().settings == EVAL_GENERATION_SETTINGS


def test_pipes_are_not_read_before_the_evaluation(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    recipe = Recipe(
        model=ModelConfig(),
        data=DataConfig(train=""),
        objective=ObjectiveConfig(name="sequence-classification"),
        train=TrainConfig(steps=1),
    )
    assert (
        find_data_columns(recipe, str(tmp_path / "pipe.csv")) is recipe
    )  # would wait for a writer
    path = str(write_reviews(tmp_path))
    assert find_data_columns(recipe, path).data.columns == {"text": "review", "label": "sentiment"}
