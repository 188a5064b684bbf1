"""The figure of an experiment, drawn from the rows of its table. Does not depend on torch."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from qkv.experiments.experiment import Experiment, Panel
from qkv.pictures.chart import Chart, ChartLine, ChartPoint, render_charts_svg
from qkv.validate import shorten_repr

Row = Mapping[str, Any]


def render_figure(experiment: Experiment, rows: Sequence[Row]) -> str | None:
    """Return the SVG of all panels that have points, or None if none has."""
    charts = [chart for panel in experiment.panels if (chart := build_chart(panel, rows))]
    if not charts:
        return None
    return render_charts_svg(experiment.about.title, describe_rows(experiment, rows), charts)


def describe_rows(experiment: Experiment, rows: Sequence[Row]) -> str:
    """Return the subtitle: the number of seeds and cells, and the devices."""
    seeds = Counter(json.dumps([row["measure"], row["coordinates"]]) for row in rows)
    fewest, most = min(seeds.values()), max(seeds.values())
    devices = sorted({row["device"] for row in rows})
    spread = (
        "one seed"
        if most == 1
        else f"{fewest} to {most} seeds"
        if fewest < most
        else f"{most} seeds"
    )
    form = "reduced form, " if experiment.is_reduced else ""
    return f"{form}{spread}; {len(rows)} of {len(experiment.cells)} cells; {', '.join(devices)}"


def iter_points(rows: Iterable[Row]) -> Iterable[dict[str, Any]]:
    """Yield every point with the coordinates and metrics of its cell."""
    for row in rows:
        cell = {"measure": row["measure"], **row["coordinates"], **row["metrics"]}
        for point in row["points"] or [{}]:
            yield cell | point


def build_chart(panel: Panel, rows: Sequence[Row]) -> Chart | None:
    """Return the chart of a panel: a line per series, a point per x, the spread over seeds."""
    values: dict[str, dict[Any, list[float]]] = {}
    metrics = {panel.y: ""} if isinstance(panel.y, str) else panel.y
    for point in iter_points(rows):
        conditions = dict(panel.where) | ({"measure": panel.measure} if panel.measure else {})
        if any(point.get(name) != value for name, value in conditions.items()):
            continue
        x = point.get(panel.x)
        for metric, label in metrics.items():
            if x is not None and (y := point.get(metric)) is not None:
                check_point(panel, x, y, metric)
                line = values.setdefault(format_line_name(panel, point, label), {})
                line.setdefault(x, []).append(float(y))
    if not values:
        return None
    places = dict.fromkeys(x for line in values.values() for x in line)
    x_names = [str(x) for x in places] if panel.x_scale == "names" else []
    index = {x: float(number) for number, x in enumerate(places)}
    lines = []
    for name, line in values.items():
        points = [
            ChartPoint(index[x] if x_names else float(x), min(ys), sum(ys) / len(ys), max(ys))
            for x, ys in line.items()
        ]
        lines.append(ChartLine(name, sorted(points)))
    return Chart(
        title=panel.title,
        lines=lines,
        x_label=panel.x_label,
        y_label=panel.y_label,
        x_scale=panel.x_scale,
        y_scale=panel.y_scale,
        x_names=x_names,
        y_min=panel.y_min,
        y_max=panel.y_max,
        mark_x=panel.mark_x,
        mark_label=panel.mark_label,
    )


def check_point(panel: Panel, x: object, y: object, metric: str) -> None:
    """Raise ValueError unless a point can be drawn: numbers, or the name of a place."""
    types = str | int | float if panel.x_scale == "names" else int | float
    for name, value, expected in ((panel.x, x, types), (metric, y, int | float)):
        if not isinstance(value, expected):
            raise ValueError(
                f"panel {panel.title!r}: {name} is {shorten_repr(value)}, expected a number"
            )


def format_line_name(panel: Panel, point: Mapping[str, Any], label: str) -> str:
    """Return the name of the line of a point: the label of the metric and the value of the series."""
    return ", ".join(filter(None, (label, str(point.get(panel.series, "")))))
