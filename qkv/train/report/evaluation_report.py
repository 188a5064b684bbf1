"""EvaluationReport: the result of `qkv.evaluate` and `qkv eval`, as text, as HTML in a notebook and as
an SVG picture."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import Any

from qkv.train.evaluate.class_report import ClassScores, ConfusionMatrix
from qkv.train.report.confusion_plot import SvgPicture, render_report_svg
from qkv.train.report.tables import format_evaluation


@dataclass(frozen=True, kw_only=True, repr=False)
class EvaluationReport:
    """The metrics of a model, and everything that must be reported with them."""

    checkpoint: str | None = None  # the folder or name of the model; None: a model in memory
    objective: str
    data: str | list[str] | None = None  # files; None: examples in memory
    num_records: int
    num_tokens: int
    metrics: dict[str, float]
    class_scores: dict[str, ClassScores] = field(default_factory=dict)  # by class
    confusion_matrix: ConfusionMatrix | None = None
    settings: dict[str, Any] = field(default_factory=dict)  # of decoding and of the evaluator
    signatures: dict[str, str] = field(default_factory=dict)  # signatures of sacrebleu

    def __str__(self) -> str:
        plural = "s" * (self.num_records != 1)
        heading = f"{self.objective}: {self.num_records:,} record{plural}"
        return f"{heading}\n\n{self.format_metrics()}"

    __repr__ = __str__

    def format_metrics(self) -> str:
        """Return the metrics, the scores of classes and the confusion matrix as text."""
        return format_evaluation(self.metrics, self.class_scores, self.confusion_matrix)

    def _repr_html_(self) -> str:
        picture = "" if self.confusion_matrix is None else f"\n{self.plot()}"
        return f"<pre>{escape(str(self))}</pre>{picture}"

    def plot(self) -> SvgPicture:
        """Return the confusion matrix as the text of an SVG file."""
        return render_report_svg(self.objective, None, self.confusion_matrix)
