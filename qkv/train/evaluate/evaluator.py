"""Evaluator: metrics of the outputs of a network over a whole dataset, and custom metrics of its
predictions. Does not depend on objectives.

F1 is not a mean over batches, so an evaluator collects values of each batch and computes the metrics at
the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    other functions receive the values of all batches. They are plain Python values or arrays; those of
    several processes are concatenated in any order."""

    metric_names: tuple[str, ...] = ()
    collect: Callable[[ForwardOutputs, Indices], list[Any]] = lambda outputs, indices: []
    compute_metrics: Callable[[list[Any]], dict[str, float]] = lambda collected: {}
    describe_settings: Callable[[], dict[str, Any]] = dict  # what must be reported with the metrics
    get_predictions: Callable[[list[Any]], Predictions] | None = None  # None: there are none
    # As `collect`, with what `get_predictions` needs; None: `collect` returns it.
    collect_predictions: Callable[[ForwardOutputs, Indices], list[Any]] | None = None
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
            "expected one that predicts labels, answers, choices or tokens"
        )
    check_metric_names(metrics, evaluator.metric_names)

    def compute_metrics(collected: list[Any]) -> dict[str, float]:
        custom = compute_custom_metrics(metrics, get_predictions(collected))
        return evaluator.compute_metrics(collected) | custom

    return evaluator._replace(
        metric_names=(*evaluator.metric_names, *metrics),
        collect=evaluator.collect_predictions or evaluator.collect,
        compute_metrics=compute_metrics,
    )


def check_metric_names(metrics: Mapping[str, MetricFunction], known_names: Sequence[str]) -> None:
    """Raise ValueError if a custom metric has the name of a metric of the objective."""
    for name in metrics.keys() & {"loss", *known_names}:
        raise ValueError(f"metrics {name!r}: the objective has this metric; choose another name")


def compute_custom_metrics(
    metrics: Mapping[str, MetricFunction], predictions: Predictions
) -> dict[str, float]:
    """Return the custom metrics of predictions and references."""
    values = {}
    for name, function in metrics.items():
        value = function(*predictions)
        try:
            values[name] = float(value)
        except (TypeError, ValueError):
            raise ValueError(
                f"metrics {name!r} returned {shorten_repr(value)}, expected a number"
            ) from None
    return values
