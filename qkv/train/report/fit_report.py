"""FitReport: the result of `qkv.fit`, as text, as HTML in a notebook and as an SVG picture."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

from qkv.formatting import format_count, format_duration
from qkv.train.evaluate.class_report import ClassScores, ConfusionMatrix
from qkv.train.report.confusion_plot import SvgPicture, render_report_svg
from qkv.train.report.history import MetricsHistory
from qkv.train.report.tables import format_evaluation


@dataclass(frozen=True, kw_only=True, repr=False)
class FitReport:
    """The result of a training: metrics after the last step, and the history of all reports.

    The metrics are those of the validation data, or, without it, the last losses of training. Classes
    are labels of texts, or types of entities for tags."""

    objective: str
    metrics: dict[str, float]
    class_scores: dict[str, ClassScores] = field(default_factory=dict)  # by class
    confusion_matrix: ConfusionMatrix | None = None
    history: MetricsHistory
    steps: int
    num_tokens: int
    seconds: float

    @property
    def has_validation(self) -> bool:
        """Whether the metrics are those of validation data."""
        return bool(self.history.validation)

    def __str__(self) -> str:
        plural = "s" * (self.steps != 1)
        duration = format_duration(self.seconds)
        tokens = f"{format_count(self.num_tokens)} tokens"
        source = "validation" if self.has_validation else "training; validation=0.1 holds out data"
        return "\n".join(
            [
                f"{self.objective}: {self.steps:,} step{plural}, {tokens} in {duration}",
                f"metrics of {source}",
                "",
                format_evaluation(self.metrics, self.class_scores, self.confusion_matrix),
            ]
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>\n{self.plot()}"

    def plot(self) -> SvgPicture:
        """Return the loss curve and the confusion matrix as the text of an SVG file."""
        return render_report_svg(self.objective, self.history, self.confusion_matrix)
