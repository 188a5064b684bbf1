"""Evaluators: one builder per type of objective. Generates no text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from qkv.batch import IGNORE_INDEX
from qkv.correlation import pearsonr, spearmanr
from qkv.data.batches.sampler import Indices
from qkv.data.encode.encoder import Encoder
from qkv.data.encode.labels import (
    TokenClassificationEncoder,
    get_label_id,
    map_words_to_first_tokens,
)
from qkv.data.read.record import Record
from qkv.train.evaluate.class_report import (
    ClassReport,
    build_entity_report,
    build_label_report,
    build_multi_label_report,
)
from qkv.train.evaluate.evaluator import Evaluator, Predictions
from qkv.train.evaluate.metrics import (
    ENTITY_TAG_PATTERN,
    entity_f1_score,
    fraction_true,
    label_f1_score,
    macro_f1_score,
    matthews_corrcoef,
    multilabel_f1_score,
    precision_recall_f1,
)
from qkv.train.objectives.context import SetupContext
from qkv.train.objectives.objective import ForwardOutputs

NO_LABELS = torch.empty(0, dtype=torch.long)
RecordSource = Callable[[], Iterable[Record]]  # in the order of the sampler's examples


EvaluatorFactory = Callable[[SetupContext, Encoder, RecordSource], Evaluator]


# --- tokens ---


def build_token_evaluator(
    context: SetupContext, encoder: Encoder, read_records: RecordSource
) -> Evaluator:
    """Return the evaluator of token accuracy."""
    return TOKEN_EVALUATOR


def select_predicted_labels(outputs: ForwardOutputs) -> tuple[Tensor, Tensor]:
    """Return the label with the highest logit for every target (N,), and the targets (N,)."""
    if "logits" not in outputs or "labels" not in outputs or outputs["labels"].is_floating_point():
        return NO_LABELS, NO_LABELS
    labels = outputs["labels"].flatten()
    logits = outputs["logits"]
    if logits.dim() > 1:
        logits = logits.flatten(0, -2)
    if logits.shape[:-1] != labels.shape:
        return NO_LABELS, NO_LABELS
    mask = labels != IGNORE_INDEX
    return logits.argmax(-1)[mask], labels[mask]


def count_correct_labels(outputs: ForwardOutputs) -> tuple[int, int]:
    """Return the number of labels that have the highest logit, and the number of labels."""
    predicted, labels = select_predicted_labels(outputs)
    return int((predicted == labels).sum()), len(labels)


def compute_accuracy(counts: Iterable[tuple[int, int]]) -> float:
    """Return the accuracy, given the (correct, total) counts of all batches."""
    rows = list(counts)
    return sum(correct for correct, _ in rows) / max(sum(total for _, total in rows), 1)


def collect_predicted_labels(outputs: ForwardOutputs, indices: Indices) -> list[Any]:
    """Return the counts of a batch, and the predicted and correct label of every target."""
    predicted, labels = select_predicted_labels(outputs)
    return [(*count_correct_labels(outputs), predicted.tolist(), labels.tolist())]


# Token accuracy: the fraction of labels that have the highest logit.
TOKEN_EVALUATOR = Evaluator(
    metric_names=("accuracy",),
    collect=lambda outputs, indices: [count_correct_labels(outputs)],
    compute_metrics=lambda collected: {"accuracy": compute_accuracy(row[:2] for row in collected)},
    get_predictions=lambda collected: Predictions(
        [label for row in collected for label in row[2]],
        [label for row in collected for label in row[3]],
    ),
    collect_predictions=collect_predicted_labels,
)


def build_sentence_pair_evaluator(
    context: SetupContext, encoder: Encoder, read_records: RecordSource
) -> Evaluator:
    """Return the evaluator of masked tokens, `accuracy`, and of sentence pairs, `pair_accuracy`."""

    def collect(outputs: ForwardOutputs, indices: Indices) -> list[Any]:
        pairs = outputs["seq_relationship_logits"].argmax(-1) == outputs["pair_label"]
        return [(*count_correct_labels(outputs), int(pairs.sum()), len(pairs))]

    def compute_metrics(collected: list[Any]) -> dict[str, float]:
        return {
            "accuracy": compute_accuracy(row[:2] for row in collected),
            "pair_accuracy": compute_accuracy(row[2:] for row in collected),
        }

    return Evaluator(("accuracy", "pair_accuracy"), collect, compute_metrics)


def build_replaced_token_detection_evaluator(
    context: SetupContext, encoder: Encoder, read_records: RecordSource
) -> Evaluator:
    """Return the evaluator of the discriminator, and of the generator's accuracy (ELECTRA)."""

    def collect(outputs: ForwardOutputs, indices: Indices) -> list[Any]:
        mask = outputs["attention_mask"]
        is_replaced = outputs["is_replaced"]
        predicted = outputs["discriminator_logits"] > 0
        flags = [
            (predicted == is_replaced) & mask,
            mask,
            predicted & is_replaced & mask,
            predicted & mask,
            is_replaced & mask,
        ]
        return [(*count_correct_labels(outputs), *(int(flag.sum()) for flag in flags))]

    def compute_metrics(collected: list[Any]) -> dict[str, float]:
        totals = [sum(column) for column in zip(*collected, strict=True)]
        num_correct, num_labels, num_agreeing, num_tokens, *detection_counts = totals
        return {
            "accuracy": num_correct / max(num_labels, 1),
            "replaced_accuracy": num_agreeing / max(num_tokens, 1),
            "replaced_f1": precision_recall_f1(*detection_counts).f1,
        }

    return Evaluator(("accuracy", "replaced_accuracy", "replaced_f1"), collect, compute_metrics)


# --- labels and numbers ---


def build_sequence_classification_evaluator(
    context: SetupContext, encoder: Encoder, read_records: RecordSource
) -> Evaluator:
    """Return the evaluator of the problem type."""
    builders = {
        "single_label_classification": build_single_label_evaluator,
        "multi_label_classification": build_multi_label_evaluator,
        "regression": build_regression_evaluator,
    }
    return builders[context.recipe.objective.problem_type](context)


def build_image_classification_evaluator(
    context: SetupContext, encoder: Encoder, read_records: RecordSource
) -> Evaluator:
    """Return the evaluator of one label per image."""
    return build_single_label_evaluator(context)


def build_frame_classification_evaluator(
    context: SetupContext, encoder: Encoder, read_records: RecordSource
) -> Evaluator:
    """Return the evaluator of one label per frame: the fraction of right frames, and of clips whose
    frames are all right."""
    label_names = context.label_names

    def collect(outputs: ForwardOutputs, indices: Indices) -> list[Any]:
        predictions = outputs["logits"].argmax(-1).tolist()
        return [
            [(a, b) for a, b in zip(predicted, labels, strict=True) if b != IGNORE_INDEX]
            for predicted, labels in zip(predictions, outputs["labels"].tolist(), strict=True)
        ]

    def compute_metrics(collected: list[Any]) -> dict[str, float]:
        frames = [pair for clip in collected for pair in clip]
        return {
            "accuracy": fraction_true(a == b for a, b in frames),
            "clip_accuracy": fraction_true(all(a == b for a, b in clip) for clip in collected),
        }

    def get_predictions(collected: list[Any]) -> Predictions:
        frames = [pair for clip in collected for pair in clip]
        return Predictions([label_names[a] for a, _ in frames], [label_names[b] for _, b in frames])

    return Evaluator(
        metric_names=("accuracy", "clip_accuracy"),
        collect=collect,
        compute_metrics=compute_metrics,
        get_predictions=get_predictions,
        build_class_report=lambda collected: build_label_report(
            label_names, *get_predictions(collected)
        ),
    )


def build_single_label_evaluator(context: SetupContext) -> Evaluator:
    """Return the evaluator of one label per text; `f1` is that of the second of two labels, as in
    GLUE."""
    label_names = context.label_names
    is_binary = len(label_names) == 2

    def collect(outputs: ForwardOutputs, indices: Indices) -> list[Any]:
        return list(
            zip(outputs["logits"].argmax(-1).tolist(), outputs["labels"].tolist(), strict=True)
        )

    def compute_metrics(collected: list[Any]) -> dict[str, float]:
        predictions, references = map(list, zip(*collected, strict=True))
        metrics = {"accuracy": fraction_true(a == b for a, b in collected)}
        if is_binary:
            metrics["f1"] = label_f1_score(predictions, references, 1)
        metrics["macro_f1"] = macro_f1_score(predictions, references)
        metrics["matthews_correlation"] = matthews_corrcoef(predictions, references)
        return metrics

    def describe_settings() -> dict[str, Any]:
        return {"f1": f"of {label_names[1]}"} if is_binary else {}

    def get_predictions(collected: list[Any]) -> Predictions:
        return Predictions(
            [label_names[prediction] for prediction, _ in collected],
            [label_names[reference] for _, reference in collected],
        )

    return Evaluator(
        metric_names=("accuracy", *["f1"] * is_binary, "macro_f1", "matthews_correlation"),
        collect=collect,
        compute_metrics=compute_metrics,
        describe_settings=describe_settings,
        get_predictions=get_predictions,
        build_class_report=lambda collected: build_label_report(
            label_names, *get_predictions(collected)
        ),
    )


def build_multi_label_evaluator(context: SetupContext) -> Evaluator:
    """Return the evaluator of several labels per text: `accuracy` counts exact sets of labels, `f1` is
    the micro average."""

    def collect(outputs: ForwardOutputs, indices: Indices) -> list[Any]:
        predictions = convert_to_label_sets((outputs["logits"] > 0).tolist())
        references = convert_to_label_sets((outputs["labels"] > 0).tolist())
        return list(zip(predictions, references, strict=True))

    def compute_metrics(collected: list[Any]) -> dict[str, float]:
        predictions, references = zip(*collected, strict=True)
        averages = multilabel_f1_score(predictions, references)
        return {
            "accuracy": fraction_true(a == b for a, b in collected),
            "f1": averages.micro,
            "macro_f1": averages.macro,
        }

    def get_predictions(collected: list[Any]) -> Predictions:
        def name_labels(label_ids: frozenset[int]) -> frozenset[str]:
            return frozenset(context.label_names[i] for i in label_ids)

        predictions, references = zip(*collected, strict=True)
        return Predictions([*map(name_labels, predictions)], [*map(name_labels, references)])

    return Evaluator(
        metric_names=("accuracy", "f1", "macro_f1"),
        collect=collect,
        compute_metrics=compute_metrics,
        get_predictions=get_predictions,
        build_class_report=lambda collected: build_multi_label_report(
            context.label_names, *get_predictions(collected)
        ),
    )


def convert_to_label_sets(rows: list[list[bool]]) -> list[frozenset[int]]:
    """Convert rows of flags, one per label, to sets of label ids."""
    return [frozenset(label for label, flag in enumerate(row) if flag) for row in rows]


def build_regression_evaluator(context: SetupContext) -> Evaluator:
    """Return the evaluator of one number per text: Pearson and Spearman correlation."""

    def collect(outputs: ForwardOutputs, indices: Indices) -> list[Any]:
        return list(
            zip(outputs["logits"].squeeze(-1).tolist(), outputs["labels"].tolist(), strict=True)
        )

    def compute_metrics(collected: list[Any]) -> dict[str, float]:
        predictions, references = zip(*collected, strict=True)
        return {
            "pearson": pearsonr(predictions, references),
            "spearman": spearmanr(predictions, references),
        }

    metric_names = ("pearson", "spearman")
    return Evaluator(metric_names, collect, compute_metrics, get_predictions=split_pairs)


def split_pairs(collected: list[Any]) -> Predictions:
    """Return predictions and references that were collected in pairs."""
    return Predictions([a for a, _ in collected], [b for _, b in collected])


def build_multiple_choice_evaluator(
    context: SetupContext, encoder: Encoder, read_records: RecordSource
) -> Evaluator:
    """Return the evaluator of multiple choice: accuracy of the choice with the highest score."""

    def collect(outputs: ForwardOutputs, indices: Indices) -> list[Any]:
        labels = outputs["labels"]
        # (B * C, 1) -> (B, C)
        scores = outputs["mc_logits"].flatten().unflatten(0, (len(labels), -1))
        return list(zip(scores.argmax(-1).tolist(), labels.tolist(), strict=True))

    def compute_metrics(collected: list[Any]) -> dict[str, float]:
        return {"accuracy": fraction_true(a == b for a, b in collected)}

    return Evaluator(("accuracy",), collect, compute_metrics, get_predictions=split_pairs)


# --- words ---


def build_token_classification_evaluator(
    context: SetupContext, encoder: Encoder, read_records: RecordSource
) -> Evaluator:
    """Return the evaluator of tags: word accuracy and entity F1, or macro F1 if tags are not entities.

    The prediction for a word that was truncated or has no token is "O"."""
    assert isinstance(encoder, TokenClassificationEncoder)
    label_names = context.label_names
    has_entities = all(ENTITY_TAG_PATTERN.fullmatch(name) for name in label_names)
    load_records = cache(lambda: list(read_records()))

    def collect(outputs: ForwardOutputs, indices: Indices) -> list[Any]:
        rows = zip(indices.tolist(), outputs["logits"].argmax(-1), outputs["labels"], strict=True)
        return [(index, row[labels != IGNORE_INDEX].tolist()) for index, row, labels in rows]

    def get_predictions(collected: list[Any]) -> Predictions:
        predictions: list[list[str]] = []
        references: list[list[str]] = []
        for index, label_ids in collected:
            record = load_records()[index]
            tags: Any = record["tags"]
            words: Iterable[int] = range(len(tags))
            if len(label_ids) != len(tags):
                words = map_words_to_first_tokens(encoder.encode_words(record))
            predicted = dict(zip(words, (label_names[i] for i in label_ids), strict=True))
            predictions.append([predicted.get(word, "O") for word in range(len(tags))])
            references.append([label_names[get_label_id(tag, label_names, record)] for tag in tags])
        return Predictions(predictions, references)

    def compute_metrics(collected: list[Any]) -> dict[str, float]:
        predictions, references = get_predictions(collected)
        flat_predictions = [*chain.from_iterable(predictions)]
        flat_references = [*chain.from_iterable(references)]
        pairs = zip(flat_predictions, flat_references, strict=True)
        metrics = {"accuracy": fraction_true(a == b for a, b in pairs)}
        if has_entities:
            return metrics | entity_f1_score(predictions, references)._asdict()
        return metrics | {
            "macro_f1": macro_f1_score(flat_predictions, flat_references, label_names)
        }

    def build_class_report(collected: list[Any]) -> ClassReport:
        predictions, references = get_predictions(collected)
        if has_entities:
            return build_entity_report(predictions, references)
        return build_label_report(
            label_names, [*chain.from_iterable(predictions)], [*chain.from_iterable(references)]
        )

    def describe_settings() -> dict[str, Any]:
        return (
            {"f1": "of entities, type and boundaries correct (conlleval)"} if has_entities else {}
        )

    f1_names = ("precision", "recall", "f1") if has_entities else ("macro_f1",)
    return Evaluator(
        metric_names=("accuracy", *f1_names),
        collect=collect,
        compute_metrics=compute_metrics,
        describe_settings=describe_settings,
        get_predictions=get_predictions,
        build_class_report=build_class_report,
    )
