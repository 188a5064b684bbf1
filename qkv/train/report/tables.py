"""Metrics, scores of classes and confusion matrices as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qkv.train.evaluate.class_report import ClassScores, ConfusionMatrix

MAX_TABLE_WIDTH = (
    100  # characters of a confusion matrix; a wider one is listed by its largest errors
)
MAX_LISTED_ERRORS = 10
MAX_NAME_CHARACTERS = 30


def format_metrics(metrics: Mapping[str, float]) -> str:
    """Return one line per metric."""
    return format_table([[name, f"{value:#.4g}".rstrip(".")] for name, value in metrics.items()])


def format_class_scores(class_scores: Mapping[str, ClassScores]) -> str:
    """Return a table with a row per class."""
    rows = [["class", "precision", "recall", "f1", "support"]]
    rows += [
        [
            shorten_name(name),
            f"{scores.precision:.4f}",
            f"{scores.recall:.4f}",
            f"{scores.f1:.4f}",
            f"{scores.support:,}",
        ]
        for name, scores in class_scores.items()
    ]
    return format_table(rows)


def format_confusion_matrix(matrix: ConfusionMatrix) -> str:
    """Return a table with a row per reference and a column per prediction; a wide one as a list."""
    names = [shorten_name(name) for name in matrix.label_names]
    rows = [["reference ↓  prediction →", *names]]
    rows += [
        [name, *(f"{count:,}" for count in counts)]
        for name, counts in zip(names, matrix.counts, strict=True)
    ]
    table = format_table(rows)
    if len(table.partition("\n")[0]) <= MAX_TABLE_WIDTH:
        return table
    errors = [
        (count, reference, prediction)
        for reference, counts in zip(names, matrix.counts, strict=True)
        for prediction, count in zip(names, counts, strict=True)
        if count and prediction != reference
    ]
    largest = sorted(errors, key=lambda error: -error[0])[:MAX_LISTED_ERRORS]
    rows = [["reference", "prediction", f"errors, {len(largest)} of {len(errors)} kinds"]]
    rows += [[reference, prediction, f"{count:,}"] for count, reference, prediction in largest]
    return format_table(rows)


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Return aligned columns: names on the left, numbers on the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def format_evaluation(
    metrics: Mapping[str, float],
    class_scores: Mapping[str, ClassScores],
    confusion_matrix: ConfusionMatrix | None,
) -> str:
    """Return metrics, scores of classes and the confusion matrix, separated by blank lines."""
    parts = [format_metrics(metrics)] if metrics else []
    if class_scores:
        parts.append(format_class_scores(class_scores))
    if confusion_matrix is not None:
        parts.append(format_confusion_matrix(confusion_matrix))
    return "\n\n".join(parts)


def shorten_name(name: str) -> str:
    """Return a name of at most MAX_NAME_CHARACTERS."""
    if len(name) <= MAX_NAME_CHARACTERS:
        return name
    return name[: MAX_NAME_CHARACTERS - 1] + "…"
