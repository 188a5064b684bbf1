"""Extractive question answering. A long context is read in overlapping windows.

Equal answers, from several windows or after alignment to words, are merged and their scores are added."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch

from qkv.batch import Batch
from qkv.data.encode.answer_spans import ContextWindow, WindowPrediction, predict_spans
from qkv.data.encode.overflow import OVERFLOW_MODES
from qkv.tasks.base import InputRow, OutputTensors, Task, TextOrPair, trim_span
from qkv.tasks.checks import check_input_text
from qkv.tasks.requirements import SPAN_REQUIREMENT, TaskRequirement
from qkv.text import Encoding
from qkv.validate import check_number

MAX_EXTRACTIVE_INPUT_LENGTH = 384  # tokens of a question and a window


@dataclass(frozen=True)
class AnswerResult:
    """The best answer: the context from `start` up to `end`; an empty text means no answer.

    `start` and `end` are None for a generated answer that does not occur in the context.
    `candidates` are the best answers, this one first."""

    text: str
    score: float
    start: int | None
    end: int | None
    candidates: tuple[AnswerResult, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ExtractiveAnswerTask(Task[tuple[str, str], AnswerResult]):
    """Extractive question answering.

    `top_k`: number of answers. `max_answer_tokens`: maximum length of an answer.
    `allow_no_answer`: "no answer" is also a candidate.
    `align_to_words`: answers start and end at word boundaries of the tokenizer."""

    name: ClassVar[str] = "answer"
    requirement: ClassVar[TaskRequirement] = SPAN_REQUIREMENT
    overflow_modes: ClassVar[tuple[str, ...]] = OVERFLOW_MODES
    truncation: ClassVar[str] = "only_second"  # truncates the context, not the question
    uses_stride: ClassVar[bool] = True
    overflow: str = "window"
    top_k: int = 1
    max_answer_tokens: int = 15
    allow_no_answer: bool = False
    align_to_words: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("top_k", self.top_k, integer=True, at_least=1)
        check_number("max_answer_tokens", self.max_answer_tokens, integer=True, at_least=1)

    def __call__(  # type: ignore[override]
        self, question: str, context: str, /, **settings: Any
    ) -> AnswerResult:
        """Return the answer to a question about a text."""
        return super().__call__((question, context), **settings)

    @property
    def input_token_limit(self) -> int:
        return min(super().input_token_limit, self.max_input_length or MAX_EXTRACTIVE_INPUT_LENGTH)

    def prepare_texts(self, task_input: tuple[str, str], input_name: str) -> list[TextOrPair]:
        return [check_question_and_context(task_input, input_name)]

    def split_encoding(self, encoding: Encoding, input_name: str) -> list[Encoding]:
        check_question(encoding, self.input_token_limit, input_name)
        return super().split_encoding(encoding, input_name)

    def extract_predictions(
        self, outputs: OutputTensors, batch: Batch, rows: Sequence[InputRow]
    ) -> list[WindowPrediction]:
        windows = [self.build_window(row.encoding) for row in rows]
        start_logits = outputs["start_logits"].float()
        end_logits = outputs["end_logits"].float()
        allowed = torch.zeros(start_logits.shape, dtype=torch.bool)  # (B, T)
        for row_allowed, window in zip(allowed, windows, strict=True):
            row_allowed[: len(window.context_mask)] = torch.from_numpy(window.context_mask)
            row_allowed[window.no_answer_index] = True
        start_log_probs, end_log_probs = (
            logits.masked_fill(~allowed.to(logits.device), -torch.inf).log_softmax(-1).cpu()
            for logits in (start_logits, end_logits)
        )
        # After alignment to words, several spans may be the same answer.
        num_spans = 2 * self.top_k + 10 if self.align_to_words else self.top_k
        return predict_spans(
            start_log_probs,
            end_log_probs,
            windows,
            max_answer_tokens=min(self.max_answer_tokens, start_logits.shape[1]),
            top_k=num_spans,
        )

    def build_window(self, encoding: Encoding) -> ContextWindow:
        """Return the window of an encoding, with the offsets of words if aligned to words."""
        cls_id = self.tokenizer.cls_token_id
        has_cls = cls_id is not None and cls_id in encoding.input_ids
        no_answer_index = encoding.input_ids.index(cls_id) if has_cls else 0  # type: ignore[arg-type]
        window = ContextWindow.from_encoding(encoding, no_answer_index)
        if not self.align_to_words:
            return window
        tokens = [
            *zip(encoding.sequence_ids, encoding.word_ids, encoding.offset_mapping, strict=True)
        ]
        word_spans: dict[int, tuple[int, int]] = {}
        for sequence_id, word_id, (start, end) in tokens:
            if sequence_id == 1 and word_id is not None:
                word_spans[word_id] = (word_spans.get(word_id, (start, end))[0], end)
        offsets = [
            word_spans[word_id] if sequence_id == 1 and word_id is not None else offset
            for sequence_id, word_id, offset in tokens
        ]
        return window._replace(offsets=np.array(offsets, np.int32).reshape(-1, 2))

    def postprocess(
        self, task_input: tuple[str, str], rows: Sequence[InputRow], predictions: Sequence[Any]
    ) -> AnswerResult:
        _, context = task_input
        merged: dict[str, AnswerResult] = {}
        for span in (span for window in predictions for span in window.spans):
            start, end = trim_span(context, span.start, span.end)
            answer = AnswerResult(context[start:end], math.exp(span.score), start, end)
            key = answer.text.lower()
            same = merged.get(key)
            merged[key] = replace(same, score=same.score + answer.score) if same else answer
        answers = [answer for key, answer in merged.items() if key]
        answers = answers or [AnswerResult("", 0.0, 0, 0)]
        if self.allow_no_answer:
            score = math.exp(min(window.no_answer_score for window in predictions))
            answers.append(AnswerResult("", score, 0, 0))
        best = tuple(sorted(answers, key=lambda answer: -answer.score)[: self.top_k])
        return replace(best[0], candidates=best)


def check_question_and_context(task_input: tuple[str, str], input_name: str) -> tuple[str, str]:
    """Return the question and the context if both are texts that are not empty."""
    if not isinstance(task_input, tuple) or len(task_input) != 2:
        raise ValueError(f"{input_name}: expected a tuple of a question and a context")
    question = check_input_text(task_input[0], f"the question of {input_name}")
    return question, check_input_text(task_input[1], input_name)


def check_question(encoding: Encoding, max_tokens: int, input_name: str) -> None:
    """Check that question and context have tokens and that the question fits into a row."""
    for sequence_id, name in enumerate((f"the question of {input_name}", input_name)):
        if sequence_id not in encoding.sequence_ids:
            raise ValueError(
                f"{name}: the tokenizer has no tokens for its characters; expected words"
            )
    num_question = len(encoding) - encoding.sequence_ids.count(1)
    if num_question >= max_tokens:
        raise ValueError(
            f"the question of {input_name}: {num_question:,} tokens, "
            f"expected fewer than the limit of {max_tokens:,}"
        )
