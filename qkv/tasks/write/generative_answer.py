"""Generative question answering: an encoder-decoder generates the answer to a question about a text.

    question, context ─ template ─ tokens, context marked ─ windows ─ answers ─ best answer

A long context is read in overlapping windows, each of which gives answers. They are ranked by score:
exp(log-probability / length ** `length_penalty`). Equal answers of several windows are merged and keep
the best score."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from qkv.data.encode.overflow import OVERFLOW_MODES
from qkv.decode import Result
from qkv.model.model import Model
from qkv.spec import Spec
from qkv.tasks.base import InputRow, TextOrPair
from qkv.tasks.read.answer import (
    AnswerResult,
    ExtractiveAnswerTask,
    check_question,
    check_question_and_context,
)
from qkv.tasks.requirements import (
    SEQ2SEQ_REQUIREMENT,
    SPAN_REQUIREMENT,
    TaskRequirement,
    can_rewrite_text,
    check_model_supports_task,
    combine_requirements,
)
from qkv.tasks.write.base import GenerationTask
from qkv.text import Encoding

MAX_GENERATIVE_INPUT_LENGTH = 512  # tokens of a question and a window (T5)
TEMPLATE_FIELD = re.compile(r"\{(question|context)\}")
ANSWER_REQUIREMENT = combine_requirements(SPAN_REQUIREMENT, SEQ2SEQ_REQUIREMENT)
SETTING_ALIASES = {  # settings of the extractive task, and their fields of GenerationConfig
    "top_k": "num_return_sequences",
    "max_answer_tokens": "max_new_tokens",
}


@dataclass(frozen=True, kw_only=True)
class GenerativeAnswerTask(GenerationTask[tuple[str, str], AnswerResult]):
    """Generative question answering by an encoder-decoder.

    `template`: the source text, with {question} and {context}.
    `allow_no_answer`: an empty answer is also a candidate.
    As in the extractive task, `top_k` is the number of answers (`num_return_sequences`) and
    `max_answer_tokens` their maximum length (`max_new_tokens`); the `top_k` of sampling is passed in
    `generate_kwargs`, where it implies `do_sample=True`, as temperature and top_p do."""

    name: ClassVar[str] = "answer"
    requirement: ClassVar[TaskRequirement] = SEQ2SEQ_REQUIREMENT
    overflow_modes: ClassVar[tuple[str, ...]] = OVERFLOW_MODES
    truncation: ClassVar[str] = "only_second"  # truncates the context, not the question
    uses_stride: ClassVar[bool] = True
    overflow: str = "window"
    template: str = "question: {question} context: {context}"
    allow_no_answer: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        template_fields = (
            TEMPLATE_FIELD.findall(self.template) if isinstance(self.template, str) else []
        )
        if sorted(template_fields) != ["context", "question"]:
            expected = "a text that contains {question} and {context} once each"
            raise ValueError(f"template is {self.template!r}, expected {expected}")

    def __call__(  # type: ignore[override]
        self, question: str, context: str, /, **settings: Any
    ) -> AnswerResult:
        """Return the answer to a question about a text."""
        return super().__call__((question, context), **settings)

    def with_settings(self, settings: dict[str, Any]) -> Self:
        for alias, name in SETTING_ALIASES.items():
            if alias in settings and name in settings:
                raise ValueError(f"{alias} and {name} are the same setting here, expected one")
        return super().with_settings(
            {SETTING_ALIASES.get(name, name): value for name, value in settings.items()}
        )

    @property
    def input_token_limit(self) -> int:
        return min(super().input_token_limit, self.max_input_length or MAX_GENERATIVE_INPUT_LENGTH)

    def prepare_texts(self, task_input: tuple[str, str], input_name: str) -> list[TextOrPair]:
        return [check_question_and_context(task_input, input_name)]

    def encode(self, texts: Sequence[TextOrPair]) -> list[Encoding]:
        """Encode the filled templates.

        Context tokens have sequence id 1, as in a text pair, and their offsets in the context."""
        before_template, after_template = self.template.split("{context}")
        sources: list[TextOrPair] = []
        context_spans: list[tuple[int, int]] = []
        for question, context in (text for text in texts if isinstance(text, tuple)):
            before = before_template.replace("{question}", question)
            after = after_template.replace("{question}", question)
            sources.append(before + context + after)
            context_spans.append((len(before), len(before + context)))
        encodings = self.tokenizer.encode_batch(sources)
        return [
            mark_context(encoding, *span)
            for encoding, span in zip(encodings, context_spans, strict=True)
        ]

    def split_encoding(self, encoding: Encoding, input_name: str) -> list[Encoding]:
        check_question(encoding, self.input_token_limit, input_name)
        return super().split_encoding(encoding, input_name)

    def build_request(self, row: InputRow) -> dict[str, Any]:
        return {"source": row.encoding.input_ids}

    def postprocess(
        self,
        task_input: tuple[str, str],
        rows: Sequence[InputRow],
        predictions: Sequence[list[Result]],
    ) -> AnswerResult:
        _, context = task_input
        merged: dict[str, AnswerResult] = {}
        for row, results in zip(rows, predictions, strict=True):
            for result in results:
                answer = self.build_answer(context, row.encoding, result)
                key = " ".join(answer.text.lower().split())
                merged[key] = merge_answers(answer, merged.get(key, answer))
        if not self.allow_no_answer and len(merged) > 1:
            merged.pop("", None)
        answers = sorted(merged.values(), key=lambda answer: -answer.score)
        candidates = tuple(answers[: self.generation_config.num_return_sequences])
        return replace(candidates[0], candidates=candidates)

    def build_answer(self, context: str, encoding: Encoding, result: Result) -> AnswerResult:
        """Return a generated answer, with its offsets if it occurs in the window."""
        token_ids = self.filter_vocabulary_ids(result.token_ids)
        text = self.tokenizer.decode(token_ids, skip_special_tokens=True).strip()
        score = math.exp(result.score)
        context_offsets = [
            offsets
            for offsets, sequence_id in zip(
                encoding.offset_mapping, encoding.sequence_ids, strict=True
            )
            if sequence_id == 1
        ]
        span = find_phrase(text, context, context_offsets[0][0], context_offsets[-1][1])
        if span:
            return AnswerResult(context[slice(*span)], score, *span)
        return AnswerResult(text, score, None, None)


def select_answer_task(
    model: Model, generative: bool | None
) -> type[ExtractiveAnswerTask] | type[GenerativeAnswerTask]:
    """Return the class of the answer task; `generative` None: determined by the model."""
    if generative not in (None, True, False):
        raise ValueError(f"generative is {generative!r}, expected true, false or none")
    spec = model.spec
    is_generative_model = (
        isinstance(spec, Spec) and can_rewrite_text(spec) and not SPAN_REQUIREMENT.predicate(spec)
    )
    if generative is None:
        if not is_generative_model:
            check_model_supports_task(model, "answer", ANSWER_REQUIREMENT)
        generative = is_generative_model
    return GenerativeAnswerTask if generative else ExtractiveAnswerTask


def merge_answers(answer: AnswerResult, other: AnswerResult) -> AnswerResult:
    """Return the one of two equal answers that has offsets, with the better score."""
    first, second = sorted(
        (answer, other), key=lambda candidate: (candidate.start is None, -candidate.score)
    )
    return replace(first, score=max(first.score, second.score))


def mark_context(encoding: Encoding, start: int, end: int) -> Encoding:
    """Set sequence id 1 and offsets relative to `start` for the tokens from `start` up to `end`."""
    offsets = [*encoding.offset_mapping]
    sequence_ids = [*encoding.sequence_ids]
    for i, (token_start, token_end) in enumerate(encoding.offset_mapping):
        if sequence_ids[i] is not None and token_start < end and token_end > start:
            offsets[i] = (max(token_start, start) - start, min(token_end, end) - start)
            sequence_ids[i] = 1
    return replace(encoding, offset_mapping=offsets, sequence_ids=sequence_ids)


def find_phrase(phrase: str, text: str, start: int, end: int) -> tuple[int, int] | None:
    """Return the first span of a phrase in text[start:end], ignoring case and whitespace.

    Whole words are preferred to parts of words."""
    pattern = r"\s+".join(map(re.escape, phrase.split()))
    if not pattern:
        return None
    for candidate in (rf"(?<!\w){pattern}(?!\w)", pattern):
        match = re.compile(candidate, re.IGNORECASE).search(text, start, end)
        if match:
            return match.span()
    return None
