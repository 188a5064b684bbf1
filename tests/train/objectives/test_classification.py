"""Objectives with labels: losses against transformers, class weights, left padding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers as hf

import qkv
from qkv.batch import IGNORE_INDEX, Batch
from qkv.data.encode import labels
from qkv.data.read.record import Record
from qkv.train.objectives import build_objective
from tests.support.objectives import (
    SMALL_BART,
    SMALL_BERT,
    VOCAB,
    assert_close,
    assert_reference_loss,
    build_reference_pair,
    get_ids,
    get_mask,
    make_batch,
    make_row,
)


@pytest.mark.parametrize(
    ("problem_type", "label"),
    [
        ("single_label_classification", [[2], [0]]),
        ("multi_label_classification", [[0, 2], []]),
        ("regression", [[labels.encode_float_bits(x, Record({}, ""))] for x in (0.25, -3)]),
    ],
)
def test_sequence_classification_loss_equals_bert(
    tmp_path: Path, problem_type: str, label: Any
) -> None:
    num_labels = 1 if problem_type == "regression" else 3
    config = hf.BertConfig(**SMALL_BERT, num_labels=num_labels, problem_type=problem_type)
    reference, net = build_reference_pair(hf.BertForSequenceClassification(config), tmp_path)
    objective = build_objective("sequence-classification", VOCAB, problem_type=problem_type)
    examples = [{**make_row(9 + n, n), "label": np.array(label[n], np.int64)} for n in range(2)]
    batch = make_batch(objective, examples)
    assert_reference_loss(objective, net, reference, batch)
    if problem_type == "regression":
        assert batch.labels["labels"].tolist() == [0.25, -3.0]
    if problem_type == "multi_label_classification":
        assert batch.labels["labels"].tolist() == [[1, 0, 1], [0, 0, 0]]


def test_token_classification_loss_equals_bert(tmp_path: Path) -> None:
    config = hf.BertConfig(**SMALL_BERT, num_labels=3)
    reference, net = build_reference_pair(hf.BertForTokenClassification(config), tmp_path)
    objective = build_objective("token-classification", VOCAB)
    rows = [make_row(9 + n, n) for n in range(2)]
    batch = make_batch(
        objective, [{**row, "labels": np.arange(len(row["tokens"])) % 4} for row in rows]
    )
    assert batch.labels["labels"][0].tolist()[:4] == [IGNORE_INDEX, 0, 1, 2]
    assert_reference_loss(objective, net, reference, batch)


@pytest.mark.parametrize("name", ["sequence-classification", "token-classification"])
def test_class_weights_are_those_of_cross_entropy(name: str) -> None:
    vocab = VOCAB._replace(num_labels=3, label_names=("no", "yes", "not sure"))
    labels = torch.tensor([2, 0, 0, 1, 2, 2])
    if name == "token-classification":
        labels[3] = IGNORE_INDEX
    batch = Batch(labels={"labels": labels})
    logits = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    weights = torch.tensor([0.5, 1.0, 3.0])
    expected = F.cross_entropy(logits, labels, weight=weights, ignore_index=IGNORE_INDEX)
    for setting in ([0.5, 1, 3.0], {"not sure": 3.0, "no": 0.5}):
        objective = build_objective(name, vocab, class_weights=setting)
        loss = objective({"logits": logits, "labels": labels})
        torch.testing.assert_close(loss, expected, atol=1e-6, rtol=0)
        total = float(weights[labels[labels != IGNORE_INDEX]].sum())
        assert objective.count_targets(batch) == {"loss": pytest.approx(total)}
    unweighted = build_objective(name, vocab)({"logits": logits, "labels": labels})
    assert abs(loss - unweighted) > 0.01


def test_class_weights_of_ignored_labels_give_no_nan() -> None:
    vocab = VOCAB._replace(num_labels=2, label_names=("O", "B"))
    objective = build_objective("token-classification", vocab, class_weights=[1.0, 2.0])
    outputs = {"logits": torch.randn(1, 3, 2), "labels": torch.full((1, 3), IGNORE_INDEX)}
    assert objective(outputs) == 0


def test_question_answering_loss_equals_bert(tmp_path: Path) -> None:
    reference, net = build_reference_pair(
        hf.BertForQuestionAnswering(hf.BertConfig(**SMALL_BERT)), tmp_path
    )
    objective = build_objective("question-answering", VOCAB)
    examples = [{**make_row(9 + n, n), "start": 2 + n, "end": 5} for n in range(2)]
    batch = make_batch(objective, examples)
    expected = reference(
        get_ids(batch.encoder),
        attention_mask=get_mask(batch.encoder),
        start_positions=batch.labels["start_positions"],
        end_positions=batch.labels["end_positions"],
    ).loss
    assert_close(objective(net(batch)), expected)


def test_multiple_choice_loss_equals_bert(tmp_path: Path) -> None:
    reference, net = build_reference_pair(
        hf.BertForMultipleChoice(hf.BertConfig(**SMALL_BERT)), tmp_path
    )
    objective = build_objective("multiple-choice", VOCAB)
    examples = []
    for n in range(2):
        choices = [make_row(5, n), make_row(7, 3 + n), make_row(6, 6 + n)]
        tokens = np.concatenate([choice["tokens"] for choice in choices])
        examples.append(
            {
                "tokens": tokens,
                "types": np.zeros_like(tokens),
                "windows": np.array([len(choice["tokens"]) for choice in choices]),
                "label": np.array([n]),
            }
        )
    batch = make_batch(objective, examples)
    input_ids = get_ids(batch.encoder).unflatten(0, (2, 3))
    mask = get_mask(batch.encoder).unflatten(0, (2, 3))
    expected = reference(input_ids, attention_mask=mask, labels=torch.tensor([0, 1])).loss
    assert_close(objective(net(batch)), expected)


def test_decoder_of_a_classifier_reads_the_text_shifted_right(tmp_path: Path) -> None:
    config = hf.BartConfig(**SMALL_BART, num_labels=3)
    reference, net = build_reference_pair(hf.BartForSequenceClassification(config), tmp_path)
    shift: Any = qkv.load(tmp_path).spec.shift_right  # type: ignore[union-attr]
    objective = build_objective("sequence-classification", VOCAB._replace(shift=shift))
    examples = [{**make_row(9 + n, n), "label": np.array([n])} for n in range(2)]
    assert_reference_loss(objective, net, reference, make_batch(objective, examples))


def test_token_types_are_clamped_to_those_of_the_model() -> None:
    objective = build_objective("sequence-classification", VOCAB._replace(type_vocab_size=1))
    example = {
        **make_row(4),
        "types": np.array([0, 0, 0, 1, 1, 1]),
        "label": np.array([0]),
    }
    batch = make_batch(objective, [example])
    assert batch.encoder is not None
    assert batch.encoder.token_type_ids is not None
    assert batch.encoder.token_type_ids.max() == 0


def test_answer_positions_are_shifted_by_left_padding() -> None:
    objective = build_objective("question-answering", VOCAB._replace(pad_left=True))
    examples = [
        {**make_row(9), "start": 2, "end": 4},
        {**make_row(5, 1), "start": 2, "end": 3},
    ]
    batch = make_batch(objective, examples)
    assert batch.labels["start_positions"].tolist() == [2, 6]
    assert batch.labels["end_positions"].tolist() == [4, 7]
    assert get_ids(batch.encoder)[1, 6] == make_row(5, 1)["tokens"][2]
