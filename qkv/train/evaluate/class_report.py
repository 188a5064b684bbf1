"""ClassReport: precision, recall and F1 of every class, and the confusion matrix. Does not depend on
models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain

from qkv.train.evaluate.metrics import get_entities, precision_recall_f1

NO_ENTITY = "O"  # the class of words outside of entities


@dataclass(frozen=True)
class ClassScores:
    """Scores of one class; `support` is its number of references."""

    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True, kw_only=True)
class ConfusionMatrix:
    """Counts by class: a row per reference, a column per prediction."""

    label_names: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]  # [reference][prediction]

    @classmethod
    def from_pairs(
        cls, label_names: Sequence[str], pairs: Iterable[tuple[Hashable, Hashable]]
    ) -> ConfusionMatrix:
        """Count pairs of a predicted and a reference label."""
        counter = Counter(pairs)
        counts = tuple(
            tuple(counter[prediction, reference] for prediction in label_names)
            for reference in label_names
        )
        return cls(label_names=tuple(label_names), counts=counts)

    def compute_class_scores(self) -> dict[str, ClassScores]:
        """Return the scores of every class."""
        columns = list(zip(*self.counts, strict=True))
        return {
            name: build_class_scores(self.counts[i][i], sum(columns[i]), sum(self.counts[i]))
            for i, name in enumerate(self.label_names)
        }


@dataclass(frozen=True, kw_only=True)
class ClassReport:
    """The scores of every class, and the confusion matrix unless an example has several classes."""

    class_scores: dict[str, ClassScores] = field(default_factory=dict)
    confusion_matrix: ConfusionMatrix | None = None


EMPTY_CLASS_REPORT = ClassReport()  # of an evaluation without classes


def build_class_scores(num_correct: int, num_predicted: int, num_references: int) -> ClassScores:
    """Return the scores, given the numbers of correct and predicted examples and of references."""
    scores = precision_recall_f1(num_correct, num_predicted, num_references)
    return ClassScores(*scores, support=num_references)


def build_label_report(
    label_names: Sequence[str], predictions: Sequence[str], references: Sequence[str]
) -> ClassReport:
    """Return the report of one label per example."""
    matrix = ConfusionMatrix.from_pairs(label_names, zip(predictions, references, strict=True))
    return ClassReport(class_scores=matrix.compute_class_scores(), confusion_matrix=matrix)


def build_multi_label_report(
    label_names: Sequence[str], predictions: Sequence[Set[str]], references: Sequence[Set[str]]
) -> ClassReport:
    """Return the report of several labels per example, which has no confusion matrix."""
    pairs = zip(predictions, references, strict=True)
    correct = Counter(chain.from_iterable(a & b for a, b in pairs))
    predicted = Counter(chain.from_iterable(predictions))
    expected = Counter(chain.from_iterable(references))
    return ClassReport(
        class_scores={
            name: build_class_scores(correct[name], predicted[name], expected[name])
            for name in label_names
        }
    )


def build_entity_report(
    predictions: Sequence[Sequence[str]], references: Sequence[Sequence[str]]
) -> ClassReport:
    """Return the report of entities by type, given the tags of every sentence.

    Two entities are compared if their boundaries are equal. The column `O` counts entities that were
    missed, the row `O` entities that are in no reference."""
    pairs: list[tuple[str, str]] = []
    for predicted_tags, reference_tags in zip(predictions, references, strict=True):
        predicted = {(start, end): name for name, start, end in get_entities(predicted_tags)}
        expected = {(start, end): name for name, start, end in get_entities(reference_tags)}
        pairs += [
            (predicted.get(span, NO_ENTITY), expected.get(span, NO_ENTITY))
            for span in predicted.keys() | expected.keys()
        ]
    names = sorted({name for pair in pairs for name in pair} - {NO_ENTITY})
    matrix = ConfusionMatrix.from_pairs([*names, NO_ENTITY], pairs)
    scores = matrix.compute_class_scores()
    return ClassReport(class_scores={name: scores[name] for name in names}, confusion_matrix=matrix)
