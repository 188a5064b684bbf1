"""Generated texts of a seq2seq model and their metrics. The text generator is passed as an argument."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
import torch

from qkv.data.encode.encoder import Encoder, SourceTargetEncoder
from qkv.data.encode.images import ImageCaptionEncoder
from qkv.data.read.record import Record
from qkv.data.store.shards import Shards
from qkv.decode.request_checks import Source
from qkv.model.model import Model
from qkv.train.evaluate.evaluation_loop import SINGLE_PROCESS, ProgressReporter, ignore_progress
from qkv.train.evaluate.evaluator import MetricFunction, Predictions, compute_custom_metrics
from qkv.train.evaluate.metrics import (
    corpus_bleu,
    corpus_chrf,
    exact_match_score,
    rouge_scores,
    squad_f1_score,
)
from qkv.train.sharding import Sharding

GENERATION_BATCH_SIZE = 64
# Metrics of a text and its references.
ReferenceMetric = Callable[[str, Sequence[str]], float]
ANSWER_METRICS: dict[str, ReferenceMetric] = {
    "exact_match": exact_match_score,
    "f1": squad_f1_score,
}
CAPTION_METRICS: dict[str, ReferenceMetric] = {"exact_match": exact_match_score}


class TextGenerator(Protocol):
    """Generates token ids from sources: token ids or images; `settings` describe the decoding."""

    @property
    def settings(self) -> Mapping[str, float]: ...

    def __call__(self, model: Model, sources: Sequence[Source], /) -> list[list[int]]: ...


class GenerationExamples(NamedTuple):
    """Sources (token ids, or the pixel values of images), and the reference texts of each."""

    sources: Sequence[Source]
    references: list[list[str]]
    reference_metrics: Mapping[str, ReferenceMetric] = MappingProxyType({})
    has_answers: bool = False  # the references are answers to questions

    def generate(
        self,
        model: Model,
        generator: TextGenerator,
        *,
        sharding: Sharding = SINGLE_PROCESS,
        progress: ProgressReporter = ignore_progress,
    ) -> list[str]:
        """Generate a text for every source, in batches of similar length."""
        assert model.tokenizer is not None
        order = sorted(range(len(self.sources)), key=lambda i: len(self.sources[i]))
        batches = [
            order[i : i + GENERATION_BATCH_SIZE]
            for i in range(0, len(order), GENERATION_BATCH_SIZE)
        ]
        assigned = batches[sharding.dp_rank :: sharding.dp_size]
        total = sum(map(len, assigned))
        texts: dict[int, str] = {}
        for batch in assigned:
            generated = generator(model, [self.sources[i] for i in batch])
            decoded = model.tokenizer.batch_decode(generated, skip_special_tokens=True)
            texts |= zip(batch, decoded, strict=True)
            progress(f"generated {len(texts):,} of {total:,} texts", len(texts), total)
        if sharding.dp_size > 1:
            gathered = sharding.distributed.all_gather_object(texts)
            texts = {
                index: text for process_texts in gathered for index, text in process_texts.items()
            }
        return [texts[i] for i in range(len(self.sources))]

    def compute_metrics(
        self,
        texts: Sequence[str],
        *,
        lowercase: bool = False,
        custom_metrics: Mapping[str, MetricFunction] = MappingProxyType({}),
    ) -> tuple[dict[str, float], dict[str, str]]:
        """Return metrics and their signatures: exact match and F1 of answers; else BLEU, chrF and
        ROUGE, and the exact match of captions.

        `lowercase` adds the BLEU of lowercased texts. Custom metrics receive the texts and the targets,
        or lists of answers."""
        metrics, signatures = self._compute_usual_metrics(texts, lowercase)
        references = self.references if self.has_answers else self.targets
        predictions = Predictions([*texts], [*references])
        return metrics | compute_custom_metrics(custom_metrics, predictions), signatures

    @property
    def targets(self) -> list[str]:
        """The only reference text of every source."""
        return [reference for (reference,) in self.references]

    def _compute_usual_metrics(
        self, texts: Sequence[str], lowercase: bool
    ) -> tuple[dict[str, float], dict[str, str]]:
        pairs = list(zip(texts, self.references, strict=True))
        metrics = {
            name: compute_mean([metric(text, references) for text, references in pairs])
            for name, metric in self.reference_metrics.items()
        }
        if self.has_answers:
            return metrics, {}
        targets = self.targets
        text_scores = [
            rouge_scores(text, target) for text, target in zip(texts, targets, strict=True)
        ]
        rouge = {
            name: compute_mean([scores[name] for scores in text_scores]) for name in text_scores[0]
        }
        if find_spec("sacrebleu") is None:
            return metrics | rouge, {"bleu": "not computed: run pip install 'qkv[eval]'"}
        corpus_scores = {"bleu": corpus_bleu(texts, targets), "chrf": corpus_chrf(texts, targets)}
        if lowercase:
            corpus_scores["bleu_lower"] = corpus_bleu(texts, targets, lowercase=True)
        metrics |= {name: score.value for name, score in corpus_scores.items()} | rouge
        return metrics, {name: score.signature for name, score in corpus_scores.items()}


def list_text_metrics() -> tuple[str, ...]:
    """Return the names of the metrics of generated texts."""
    return (*(("bleu", "chrf") if find_spec("sacrebleu") else ()), "rouge1", "rouge2", "rougeL")


@dataclass(frozen=True, kw_only=True)
class GenerationSpec:
    """How the generated texts of an objective are evaluated."""

    list_metrics: Callable[[Encoder], tuple[str, ...]]
    # Given the encoder, the shards, the indices of the examples and their records.
    build_examples: Callable[[Encoder, Shards, Sequence[int], Sequence[Record]], GenerationExamples]


def has_answer_targets(encoder: Encoder) -> bool:
    """Return whether the targets are answers; a question may have several correct answers, or none."""
    assert isinstance(encoder, SourceTargetEncoder)
    return encoder.target.strip() == "{answers}"


def build_target_examples(
    encoder: Encoder, shards: Shards, indices: Sequence[int], records: Sequence[Record]
) -> GenerationExamples:
    """Return the sources and targets of a sequence-to-sequence model."""
    assert isinstance(encoder, SourceTargetEncoder)
    sources = [shards.get_document(i, "source").tolist() for i in indices]
    if has_answer_targets(encoder):
        answers = [[answer.text for answer in record.get_answers()] for record in records]
        return GenerationExamples(sources, answers, ANSWER_METRICS, has_answers=True)
    return GenerationExamples(
        sources, [encoder.format_texts([record], "target") for record in records]
    )


def build_caption_examples(
    encoder: Encoder, shards: Shards, indices: Sequence[int], records: Sequence[Record]
) -> GenerationExamples:
    """Return the images and captions of a captioning model."""
    assert isinstance(encoder, ImageCaptionEncoder)
    processor = encoder.image_processor
    assert processor is not None
    images = [torch.from_numpy(processor(record.get_text("image"))) for record in records]
    captions = [[record.get_text("caption")] for record in records]
    return GenerationExamples(images, captions, CAPTION_METRICS)


TARGET_GENERATION = GenerationSpec(
    list_metrics=lambda encoder: (
        tuple(ANSWER_METRICS) if has_answer_targets(encoder) else list_text_metrics()
    ),
    build_examples=build_target_examples,
)
CAPTION_GENERATION = GenerationSpec(
    list_metrics=lambda encoder: (*CAPTION_METRICS, *list_text_metrics()),
    build_examples=build_caption_examples,
)


def compute_mean(values: Sequence[float]) -> float:
    """Return the mean of the values; 0 if there are none."""
    return sum(values) / max(len(values), 1)


def select_spaced_indices(count: int, max_count: int) -> list[int]:
    """Return at most `max_count` indices below `count`, evenly spaced from the first to the last."""
    return np.unique(np.linspace(0, count - 1, min(max_count, count)).round().astype(int)).tolist()
