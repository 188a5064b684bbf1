"""Generated texts of a seq2seq model and their metrics. The text generator is passed as an argument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np

from qkv.data.encode.encoder import SourceTargetEncoder
from qkv.data.read.record import Record
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
ANSWER_METRICS = {"exact_match": exact_match_score, "f1": squad_f1_score}


class TextGenerator(Protocol):
    """Generates token ids from source ids; `settings` describe the decoding."""

    @property
    def settings(self) -> Mapping[str, float]: ...

    def __call__(self, model: Model, source_ids: list[list[int]], /) -> list[list[int]]: ...


class GenerationExamples(NamedTuple):
    """Source ids, and the reference texts of each."""

    source_ids: list[list[int]]
    references: list[list[str]]
    has_answers: bool  # the references are answers to questions

    @staticmethod
    def from_records(
        encoder: SourceTargetEncoder, source_ids: list[list[int]], records: Sequence[Record]
    ) -> GenerationExamples:
        """Build examples from encoded sources and their records."""
        has_answers = has_answer_targets(encoder)
        references = [
            [answer.text for answer in record.get_answers()]
            if has_answers
            else encoder.format_texts([record], "target")
            for record in records
        ]
        return GenerationExamples(source_ids, references, has_answers)

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
        order = sorted(range(len(self.source_ids)), key=lambda i: len(self.source_ids[i]))
        batches = [
            order[i : i + GENERATION_BATCH_SIZE]
            for i in range(0, len(order), GENERATION_BATCH_SIZE)
        ]
        assigned = batches[sharding.dp_rank :: sharding.dp_size]
        total = sum(map(len, assigned))
        texts: dict[int, str] = {}
        for batch in assigned:
            generated = generator(model, [self.source_ids[i] for i in batch])
            decoded = model.tokenizer.batch_decode(generated, skip_special_tokens=True)
            texts |= zip(batch, decoded, strict=True)
            progress(f"generated {len(texts):,} of {total:,} texts", len(texts), total)
        if sharding.dp_size > 1:
            gathered = sharding.distributed.all_gather_object(texts)
            texts = {
                index: text for process_texts in gathered for index, text in process_texts.items()
            }
        return [texts[i] for i in range(len(self.source_ids))]

    def compute_metrics(
        self,
        texts: Sequence[str],
        *,
        lowercase: bool = False,
        custom_metrics: Mapping[str, MetricFunction] = MappingProxyType({}),
    ) -> tuple[dict[str, float], dict[str, str]]:
        """Return metrics and their signatures: exact match and F1 of answers; else BLEU, chrF and
        ROUGE.

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
        if self.has_answers:
            pairs = list(zip(texts, self.references, strict=True))
            metrics = {
                name: compute_mean([metric(text, references) for text, references in pairs])
                for name, metric in ANSWER_METRICS.items()
            }
            return metrics, {}
        targets = self.targets
        text_scores = [
            rouge_scores(text, target) for text, target in zip(texts, targets, strict=True)
        ]
        rouge = {
            name: compute_mean([scores[name] for scores in text_scores]) for name in text_scores[0]
        }
        if find_spec("sacrebleu") is None:
            return rouge, {"bleu": "not computed: run pip install 'qkv[eval]'"}
        corpus_scores = {"bleu": corpus_bleu(texts, targets), "chrf": corpus_chrf(texts, targets)}
        if lowercase:
            corpus_scores["bleu_lower"] = corpus_bleu(texts, targets, lowercase=True)
        metrics = {name: score.value for name, score in corpus_scores.items()} | rouge
        return metrics, {name: score.signature for name, score in corpus_scores.items()}


def has_answer_targets(encoder: SourceTargetEncoder) -> bool:
    """Return whether the targets are answers; a question may have several correct answers, or none."""
    return encoder.target.strip() == "{answers}"


def list_generation_metrics(encoder: SourceTargetEncoder) -> tuple[str, ...]:
    """Return the names of the metrics of generated texts."""
    if has_answer_targets(encoder):
        return tuple(ANSWER_METRICS)
    return (*(("bleu", "chrf") if find_spec("sacrebleu") else ()), "rouge1", "rouge2", "rougeL")


def compute_mean(values: Sequence[float]) -> float:
    """Return the mean of the values; 0 if there are none."""
    return sum(values) / max(len(values), 1)


def select_spaced_indices(count: int, max_count: int) -> list[int]:
    """Return at most `max_count` indices below `count`, evenly spaced from the first to the last."""
    return np.unique(np.linspace(0, count - 1, min(max_count, count)).round().astype(int)).tolist()
