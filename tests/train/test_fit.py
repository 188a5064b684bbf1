"""`qkv.fit`: training in memory, with an objective by name or a custom loss function."""

import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch
from torch import Tensor

import qkv
from qkv.batch import IGNORE_INDEX
from qkv.text import Tokenizer
from qkv.train.config import TrainConfig, TrainSettings
from qkv.train.evaluate.class_report import ClassScores
from qkv.train.objectives.registry import find_default_objective
from qkv.train.report.fit_report import FitReport
from tests.support import compare, tiny

TEXTS = ["the cat sat on the mat", "the dog lay on the rug", "a bird sang in the tree"] * 20
LABELED_TEXTS = [{"text": text, "label": "cat" if "cat" in text else "other"} for text in TEXTS]


def build_model(family: str = "gpt2", **changes: Any) -> qkv.Model:
    tokenizer = Tokenizer.train(TEXTS, type="word", vocab_size=60, template="bert")
    torch.manual_seed(0)
    model = qkv.build(
        family, vocab_size=len(tokenizer), width=32, depth=2, heads=2, max_positions=32, **changes
    )
    model.tokenizer = tokenizer
    return model


def build_classifier(num_labels: int = 2, **changes: Any) -> qkv.Model:
    return build_model(
        "bert", ffn_width=64, head="sequence-classification", num_labels=num_labels, **changes
    )


def train(model: qkv.Model, **kwargs: Any) -> list[float]:
    losses: list[float] = []
    qkv.fit(
        model,
        TEXTS,
        steps=30,
        lr=3e-3,
        log_every=5,
        callbacks=[lambda r: losses.append(r.metrics["loss"])],
        **kwargs,
    )
    return losses


def test_causal_lm() -> None:
    losses = train(build_model(), objective="causal-lm", max_length=16, batch_size=8)
    assert losses[-1] < 0.75 * losses[0]


def test_masked_lm() -> None:
    losses = train(
        build_model("bert", ffn_width=64, head="masked-lm"),
        objective="masked-lm",
        max_length=16,
        batch_size=8,
    )
    assert losses[-1] < losses[0]


def test_custom_loss_function() -> None:
    def double_loss(outputs: dict[str, Tensor]) -> Tensor:
        return 2 * torch.nn.functional.cross_entropy(
            outputs["logits"].flatten(0, 1), outputs["labels"].flatten()
        )

    expected = train(
        build_model(dropout=0.0, embedding_dropout=0.0, attention_dropout=0.0),
        max_length=16,
        batch_size=8,
        grad_clip=0.0,
    )
    losses = train(
        build_model(dropout=0.0, embedding_dropout=0.0, attention_dropout=0.0),
        objective=double_loss,
        max_length=16,
        batch_size=8,
        grad_clip=0.0,
    )
    assert losses[0] == pytest.approx(2 * expected[0], rel=0.05)


def test_loss_function_gets_batches_for_the_head() -> None:
    """A masked LM gets masked batches, in which most labels are ignored, and not causal ones."""
    fractions: list[float] = []

    def masked_loss(outputs: dict[str, Tensor]) -> Tensor:
        labels = outputs["labels"].flatten()
        fractions.append(float((labels != IGNORE_INDEX).sum()) / (8 * 16))
        return torch.nn.functional.cross_entropy(outputs["logits"].flatten(0, -2), labels)

    model = build_model("bert", ffn_width=64, head="masked-lm")
    train(model, objective=masked_loss, max_length=16, batch_size=8)
    assert 0 < max(fractions) < 0.5


def test_loss_function_without_base_objective() -> None:
    """If the head does not determine the batches, base_objective must be given."""
    for model in (build_model("bert", ffn_width=64), build_model("bert", ffn_width=64, head="lm")):
        for objective, argument in (
            (lambda o: o["logits"].mean(), "base_objective"),
            (None, "objective"),
        ):
            message = rf"^{argument}: the head '(none|lm)' of this bert model does not determine it"
            with pytest.raises(ValueError, match=message):
                qkv.fit(model, TEXTS, steps=1, objective=objective)


def test_sequence_classification() -> None:
    model = build_classifier(classifier_pooling="mean")
    model.config["id2label"] = {"0": "cat", "1": "other"}
    accuracies: list[float] = []
    qkv.fit(
        model,
        LABELED_TEXTS,
        objective="sequence-classification",
        steps=80,
        lr=3e-3,
        batch_size=8,
        validation=0.2,
        log_every=10,
        callbacks=[
            lambda r: accuracies.append(r.metrics["accuracy"]) if r.phase == "eval" else None
        ],
    )
    assert accuracies[-1] == 1.0
    assert not model.net.training


@pytest.mark.parametrize("id2label", [None, {"0": "LABEL_0", "1": "LABEL_1"}])
def test_default_label_names_are_replaced_by_those_of_the_data(
    id2label: dict[str, str] | None,
) -> None:
    model = build_classifier(classifier_pooling="mean")
    if id2label:
        model.config["id2label"] = id2label
    qkv.fit(model, LABELED_TEXTS, objective="sequence-classification", steps=1)
    assert model.config["id2label"] == {"0": "cat", "1": "other"}
    model_of_three = build_classifier(num_labels=3)
    with pytest.raises(
        ValueError,
        match=r"2 labels \(cat, other\), but the model has 3: build it with num_labels=2",
    ):
        qkv.fit(model_of_three, LABELED_TEXTS, objective="sequence-classification", steps=1)
    with pytest.raises(ValueError, match="the training data has no records"):
        qkv.fit(model_of_three, [], objective="sequence-classification", steps=1, batch_size=2)


def test_error_for_a_model_without_tokenizer() -> None:
    with pytest.raises(ValueError, match="no tokenizer"):
        qkv.fit(qkv.build("gpt2", vocab_size=50, width=16, heads=2, depth=1), TEXTS, steps=1)


BERT: dict[str, Any] = dict(family="bert", ffn_width=64)


@pytest.mark.parametrize(
    ("model_args", "fit_args", "message"),
    [
        (
            BERT,
            dict(objective="sequence-classification"),
            "with a model of head 'none', expected 'sequence-classification'",
        ),
        (
            {},
            dict(objective="sequence-classification"),
            "with a model of head 'lm', expected 'sequence-classification'",
        ),
        (
            BERT | dict(head="sequence-classification", num_labels=2),
            dict(objective="causal-lm"),
            "'causal-lm' with a model of head 'sequence-classification', expected 'lm'",
        ),
        (
            BERT,
            dict(objective="sentence-contrastive"),
            "with a model without pooling: build it with pooling='mean'",
        ),
        ({}, dict(learning_rate=1e-3), "learning_rate is unknown; did you mean lr"),
        ({}, dict(warmup_step=1), "warmup_step is unknown; did you mean warmup_steps"),
        ({}, dict(lr="fast"), "lr is 'fast', expected a number"),
        (
            {},
            dict(max_length=33),
            "data.max_length 33, expected at most the model's max_positions, 32",
        ),
        ({}, dict(best_metric="bleu"), "train.best_metric 'bleu': there is no validation data"),
    ],
)
def test_errors_are_one_line(
    model_args: dict[str, Any], fit_args: dict[str, Any], message: str
) -> None:
    data = [{"text": text, "label": text[:5]} for text in TEXTS]
    with pytest.raises(ValueError, match=message):
        qkv.fit(build_model(**model_args), data, steps=1, **fit_args)


def test_error_for_a_tokenizer_larger_than_the_model() -> None:
    model = build_model()
    model.tokenizer = Tokenizer.train(TEXTS, type="byte", vocab_size=300, template="gpt")
    with pytest.raises(
        ValueError,
        match=r"the tokenizer has \d+ tokens, but the model's vocab_size is \d+; do they belong",
    ):
        qkv.fit(model, TEXTS, steps=1, max_length=8)


def test_default_max_length_is_the_models() -> None:
    assert qkv.fit(build_model(), TEXTS, steps=1, batch_size=2).num_tokens == 2 * 32


def test_freeze_and_activation_checkpointing_are_undone() -> None:
    model = build_model()
    train(model, max_length=16, batch_size=8, freeze=["embedding.*"], activation_checkpointing=True)
    assert all(p.requires_grad for p in model.net.parameters())
    assert not any("forward" in vars(module) for module in model.net.modules())


def test_epochs_are_passes_over_the_data() -> None:
    models = [build_classifier(), build_classifier()]
    settings: dict[str, Any] = dict(objective="sequence-classification", batch_size=7)
    report = qkv.fit(models[0], LABELED_TEXTS, epochs=2, **settings)
    assert report.steps == 2 * math.ceil(len(LABELED_TEXTS) / 7)
    qkv.fit(models[1], LABELED_TEXTS, steps=report.steps, **settings)
    compare.assert_bitwise_equal(
        *(dict(model.named_parameters()) for model in models),
        because="both runs have the same batches, random numbers, kernels and shapes",
    )
    with pytest.raises(ValueError, match=r"train\.steps 1 and train\.epochs 1, expected only one"):
        qkv.fit(models[0], LABELED_TEXTS, steps=1, epochs=1, **settings)
    with pytest.raises(ValueError, match=r"train\.steps is missing; set it, or train\.epochs"):
        qkv.fit(models[0], LABELED_TEXTS, **settings)


def test_multiple_choice() -> None:
    model = build_model("bert", ffn_width=64, head="multiple-choice")
    data = [{"text": "the cat", "choices": ["sat on the mat", "sang"], "label": 0}] * 20
    losses: list[float] = []
    qkv.fit(
        model, data, objective="multiple-choice", steps=10, batch_size=4, log_every=5,
        callbacks=[lambda r: losses.append(r.metrics["loss"])],
    )  # fmt: skip
    assert losses[-1] < losses[0]


def test_error_for_grad_accum_with_recurrence() -> None:
    model = qkv.build(
        "transformer-xl", vocab_size=60, width=32, depth=2, heads=2, mem_len=8, cutoffs=()
    )
    model.tokenizer = Tokenizer.train(TEXTS, type="word", vocab_size=60, template="plain")
    with pytest.raises(
        ValueError, match=r"^train\.grad_accum 2: segment-recurrent-lm carries its mems"
    ):
        train(model, objective="segment-recurrent-lm", max_length=8, batch_size=4, grad_accum=2)


def test_the_keywords_are_the_fields_of_the_config() -> None:
    expected = get_type_hints(TrainConfig)
    del expected["steps"], expected["epochs"]
    assert get_type_hints(TrainSettings) == expected


# --- reports ---


def fit_classifier(data: Any = LABELED_TEXTS, **settings: Any) -> FitReport:
    options = dict(steps=2, batch_size=8, progress=False) | settings
    return qkv.fit(build_classifier(classifier_pooling="mean"), data, **options)


def test_report(capsys: pytest.CaptureFixture[str]) -> None:
    report = fit_classifier(validation=0.2, epochs=5, steps=None, lr=3e-3)
    assert (report.objective, report.steps) == ("sequence-classification", 5 * 6)
    assert report.metrics["accuracy"] == 1.0
    assert report.class_scores == {
        "cat": ClassScores(1.0, 1.0, 1.0, support=4),
        "other": ClassScores(1.0, 1.0, 1.0, support=8),
    }
    assert report.confusion_matrix is not None
    assert report.confusion_matrix.counts == ((4, 0), (0, 8))
    assert report.history.validation[-1].metrics == report.metrics
    assert report.history.train[-1].metrics["loss"] < report.history.train[0].metrics["loss"]
    assert report.seconds > 0
    assert report.num_tokens > 30
    text = str(report)
    assert text.startswith("sequence-classification: 30 steps, ")
    assert "\nmetrics of validation\n" in text
    assert re.search(r"^accuracy +1\.000$", text, re.MULTILINE)
    assert re.search(r"^cat +1\.0000 +1\.0000 +1\.0000 +4$", text, re.MULTILINE)
    assert re.search(r"^other +0 +8$", text, re.MULTILINE)
    picture = report.plot()
    assert picture == picture._repr_svg_()
    root = ET.fromstring(picture)
    assert [title.text for title in root.findall(".//{*}svg/{*}title")] == [
        "loss of sequence-classification",
        "confusion matrix",
    ]
    assert picture in report._repr_html_()
    assert capsys.readouterr().out == ""  # progress=False


def test_report_without_validation() -> None:
    report = fit_classifier()
    assert not report.class_scores
    assert report.confusion_matrix is None
    assert report.metrics == report.history.train[-1].metrics
    assert "metrics of training; validation=0.1 holds out data" in str(report)
    assert "confusion matrix" not in report.plot()
    assert fit_classifier(steps=1, log_every=5).metrics == {}


def test_progress_is_shown_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    qkv.fit(build_classifier(), LABELED_TEXTS, steps=20, batch_size=2, validation=0.1)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 11  # a tenth of the steps between lines, and the evaluation
    assert lines[0].startswith("step  2/20   loss ")
    assert lines[-1].startswith("step 20/20   eval   loss ")


@pytest.mark.parametrize("is_weighted", [False, True])
def test_average_is_the_final_model(is_weighted: bool) -> None:
    """The metrics of the report are those of the returned model, also with a moving average."""
    model = build_classifier()
    weights = "balanced" if is_weighted else None
    report = qkv.fit(
        model, LABELED_TEXTS, steps=4, lr=1e-2, ema_decay=0.9, validation=LABELED_TEXTS[:20],
        class_weights=weights, progress=False,
    )  # fmt: skip
    metrics = qkv.evaluate(model, LABELED_TEXTS[:20], batch_size=16).metrics
    assert metrics["accuracy"] == report.metrics["accuracy"]
    assert (metrics["loss"] == report.metrics["loss"]) != is_weighted


# --- data ---


def test_kinds_of_data_train_the_same_model(tmp_path: Path) -> None:
    path = tmp_path / "texts.csv"
    rows = [(str(row["text"]), str(row["label"])) for row in LABELED_TEXTS]
    path.write_text("\n".join(["Sentence,Category", *(f"{a},{b}" for a, b in rows)]))
    reports = [
        fit_classifier(data, validation=validation)
        for data, validation in (
            (LABELED_TEXTS, LABELED_TEXTS[:9]),
            (rows, rows[:9]),
            (path, (row for row in rows[:9])),
            ({"text": [a for a, _ in rows], "label": [b for _, b in rows]}, rows[:9]),
        )
    ]
    assert len({str(report.metrics) for report in reports}) == 1
    renamed = [{"a": text, "b": label} for text, label in rows]
    report = fit_classifier(renamed, validation=renamed[:9], columns={"text": "a", "label": "b"})
    assert report.metrics == reports[0].metrics
    message = r"example 0: no column 'label'; the columns are 'a', 'b'; columns={'label': "
    with pytest.raises(ValueError, match=message):
        fit_classifier(renamed)


def test_numbers_are_label_ids() -> None:
    model = build_classifier()
    model.config["id2label"] = {"0": "cat", "1": "other"}
    data = [(row["text"], int(row["label"] == "other")) for row in LABELED_TEXTS]
    reports = [
        qkv.fit(build_classifier(), LABELED_TEXTS, steps=1, validation=0.2, progress=False),
        qkv.fit(model, data, steps=1, validation=0.2, progress=False),
    ]
    assert reports[0].metrics == reports[1].metrics
    with pytest.raises(ValueError, match="example 0: label 2, expected one of cat, other"):
        qkv.fit(model, [("a", 2)], steps=1)
    model.config["id2label"] = {"0": "1", "1": "2"}  # the label 0 is not the id of the label 1
    with pytest.raises(ValueError, match="label 0, expected one of 1, 2"):
        qkv.fit(model, [("a", 0)], steps=1)


def test_validation_has_every_class() -> None:
    """Two of a hundred texts are of the rare class: one is trained on, one is held out."""
    data = [("the cat sat", "common")] * 98 + [("a bird sang", "rare")] * 2
    for seed in range(3):
        report = fit_classifier(data, validation=0.1, seed=seed, steps=1)
        supports = {name: scores.support for name, scores in report.class_scores.items()}
        assert supports == {"common": 9, "rare": 1}


# --- losses and metrics ---


def test_balanced_class_weights() -> None:
    """The weight of a label is n / (labels * its count), as in scikit-learn."""
    data = [("the cat sat", "cat")] * 30 + [("a bird sang", "bird")] * 10
    expected = [40 / (2 * 10), 40 / (2 * 30)]
    reports = [
        fit_classifier(data, class_weights=weights, validation=data)
        for weights in ("balanced", expected, {"bird": expected[0], "cat": expected[1]})
    ]
    assert reports[0].metrics == reports[1].metrics == reports[2].metrics
    assert reports[0].metrics != fit_classifier(data, validation=data).metrics
    with pytest.raises(ValueError, match="class_weights 'even', expected 'balanced', a list"):
        fit_classifier(data, class_weights="even")
    with pytest.raises(ValueError, match="class_weights with problem_type 'multi_label"):
        fit_classifier(
            data,
            class_weights="balanced",
            objective_settings={"problem_type": "multi_label_classification"},
        )


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (
            lambda outputs: outputs["logits"].square().sum(-1),
            r"returned a tensor of shape \(8,\), expected a scalar tensor: return the mean over",
        ),
        (
            lambda outputs: 1.0,
            r"the loss function <lambda> returned 1\.0, expected a scalar tensor",
        ),
    ],
)
def test_error_for_a_loss_that_is_not_a_scalar(loss: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit_classifier(objective=loss)


def test_custom_metrics() -> None:
    received: list[Any] = []

    def count_cats(predictions: list[str], references: list[str]) -> int:
        received.append((predictions, references))
        return predictions.count("cat")

    report = fit_classifier(
        validation=LABELED_TEXTS[:6], metrics={"cats": count_cats}, eval_every=1,
        best_metric="cats", higher_is_better=True,
    )  # fmt: skip
    predictions, references = received[-1]
    assert references == [row["label"] for row in LABELED_TEXTS[:6]]
    assert {*predictions} <= {"cat", "other"}
    assert report.metrics["cats"] == predictions.count("cat")
    assert len(report.history.validation) == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(validation=0.0), "^metrics mine: there is no validation data; set validation"),
        (dict(metrics={"accuracy": max}), "^metrics 'accuracy': the objective has this metric"),
        (
            dict(metrics={"mine": lambda a, b: "x"}),
            "^metrics 'mine' returned 'x', expected a number",
        ),
    ],
)
def test_errors_of_custom_metrics(settings: dict[str, Any], message: str) -> None:
    options: dict[str, Any] = dict(validation=0.5, metrics={"mine": len}) | settings
    with pytest.raises(ValueError, match=message):
        fit_classifier(**options)


def test_custom_metrics_of_predicted_tokens() -> None:
    def compute_accuracy(predictions: list[int], references: list[int]) -> float:
        return sum(a == b for a, b in zip(predictions, references, strict=True)) / len(references)

    report = qkv.fit(
        build_model(),
        TEXTS,
        steps=1,
        validation=0.5,
        max_length=8,
        metrics={"mine": compute_accuracy},
    )
    assert report.metrics["mine"] == report.metrics["accuracy"]


def test_custom_metrics_of_generated_texts() -> None:
    def count_texts(predictions: list[str], references: list[str]) -> float:
        assert all(isinstance(text, str) for text in predictions)
        assert {*references} <= {*TEXTS}
        return len(predictions)

    def fit(**settings: Any) -> FitReport:
        model = build_model("bart", decoder_heads=2, decoder_depth=2)
        model.tokenizer = Tokenizer.train(TEXTS, type="word", vocab_size=20, template="seq2seq")
        pairs = [(text, text) for text in TEXTS]
        metrics = {"texts": count_texts}
        return qkv.fit(
            model, pairs, steps=1, validation=pairs, metrics=metrics, progress=False, **settings
        )

    report = fit(eval_generate=3, best_metric="rougeL")
    assert report.metrics["texts"] == 3
    assert "rougeL" in report.metrics
    with pytest.raises(ValueError, match="computed from generated texts; set eval_generate"):
        fit()


def test_error_for_custom_metrics_without_predictions() -> None:
    metric: Any = len
    model = build_model("bert", ffn_width=64, pooling="mean")
    pairs = [(text, text) for text in TEXTS]
    with pytest.raises(ValueError, match="metrics mine: objective sentence-contrastive has no pre"):
        qkv.fit(model, pairs, steps=1, validation=pairs, metrics={"mine": metric})


@pytest.mark.parametrize(
    ("family", "changes", "objective"),
    [
        ("gpt2", {}, "causal-lm"),
        ("bert", dict(ffn_width=64, head="masked-lm"), "masked-lm"),
        ("bert", dict(ffn_width=64, head="pretraining"), "masked-lm-sentence-pair"),
        ("bert", dict(ffn_width=64, pooling="mean"), "sentence-contrastive"),
        ("bart", dict(decoder_heads=2, decoder_depth=2), "seq2seq"),
        ("bart", dict(decoder_heads=2, decoder_depth=2, head="causal-lm"), "causal-lm"),
    ],
)
def test_default_objective(family: str, changes: dict[str, Any], objective: str) -> None:
    assert find_default_objective(build_model(family, **changes)) == objective


def test_default_objective_of_segment_memory_and_permutations() -> None:
    for family, objective in (
        ("transformer-xl", "segment-recurrent-lm"),
        ("xlnet", "permutation-lm"),
    ):
        assert find_default_objective(tiny.build(family)) == objective
    assert find_default_objective(tiny.build("clip")) == "image-text-contrastive"
    assert find_default_objective(tiny.build("clip", head="text")) is None


def test_one_label_is_a_regression() -> None:
    model = build_classifier(num_labels=1)
    data = [(text, float(len(text))) for text in TEXTS]
    report = qkv.fit(model, data, steps=2, validation=0.2, progress=False)
    assert {*report.metrics} == {"loss", "pearson", "spearman"}
    assert model.config["problem_type"] == "regression"
