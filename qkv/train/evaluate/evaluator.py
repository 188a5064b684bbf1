"""Evaluator: metrics of the outputs of a network over a whole dataset, and custom metrics of its
predictions. Does not depend on objectives.

F1 is not a mean over batches, so an evaluator collects values of each batch and computes the metrics at
the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from qkv.data.batches.sampler import Indices
from qkv.train.evaluate.class_report import EMPTY_CLASS_REPORT, ClassReport
from qkv.train.objectives.objective import ForwardOutputs
from qkv.validate import shorten_repr

MetricFunction = Callable[[list[Any], list[Any]], float]  # of predictions and references


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
