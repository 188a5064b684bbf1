"""The evaluator of extractive question answering: the best span over all windows of a question."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

from qkv.data.batches.sampler import Indices
from qkv.data.encode.answer_spans import (
    MAX_ANSWER_TOKENS,
    ContextWindow,
    WindowPrediction,
    predict_spans,
    rank_answer_spans,
)
from qkv.data.encode.encoder import Encoder
from qkv.data.encode.labels import QuestionAnsweringEncoder
from qkv.data.read.record import Record
from qkv.train.evaluate.evaluator import Evaluator, Predictions
from qkv.train.evaluate.evaluators import RecordSource
from qkv.train.evaluate.metrics import exact_match_score, squad_f1_score
from qkv.train.objectives.context import SetupContext
from qkv.train.objectives.objective import ForwardOutputs
from qkv.validate import check_number

ENCODE_BATCH_SIZE = 256  # number of records that are encoded at once


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
    context: SetupContext, encoder: Encoder, read_records: RecordSource
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
