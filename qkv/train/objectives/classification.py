"""Objectives of classification heads: sequence classification, token classification, extractive
question answering and multiple choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.batch import IGNORE_INDEX, Batch
from qkv.data.batches.collate import Example, collate_inputs, pad_sequences, stack_values
from qkv.data.encode.labels import IGNORED_TAG, decode_float_bits
from qkv.model.inputs import shift_tokens_right
from qkv.model.loss import regression_loss
from qkv.train.objectives.objective import (
    ForwardOutputs,
    Objective,
    compute_label_row_losses,
    count_label_targets,
    cross_entropy,
    upcast_to_fp32,
)
from qkv.train.objectives.vocabulary import VocabularyInfo
from qkv.validate import check_number

PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")
SPAN_BOUNDARIES = ("start", "end")
BALANCED = "balanced"  # class weights that are computed from the data


def collate_labeled_texts(
    examples: Sequence[Example], vocab: VocabularyInfo, labels: dict[str, Tensor]
) -> Batch:
    """Build a batch for a classification head; the decoder input is the text shifted right."""
    inputs = collate_inputs(examples, pad_token_id=vocab.pad_token_id, pad_left=vocab.pad_left)
    if inputs.token_type_ids is not None and vocab.type_vocab_size:
        token_type_ids = inputs.token_type_ids.clamp(max=vocab.type_vocab_size - 1)
        inputs = replace(inputs, token_type_ids=token_type_ids)
    decoder = None if vocab.shift is None else shift_tokens_right(inputs, vocab.shift)
    return Batch(encoder=inputs, decoder=decoder, labels=labels)


def count_labeled_examples(batch: Batch) -> dict[str, int]:
    """Return the number of examples, each of which has one label."""
    return {"loss": len(batch.labels["labels"])}


def check_weighted_problem_type(problem_type: str) -> None:
    """Raise ValueError if class weights do not apply to the problem type."""
    if problem_type != "single_label_classification":
        raise ValueError(
            f"objective.class_weights with problem_type {problem_type!r}, "
            "expected single_label_classification: they weight a cross-entropy"
        )


def compute_balanced_weights(label_counts: Mapping[int, int], num_labels: int) -> list[float]:
    """Return weights by label id with which all labels that occur have the same total weight.

    The mean weight of the examples is 1, as with scikit-learn's class_weight="balanced"."""
    total = sum(label_counts.values())
    counts = [label_counts.get(label_id, 0) for label_id in range(num_labels)]
    num_present = sum(count > 0 for count in counts)
    return [total / (num_present * count) if count else 1.0 for count in counts]


def parse_class_weights(
    class_weights: Sequence[float] | Mapping[str, float], vocab: VocabularyInfo
) -> Tensor | None:
    """Return the weights by label id (C,); a table has the weights of some labels, the others have 1."""
    if not class_weights:
        return None
    names = vocab.label_names or tuple(str(number) for number in range(vocab.num_labels))
    if isinstance(class_weights, Mapping):
        for name in class_weights.keys() - {*names}:
            raise ValueError(
                f"objective.class_weights has {name!r}, expected labels: {', '.join(names[:20])}"
            )
        class_weights = [class_weights.get(name, 1.0) for name in names]
    if len(class_weights) != len(names):
        raise ValueError(
            f"objective.class_weights has {len(class_weights)} weights, "
            f"expected one for each of {len(names)} labels: {', '.join(names[:20])}"
        )
    for name, weight in zip(names, class_weights, strict=True):
        check_number(f"objective.class_weights of {name!r}", weight, more_than=0)
    return torch.tensor(class_weights, dtype=torch.float64)


def sum_label_weights(batch: Batch, class_weights: Tensor) -> dict[str, float]:
    """Return the sum of the weights of all labels, by which a weighted mean is divided."""
    labels = batch.labels["labels"]
    return {"loss": float(class_weights[labels[labels != IGNORE_INDEX]].sum())}


def build_sequence_classification_objective(
    vocab: VocabularyInfo,
    *,
    problem_type: str = "single_label_classification",
    class_weights: Sequence[float] | Mapping[str, float] = (),
) -> Objective:
    """Sequence classification: one label per text, several labels per text, or a number.

    `class_weights`, by label id or by label name, weight the cross-entropy of one label per text."""
    if problem_type not in PROBLEM_TYPES:
        raise ValueError(
            f"objective.problem_type {problem_type!r}, expected one of {', '.join(PROBLEM_TYPES)}"
        )
    if class_weights:
        check_weighted_problem_type(problem_type)
    weights = parse_class_weights(class_weights, vocab)

    def compute_losses(outputs: ForwardOutputs) -> dict[str, Tensor]:
        logits = upcast_to_fp32(outputs["logits"])
        labels = outputs["labels"]
        if weights is not None:
            return {"loss": cross_entropy(logits, labels, class_weights=weights)}
        if problem_type == "single_label_classification":
            return {"loss": F.cross_entropy(logits, labels)}
        if problem_type == "multi_label_classification":
            return {"loss": F.binary_cross_entropy_with_logits(logits, labels)}
        return {"loss": regression_loss(logits.squeeze(-1), labels)}

    def noise(example: Example, rng: np.random.Generator) -> Example:
        label = example["label"]
        if problem_type == "single_label_classification":
            return {**example, "label": label[0]}
        if problem_type == "regression":
            return {**example, "label": decode_float_bits(label)[0]}
        return {**example, "label": np.isin(np.arange(vocab.num_labels), label).astype(np.float32)}

    def collate(examples: Sequence[Example]) -> Batch:
        return collate_labeled_texts(examples, vocab, {"labels": stack_values(examples, "label")})

    return Objective(
        name="sequence-classification",
        compute_losses=compute_losses,
        compute_row_losses=compute_label_row_losses
        if weights is None and problem_type == "single_label_classification"
        else None,
        count_targets=count_labeled_examples
        if weights is None
        else partial(sum_label_weights, class_weights=weights),
        noise=noise,
        collate=collate,
    )


def build_token_classification_objective(
    vocab: VocabularyInfo, *, class_weights: Sequence[float] | Mapping[str, float] = ()
) -> Objective:
    """Token classification: one label per word, at its first token; other tokens have no label.

    `class_weights`, by label id or by label name, weight the cross-entropy."""
    weights = parse_class_weights(class_weights, vocab)

    def compute_losses(outputs: ForwardOutputs) -> dict[str, Tensor]:
        loss = cross_entropy(outputs["logits"], outputs["labels"], class_weights=weights)
        return {"loss": loss}

    def noise(example: Example, rng: np.random.Generator) -> Example:
        tags = example["labels"]
        return {**example, "labels": np.where(tags == IGNORED_TAG, IGNORE_INDEX, tags - 1)}

    def collate(examples: Sequence[Example]) -> Batch:
        labels = pad_sequences(
            [example["labels"] for example in examples], IGNORE_INDEX, pad_left=vocab.pad_left
        )
        return collate_labeled_texts(examples, vocab, {"labels": labels})

    return Objective(
        name="token-classification",
        compute_losses=compute_losses,
        compute_row_losses=compute_label_row_losses if weights is None else None,
        count_targets=count_label_targets
        if weights is None
        else partial(sum_label_weights, class_weights=weights),
        noise=noise,
        collate=collate,
    )


def build_question_answering_objective(vocab: VocabularyInfo) -> Objective:
    """Extractive question answering: predict the first and the last token of the answer (BERT)."""

    def compute_losses(outputs: ForwardOutputs) -> dict[str, Tensor]:
        return {
            boundary: cross_entropy(outputs[f"{boundary}_logits"], outputs[f"{boundary}_positions"])
            / 2
            for boundary in SPAN_BOUNDARIES
        }

    def collate(examples: Sequence[Example]) -> Batch:
        lengths = torch.tensor([len(example["tokens"]) for example in examples])
        padding = lengths.max() - lengths if vocab.pad_left else torch.zeros_like(lengths)
        labels = {
            f"{boundary}_positions": stack_values(examples, boundary) + padding
            for boundary in SPAN_BOUNDARIES
        }
        return collate_labeled_texts(examples, vocab, labels)

    def count_targets(batch: Batch) -> dict[str, int]:
        return dict.fromkeys(SPAN_BOUNDARIES, len(batch.labels["start_positions"]))

    return Objective(
        name="question-answering",
        compute_losses=compute_losses,
        count_targets=count_targets,
        collate=collate,
    )


def build_multiple_choice_objective(vocab: VocabularyInfo) -> Objective:
    """Multiple choice: predict the correct choice. Every choice is a row; the rows of an example are
    adjacent."""

    def compute_losses(outputs: ForwardOutputs) -> dict[str, Tensor]:
        labels = outputs["labels"]
        # (B * C, 1) -> (B, C)
        scores = outputs["mc_logits"].flatten().unflatten(0, (len(labels), -1))
        return {"loss": cross_entropy(scores, labels)}

    def collate(examples: Sequence[Example]) -> Batch:
        choices: list[Example] = []
        for example in examples:
            ends = np.cumsum(example["windows"])[:-1]
            tokens = np.split(example["tokens"], ends)
            types = np.split(example["types"], ends)
            choices += [{"tokens": a, "types": b} for a, b in zip(tokens, types, strict=True)]
        labels = stack_values([{"label": example["label"][0]} for example in examples], "label")
        return collate_labeled_texts(choices, vocab, {"labels": labels})

    return Objective(
        name="multiple-choice",
        compute_losses=compute_losses,
        count_targets=count_labeled_examples,
        collate=collate,
    )
