"""Metrics of predictions given references, equal to those of the usual libraries. Does not depend on
models.

Every metric is a fraction from 0 to 1, except correlations (Matthews, Pearson, Spearman), from -1
to 1, and sacrebleu's BLEU and chrF, from 0 to 100. Pearson's and Spearman's are in qkv.correlation."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence, Set
from importlib import import_module
from itertools import chain
from typing import Any, NamedTuple

# Metrics for which a higher value is better; for all others, such as a loss or a perplexity, a lower
# value is better.
HIGHER_IS_BETTER_METRICS = frozenset(
    "accuracy f1 macro_f1 precision recall matthews_correlation pearson spearman exact_match bleu "
    "chrf rouge1 rouge2 rougeL replaced_accuracy replaced_f1 pair_accuracy recall_1 recall_5 mrr "
    "text_recall_1 text_recall_5 image_recall_1 image_recall_5".split()
)
EntitySpan = tuple[str, int, int]  # type, first word, word after the last


class PrecisionRecallF1(NamedTuple):
    """Precision, recall and their harmonic mean."""

    precision: float
    recall: float
    f1: float


class CorpusScore(NamedTuple):
    """A corpus-level score with the signature of its settings."""

    value: float
    signature: str


def precision_recall_f1(
    num_common: int, num_predicted: int, num_references: int
) -> PrecisionRecallF1:
    """Return precision, recall and F1, given the numbers of common, predicted and reference items."""
    return PrecisionRecallF1(
        precision=num_common / max(num_predicted, 1),
        recall=num_common / max(num_references, 1),
        f1=2 * num_common / max(num_predicted + num_references, 1),
    )


class F1Averages(NamedTuple):
    """Micro average (over all labels at once) and macro average (mean over labels) of F1."""

    micro: float
    macro: float


def multilabel_f1_score(
    predictions: Sequence[Set[Hashable]], references: Sequence[Set[Hashable]]
) -> F1Averages:
    """Return F1 of several labels per text; the macro average is over labels that occur on either
    side."""
    pairs = zip(predictions, references, strict=True)
    correct = Counter(
        chain.from_iterable(prediction & reference for prediction, reference in pairs)
    )
    predicted = Counter(chain.from_iterable(predictions))
    expected = Counter(chain.from_iterable(references))
    label_scores = [
        precision_recall_f1(correct[label], predicted[label], expected[label]).f1
        for label in predicted.keys() | expected.keys()
    ]
    return F1Averages(
        micro=precision_recall_f1(correct.total(), predicted.total(), expected.total()).f1,
        macro=sum(label_scores) / max(len(label_scores), 1),
    )


def macro_f1_score(
    predictions: Sequence[Hashable],
    references: Sequence[Hashable],
    labels: Collection[Hashable] = (),
) -> float:
    """Return macro F1 of one label per text; a prediction outside `labels` is always wrong."""
    predicted_sets = [
        ({label} if not labels or label in labels else set()) for label in predictions
    ]
    return multilabel_f1_score(predicted_sets, [{label} for label in references]).macro


def label_f1_score(
    predictions: Sequence[Hashable], references: Sequence[Hashable], label: Hashable
) -> float:
    """Return F1 of a single label, as in GLUE for two classes."""
    pairs = zip(predictions, references, strict=True)
    num_common = sum(prediction == reference == label for prediction, reference in pairs)
    return precision_recall_f1(num_common, predictions.count(label), references.count(label)).f1


def matthews_corrcoef(predictions: Sequence[Hashable], references: Sequence[Hashable]) -> float:
    """Return the Matthews correlation of any number of labels (Gorodkin 2004); 0 if a side is
    constant."""
    predicted = Counter(predictions)
    expected = Counter(references)
    total = len(references)
    num_correct = sum(a == b for a, b in zip(predictions, references, strict=True))
    covariance = num_correct * total - sum(
        predicted[label] * expected[label] for label in predicted
    )
    variances = [
        total**2 - sum(count**2 for count in side.values()) for side in (predicted, expected)
    ]
    return covariance / math.sqrt(math.prod(variances)) if all(variances) else 0.0


def fraction_true(flags: Iterable[bool]) -> float:
    """Return the fraction of the flags that are true."""
    values = list(flags)
    return sum(values) / max(len(values), 1)


# --- tags ---

ENTITY_TAG_PATTERN = re.compile(r"O|[BIESLU]-.+")


def get_entities(tags: Iterable[str]) -> set[EntitySpan]:
    """Return the entities of tags (B-PER I-PER O) in IOB1, IOB2, IOBES or BILOU, as in conlleval."""
    entities: set[EntitySpan] = set()
    prefix = "O"
    entity_type = ""
    start = 0
    for position, tag in enumerate(chain(tags, ["O"])):
        next_prefix, _, next_type = tag.partition("-")
        if prefix in "OESLU" or next_prefix in "OBSU" or next_type != entity_type:  # a boundary
            if prefix != "O":
                entities.add((entity_type, start, position))
            start = position
        prefix = next_prefix
        entity_type = next_type
    return entities


def entity_f1_score(
    predictions: Sequence[Sequence[str]], references: Sequence[Sequence[str]]
) -> PrecisionRecallF1:
    """Return micro F1 over all sentences; an entity is correct if its type and both boundaries are."""
    num_common = num_predicted = num_references = 0
    for predicted_tags, reference_tags in zip(predictions, references, strict=True):
        predicted = get_entities(predicted_tags)
        expected = get_entities(reference_tags)
        num_common += len(predicted & expected)
        num_predicted += len(predicted)
        num_references += len(expected)
    return precision_recall_f1(num_common, num_predicted, num_references)


# --- answers ---


def normalize_answer(answer: str) -> str:
    """Normalize an answer as SQuAD does: lowercase, without punctuation, articles and extra
    whitespace."""
    text = answer.lower().translate(str.maketrans("", "", string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def exact_match_score(prediction: str, references: Sequence[str]) -> float:
    """Return SQuAD's exact match with any reference; no reference means that there is no answer."""
    return max(
        float(normalize_answer(prediction) == normalize_answer(answer))
        for answer in references or [""]
    )


def squad_f1_score(prediction: str, references: Sequence[str]) -> float:
    """Return SQuAD's token F1 with the best reference."""
    return max(
        _token_f1(normalize_answer(prediction).split(), normalize_answer(answer).split())
        for answer in references or [""]
    )


def _token_f1(prediction_tokens: list[str], reference_tokens: list[str]) -> float:
    if not prediction_tokens or not reference_tokens:
        return float(prediction_tokens == reference_tokens)
    num_common = (Counter(prediction_tokens) & Counter(reference_tokens)).total()
    return precision_recall_f1(num_common, len(prediction_tokens), len(reference_tokens)).f1


# --- texts ---


def rouge_scores(prediction: str, reference: str) -> dict[str, float]:
    """Return ROUGE-1, ROUGE-2 and ROUGE-L (F1), as rouge_score without stemming: a-z and digits."""
    predicted = re.findall(r"[a-z0-9]+", prediction.lower())
    expected = re.findall(r"[a-z0-9]+", reference.lower())
    scores = {}
    for n in (1, 2):
        predicted_ngrams = _count_ngrams(predicted, n)
        expected_ngrams = _count_ngrams(expected, n)
        num_common = (predicted_ngrams & expected_ngrams).total()
        score = precision_recall_f1(num_common, predicted_ngrams.total(), expected_ngrams.total())
        scores[f"rouge{n}"] = score.f1
    lcs = precision_recall_f1(_lcs_length(predicted, expected), len(predicted), len(expected))
    return scores | {"rougeL": lcs.f1}


def _count_ngrams(tokens: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(tokens[i:] for i in range(n)), strict=False))


def _lcs_length(a: Sequence[str], b: Sequence[str]) -> int:
    """Return the length of the longest common subsequence."""
    previous_row = [0] * (len(b) + 1)
    for token in a:
        row = [0]
        for j, other in enumerate(b):
            row.append(previous_row[j] + 1 if token == other else max(row[-1], previous_row[j + 1]))
        previous_row = row
    return previous_row[-1]


def corpus_bleu(
    predictions: Sequence[str], references: Sequence[str], *, lowercase: bool = False
) -> CorpusScore:
    """Return the BLEU score of sacrebleu, from 0 to 100."""
    return _sacrebleu_score("BLEU", predictions, references, lowercase=lowercase)


def corpus_chrf(predictions: Sequence[str], references: Sequence[str]) -> CorpusScore:
    """Return the chrF score of sacrebleu, from 0 to 100."""
    return _sacrebleu_score("CHRF", predictions, references)


def _sacrebleu_score(
    metric_name: str, predictions: Sequence[str], references: Sequence[str], **options: bool
) -> CorpusScore:
    if len(predictions) != len(references):
        raise ValueError(
            f"{len(predictions)} predictions, expected {len(references)}: one per reference"
        )
    try:
        metric_class: Callable[..., Any] = getattr(import_module("sacrebleu.metrics"), metric_name)
    except ImportError:
        raise ValueError(f"{metric_name} needs sacrebleu; run pip install 'qkv[eval]'") from None
    metric = metric_class(**options)
    value = metric.corpus_score(list(predictions), [list(references)]).score
    return CorpusScore(float(value), str(metric.get_signature()))
