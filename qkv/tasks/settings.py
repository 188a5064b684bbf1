"""The settings of every task as typed keyword arguments, for the signature of `qkv.task`.

`tests/tasks/test_settings.py` compares the names and types with the fields of the tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from qkv.decode.settings import GenerationSettings
from qkv.model.model import Model
from qkv.tasks.write.constraints import JsonSchema


class TaskSettings(TypedDict, total=False):
    """Settings of every task."""

    overflow: str
    max_input_length: int | None
    stride: int | None


class ClassifySettings(TaskSettings, total=False):
    top_k: int | None
    function_to_apply: str | None
    candidate_labels: Sequence[str]
    hypothesis_template: str
    multi_label: bool


class TagSettings(TaskSettings, total=False):
    aggregation: str
    ignore_labels: Sequence[str]


class FillSettings(TaskSettings, total=False):
    top_k: int
    targets: Sequence[str]


class EmbedSettings(TaskSettings, total=False):
    pooling: str | None
    normalize: bool | None


class MatchSettings(TaskSettings, total=False):
    top_k: int | None
    candidate_labels: Sequence[str]
    hypothesis_template: str


class DetectSettings(TaskSettings, total=False):
    threshold: float


class ScoreSettings(TaskSettings, total=False):
    pass


class TextGenerationSettings(TaskSettings, GenerationSettings, total=False):
    """Settings of every task that generates text."""

    regex: str | None
    json_schema: JsonSchema | None
    force_words: Sequence[str | Sequence[str]]
    assistant_model: Model | str | Path | None
    seed: int
    generate_kwargs: Mapping[str, Any]


class Seq2SeqSettings(TextGenerationSettings, total=False):
    """Settings of every task that maps a text to a text."""

    prefix: str | None
    alignment_layer: str | int | None


class TranslateSettings(Seq2SeqSettings, total=False):
    src_lang: str | None
    tgt_lang: str | None
    unit: str | None


class SummarizeSettings(Seq2SeqSettings, total=False):
    recursive: bool


class CaptionSettings(TextGenerationSettings, total=False):
    return_attention: bool


class CompleteSettings(TextGenerationSettings, total=False):
    control_code: str | None


class DrawSettings(TextGenerationSettings, total=False):
    pass


class AnswerSettings(TextGenerationSettings, total=False):
    """Settings of extractive and generative answers; `generative` None: determined by the model."""

    generative: bool | None
    max_answer_tokens: int
    allow_no_answer: bool
    align_to_words: bool
    template: str
