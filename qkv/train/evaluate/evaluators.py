"""Evaluators: metrics of the outputs of a network over a whole dataset, one builder per type of
objective.

F1 is not a mean over batches, so an evaluator collects values of each batch and computes the metrics at
the end. Generates no text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

from qkv.batch import IGNORE_INDEX
from qkv.data.batches.sampler import Indices
from qkv.data.encode.answer_spans import (
    MAX_ANSWER_TOKENS,
    ContextWindow,
    WindowPrediction,
    predict_spans,
    rank_answer_spans,
)
from qkv.data.encode.encoder import RecordEncoder
from qkv.data.encode.labels import (
    QuestionAnsweringEncoder,
    TokenClassificationEncoder,
    get_label_id,
    map_words_to_first_tokens,
)
from qkv.data.read.record import Record
from qkv.train.evaluate.class_report import (
    EMPTY_CLASS_REPORT,
    ClassReport,
    build_entity_report,
    build_label_report,
    build_multi_label_report,
)
from qkv.train.evaluate.metrics import (
    ENTITY_TAG_PATTERN,
    entity_f1_score,
    exact_match_score,
    fraction_true,
    label_f1_score,
    macro_f1_score,
    matthews_corrcoef,
    multilabel_f1_score,
    pearsonr,
    precision_recall_f1,
    spearmanr,
    squad_f1_score,
)
from qkv.train.objectives.context import SetupContext
from qkv.train.objectives.objective import ForwardOutputs
from qkv.validate import check_number, shorten_repr

ENCODE_BATCH_SIZE = 256  # number of records that are encoded at once
RecordSource = Callable[[], Iterable[Record]]  # in the order of the sampler's examples


class Predictions(NamedTuple):
    """The predictions of a dataset and their references, in the same order: the arguments of metrics."""

    predictions: list[Any]
    references: list[Any]


class Evaluator(NamedTuple):
    """Metrics of network outputs.

    `collect` returns the values that are needed of a batch, given the indices of its examples; the
    other functions receive the values of all batches. They are plain Python values; those of several
    processes are concatenated in any order."""

    metric_names: tuple[str, ...] = ()
    collect: Callable[[ForwardOutputs, Indices], list[Any]] = lambda outputs, indices: []
    compute_metrics: Callable[[list[Any]], dict[str, float]] = lambda collected: {}
    describe_settings: Callable[[], dict[str, Any]] = dict  # what must be reported with the metrics
    get_predictions: Callable[[list[Any]], Predictions] | None = None  # None: there are none
    build_class_report: Callable[[list[Any]], ClassReport] = lambda collected: EMPTY_CLASS_REPORT


EvaluatorFactory = Callable[[SetupContext, RecordEncoder, RecordSource], Evaluator]
MetricFunction = Callable[[list[Any], list[Any]], float]  # of predictions and references


def add_custom_metrics(
    evaluator: Evaluator, metrics: Mapping[str, MetricFunction], objective_name: str
) -> Evaluator:
    """Return the evaluator with further metrics, functions of the predictions and the references."""
    if not metrics:
        return evaluator
    get_predictions = evaluator.get_predictions
    if get_predictions is None:
        raise ValueError(
            f"metrics {', '.join(metrics)}: objective {objective_name} has no predictions to compare; "
            "expected a classification, question-answering or multiple-choice objective"
        )
    for name in metrics.keys() & {"loss", *evaluator.metric_names}:
        raise ValueError(f"metrics {name!r}: the objective has this metric; choose another name")

    def compute_metrics(collected: list[Any]) -> dict[str, float]:
        predictions = get_predictions(collected)
        custom = {name: function(*predictions) for name, function in metrics.items()}
        for name, value in custom.items():
            try:
                custom[name] = float(value)
            except (TypeError, ValueError):
                raise ValueError(
                    f"metrics {name!r} returned {shorten_repr(value)}, expected a number"
                ) from None
        return evaluator.compute_metrics(collected) | custom

    return evaluator._replace(
        metric_names=(*evaluator.metric_names, *metrics), compute_metrics=compute_metrics
    )


def build_loss_evaluator(
    context: SetupContext, encoder: RecordEncoder, read_records: RecordSource
) -> Evaluator:
    """Return an evaluator without metrics besides the loss."""
    return Evaluator()


# --- tokens ---


def build_token_evaluator(
    context: SetupContext, encoder: RecordEncoder, read_records: RecordSource
) -> Evaluator:
    """Return the evaluator of token accuracy."""
    return TOKEN_EVALUATOR


def count_correct_labels(outputs: ForwardOutputs) -> tuple[int, int]:
    """Return the number of labels that have the highest logit, and the number of labels."""
    if "logits" not in outputs or "labels" not in outputs or outputs["labels"].is_floating_point():
        return 0, 0
    labels = outputs["labels"].flatten()
    logits = outputs["logits"]
    if logits.dim() > 1:
        logits = logits.flatten(0, -2)
    if logits.shape[:-1] != labels.shape:
        return 0, 0
    mask = labels != IGNORE_INDEX
    return int((logits.argmax(-1) == labels)[mask].sum()), int(mask.sum())


def compute_accuracy(counts: list[tuple[int, int]]) -> float:
    """Return the accuracy, given the (correct, total) counts of all batches."""
    return sum(correct for correct, _ in counts) / max(sum(total for _, total in counts), 1)


# Token accuracy: the fraction of labels that have the highest logit.
TOKEN_EVALUATOR = Evaluator(
    metric_names=("accuracy",),
    collect=lambda outputs, indices: [count_correct_labels(outputs)],
    compute_metrics=lambda collected: {"accuracy": compute_accuracy(collected)},
)


def build_replaced_token_detection_evaluator(
    context: SetupContext, encoder: RecordEncoder, read_records: RecordSource
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
    context: SetupContext, encoder: RecordEncoder, read_records: RecordSource
) -> Evaluator:
    """Return the evaluator of the problem type."""
    builders = {
        "single_label_classification": build_single_label_evaluator,
        "multi_label_classification": build_multi_label_evaluator,
        "regression": build_regression_evaluator,
    }
    return builders[context.recipe.objective.problem_type](context)


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
    context: SetupContext, encoder: RecordEncoder, read_records: RecordSource
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
    context: SetupContext, encoder: RecordEncoder, read_records: RecordSource
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


# --- answers ---


class QuestionSet(NamedTuple):
    """Questions: contexts, reference answers, and the windows of all questions in order."""

    contexts: list[str]
    references: list[list[str]]
    windows: list[ContextWindow]
    question_index: list[int]  # index of the question of each window

    @staticmethod
    def from_records(encoder: QuestionAnsweringEncoder, records: Iterable[Record]) -> QuestionSet:
        """Encode the records, ENCODE_BATCH_SIZE at a time."""
        questions = QuestionSet([], [], [], [])
        all_records = list(records)
        for start in range(0, len(all_records), ENCODE_BATCH_SIZE):
            batch = all_records[start : start + ENCODE_BATCH_SIZE]
            for record, windows in zip(batch, encoder.encode_windows(batch), strict=True):
                questions.question_index.extend([len(questions.contexts)] * len(windows))
                questions.windows.extend(
                    ContextWindow.from_encoding(window, encoder.find_no_answer_index(window))
                    for window in windows
                )
                questions.contexts.append(record.get_text("context"))
                questions.references.append([answer.text for answer in record.get_answers()])
        return questions


def build_question_answering_evaluator(
    context: SetupContext, encoder: RecordEncoder, read_records: RecordSource
) -> Evaluator:
    """Return the evaluator of answers: SQuAD's exact match and F1 of the best span over all windows of
    a question.

    "No answer" is a possible prediction if some questions have no answer."""
    assert isinstance(encoder, QuestionAnsweringEncoder)
    max_answer_tokens = context.get_setting("max_answer_tokens", MAX_ANSWER_TOKENS)
    check_number("objective.max_answer_tokens", max_answer_tokens, integer=True, at_least=1)
    load_questions = cache(lambda: QuestionSet.from_records(encoder, read_records()))

    def collect(outputs: ForwardOutputs, indices: Indices) -> list[Any]:
        questions = load_questions()
        predictions = predict_spans(
            outputs["start_logits"],
            outputs["end_logits"],
            [questions.windows[i] for i in indices],
            pad_left=context.vocab.pad_left,
            max_answer_tokens=max_answer_tokens,
        )
        question_indices = [questions.question_index[i] for i in indices]
        return list(zip(question_indices, predictions, strict=True))

    def get_predictions(collected: list[Any]) -> Predictions:
        questions = load_questions()
        windows_by_question: dict[int, list[WindowPrediction]] = {}
        for question, prediction in collected:
            windows_by_question.setdefault(question, []).append(prediction)
        texts = []
        for question, windows in windows_by_question.items():
            spans = rank_answer_spans(windows, allow_no_answer=allows_no_answer())
            texts.append(spans[0].extract_text(questions.contexts[question]) if spans else "")
        return Predictions(texts, [questions.references[i] for i in windows_by_question])

    def compute_metrics(collected: list[Any]) -> dict[str, float]:
        predictions, references = get_predictions(collected)
        return {
            name: sum(map(score, predictions, references)) / len(references)
            for name, score in (("exact_match", exact_match_score), ("f1", squad_f1_score))
        }

    def allows_no_answer() -> bool:
        return not all(load_questions().references)

    def describe_settings() -> dict[str, Any]:
        return {
            "max_answer_tokens": max_answer_tokens,
            "stride": encoder.stride,
            "allow_no_answer": allows_no_answer(),
        }

    return Evaluator(
        ("exact_match", "f1"), collect, compute_metrics, describe_settings, get_predictions
    )
