"""MetricsHistory: the reports of a run so far, read from its metrics.jsonl or added one by one."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from qkv.train.config import is_better
from qkv.train.loop.trainer import Report

METRICS_FILE = "metrics.jsonl"
Points = list[tuple[int, float]]  # (step, loss), by step


@dataclass
class MetricsHistory:
    """Reports of training and of validation, each ordered by step."""

    train: list[Report] = field(default_factory=list)
    validation: list[Report] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path) -> MetricsHistory:
        """Read the metrics.jsonl of a run; an incomplete last line is skipped."""
        history = cls()
        path = folder / METRICS_FILE
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        for line in text.splitlines():
            try:
                history.add(Report(**json.loads(line)))
            except (ValueError, TypeError):
                continue
        return history

    def add(self, report: Report) -> None:
        """Add a report; after a resume from a checkpoint, it replaces those of later steps."""
        reports = self.validation if report.phase == "eval" else self.train
        while reports and reports[-1].step >= report.step:
            reports.pop()
        reports.append(report)

    def find_best(self, name: str, *, higher_is_better: bool) -> Report | None:
        """Return the validation report with the best value of a metric."""
        best: Report | None = None
        for report in self.validation:
            best_value = None if best is None else best.metrics[name]
            if name in report.metrics and is_better(
                report.metrics[name], best_value, higher_is_better=higher_is_better
            ):
                best = report
        return best


def extract_points(reports: Sequence[Report], name: str = "loss") -> Points:
    """Return (step, value) of a metric's finite values."""
    return [
        (report.step, value)
        for report in reports
        if math.isfinite(value := report.metrics.get(name, math.nan))
    ]


def downsample_points(points: Points, max_points: int) -> Points:
    """Return at most `max_points` points, each the mean of neighbors."""
    if len(points) <= max_points:
        return points
    chunks = np.array_split(np.array(points, dtype=np.float64), max_points)
    return [(round(chunk[:, 0].mean()), float(chunk[:, 1].mean())) for chunk in chunks]
