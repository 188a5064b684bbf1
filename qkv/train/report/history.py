"""History: what a run has reported so far, read from its metrics.jsonl or told as it goes. Draws nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from qkv.train.config import better
from qkv.train.loop.trainer import Report

METRICS = "metrics.jsonl"
Points = list[tuple[int, float]]  # a step and a loss each, in order of the steps


@dataclass
class History:
    """Reports of training and of measuring, each in order of the steps."""

    train: list[Report] = field(default_factory=list)
    measures: list[Report] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path) -> History:
        """What metrics.jsonl of a run says; a line that was cut when the run broke off is left out."""
        history, path = cls(), folder / METRICS
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            try:
                history.add(Report(**json.loads(line)))
            except (ValueError, TypeError):
                continue
        return history

    def add(self, report: Report) -> None:
        """A run that went back to a checkpoint says steps anew: what it said of them before is dropped."""
        reports = self.measures if report.kind == "measure" else self.train
        while reports and reports[-1].step >= report.step:
            reports.pop()
        reports.append(report)

    def best(self, name: str, *, highest: bool) -> Report | None:
        """The measurement at which this value was best."""
        found: Report | None = None
        for report in self.measures:
            best = None if found is None else found.values[name]
            if name in report.values and better(report.values[name], best, rising=highest):
                found = report
        return found


def points(reports: Sequence[Report], name: str = "loss") -> Points:
    """The finite values of this name."""
    return [(each.step, v) for each in reports if math.isfinite(v := each.values.get(name, math.nan))]


def thinned(line: Points, most: int) -> Points:
    """At most so many points, means of neighbours."""
    if len(line) <= most:
        return line
    parts = np.array_split(np.array(line, dtype=np.float64), most)
    return [(round(part[:, 0].mean()), float(part[:, 1].mean())) for part in parts]
