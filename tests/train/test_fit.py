"""`qkv.fit`: training in memory, with an objective by name or a custom loss function."""

import math
from typing import Any, get_type_hints

import pytest
import torch
from torch import Tensor

import qkv
from qkv.batch import IGNORE_INDEX
from qkv.text import Tokenizer
from qkv.train.config import TrainConfig, TrainSettings
from tests.support import compare

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
