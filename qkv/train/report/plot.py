"""The loss curve of a run as loss.svg, with colors for light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path

from qkv.formatting import compute_ticks, format_count
from qkv.staging import write_file
from qkv.train.loop.trainer import Report
from qkv.train.report.history import MetricsHistory, Points, downsample_points, extract_points

PLOT_WIDTH = 760
PLOT_HEIGHT = 420
MARGIN_LEFT = 64
MARGIN_RIGHT = 138  # for the names of the lines
MARGIN_TOP = 56
MARGIN_BOTTOM = 52
MAX_LINE_POINTS = 600
LABEL_SPACING = 32  # minimum distance between the names of two lines

LOSS_PLOT_STYLE = """
  svg { font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif }
  .page { fill: #ffffff } .grid { stroke: #e4e7eb } .axis { stroke: #9aa3ad }
  text { fill: #57606a } .title { fill: #1f2328; font-size: 16px; font-weight: 600 }
  .train { stroke: #8fb8de } .name.train { fill: #4a7fb0; stroke: none }
  .validation { stroke: #c2410c } .name.validation, .dot { fill: #c2410c; stroke: none }
  .name { font-weight: 600 } .ring { fill: none; stroke: #c2410c; stroke-width: 1.5 }
  polyline { fill: none; stroke-linejoin: round; stroke-linecap: round }
  polyline.train { stroke-width: 1.5 } polyline.validation { stroke-width: 2.5 }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117 } .grid { stroke: #242a32 } .axis { stroke: #5b6570 }
    text { fill: #9aa4af } .title { fill: #e6edf3 }
    .train { stroke: #3f6f9e } .name.train { fill: #6fa8dc }
    .validation, .ring { stroke: #ff9f5a } .name.validation, .dot { fill: #ff9f5a }
  }
"""


def make_plot_callback(folder: Path) -> Callable[[Report], None]:
    """Return a callback that redraws loss.svg after every evaluation, with the full history."""
    history = MetricsHistory.read(folder)

    def plot_report(report: Report) -> None:
        history.add(report)
        if report.phase == "eval":
            write_loss_plot(folder, history)

    return plot_report


def write_loss_plot(folder: Path, history: MetricsHistory | None = None) -> None:
    """Write loss.svg of a run atomically."""
    history = MetricsHistory.read(folder) if history is None else history
    with write_file(folder / "loss.svg") as temporary:
        temporary.write_text(render_loss_svg(folder.resolve().name, history), encoding="utf-8")


def render_loss_svg(name: str, history: MetricsHistory) -> str:
    """Return the SVG: a light training line, a bold validation line, a ring at the best loss."""
    lines = {
        "train": downsample_points(extract_points(history.train), MAX_LINE_POINTS),
        "validation": downsample_points(extract_points(history.validation), MAX_LINE_POINTS),
    }
    lines = {kind: points for kind, points in lines.items() if points}
    all_points = [point for points in lines.values() for point in points] or [(0, 0.0), (1, 1.0)]
    losses = [loss for _, loss in all_points]
    last_step = max(step for step, _ in all_points) or 1
    x_ticks = [
        step for step in compute_ticks(0, last_step, 6) if step <= last_step and step == round(step)
    ]
    y_ticks = compute_ticks(min(losses), max(losses), 5)

    def x(step: float) -> float:
        return MARGIN_LEFT + (PLOT_WIDTH - MARGIN_LEFT - MARGIN_RIGHT) * step / last_step

    def y(loss: float) -> float:
        fraction = (y_ticks[-1] - loss) / (y_ticks[-1] - y_ticks[0])
        return MARGIN_TOP + (PLOT_HEIGHT - MARGIN_TOP - MARGIN_BOTTOM) * fraction

    parts = [
        f'<text class="title" x="{MARGIN_LEFT}" y="30">{escape(name)}</text>',
        *render_axes(x_ticks, y_ticks, x, y, last_step),
    ]
    for kind, points in lines.items():
        path = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in points)
        parts.append(f'<polyline class="{kind}" points="{path}"/>')
    validation_points = lines.get("validation", [])
    if len(validation_points) <= 40:
        for step, loss in validation_points:
            parts.append(f'<circle class="dot" cx="{x(step):.1f}" cy="{y(loss):.1f}" r="3"/>')
    best = history.find_best("loss", higher_is_better=False)
    if best is not None and validation_points:
        center = f'cx="{x(best.step):.1f}" cy="{y(best.metrics["loss"]):.1f}"'
        parts.append(f'<circle class="ring" {center} r="6.5"/>')
    parts += render_line_names(lines, y)
    if best is not None and validation_points:
        label = f"best {best.metrics['loss']:.4g} at step {best.step:,}"
        parts.append(
            f'<text x="{PLOT_WIDTH - MARGIN_RIGHT}" y="30" text-anchor="end">{label}</text>'
        )
    return render_svg_page(
        f"loss of {name}", parts, width=PLOT_WIDTH, height=PLOT_HEIGHT, style=LOSS_PLOT_STYLE
    )


def render_svg_page(
    title: str, parts: Iterable[str], *, width: int, height: int, style: str, css_class: str = ""
) -> str:
    """Return an SVG with a title, a style and a background of the class `page` behind its parts."""
    body = "\n".join(f"  {part}" for part in parts)
    size = f'width="{width}" height="{height}"'
    attributes = f' class="{css_class}"' if css_class else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg"{attributes} viewBox="0 0 {width} {height}" '
        f'{size} role="img">\n  <title>{escape(title)}</title>\n'
        f'  <style>{style}  </style>\n  <rect class="page" {size} rx="8"/>\n'
        f"{body}\n</svg>\n"
    )


def render_axes(
    x_ticks: list[float],
    y_ticks: list[float],
    x: Callable[[float], float],
    y: Callable[[float], float],
    last_step: int,
) -> list[str]:
    """Return the grid, the ticks and their labels."""
    bottom = PLOT_HEIGHT - MARGIN_BOTTOM
    right = PLOT_WIDTH - MARGIN_RIGHT
    digits = max(0, -math.floor(math.log10(y_ticks[1] - y_ticks[0]) + 1e-9))
    parts = []
    for loss in y_ticks:
        height = f"{y(loss):.1f}"
        parts.append(
            f'<line class="grid" x1="{MARGIN_LEFT}" x2="{right}" y1="{height}" y2="{height}"/>'
        )
        label = f"{loss:.{digits}f}"
        position = f'x="{MARGIN_LEFT - 10}" y="{y(loss) + 4.5:.1f}"'
        parts.append(f'<text {position} text-anchor="end">{label}</text>')
    for step in x_ticks:
        column = f"{x(step):.1f}"
        parts.append(
            f'<line class="axis" x1="{column}" x2="{column}" y1="{bottom}" y2="{bottom + 5}"/>'
        )
        if last_step < 20_000:
            label = f"{step:,.0f}"
        else:
            label = format_count(step).replace(".0K", "K").replace(".00M", "M")
        parts.append(f'<text x="{column}" y="{bottom + 21}" text-anchor="middle">{label}</text>')
    center = f"{(MARGIN_LEFT + right) / 2:.0f}"
    parts += [
        f'<line class="axis" x1="{MARGIN_LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>',
        f'<text x="{center}" y="{PLOT_HEIGHT - 12}" text-anchor="middle">step</text>',
        f'<text x="{MARGIN_LEFT - 10}" y="{MARGIN_TOP - 14}" text-anchor="end">loss</text>',
    ]
    return parts


def render_line_names(lines: dict[str, Points], y: Callable[[float], float]) -> list[str]:
    """Return the name and the last loss of each line, next to its end and without overlap."""
    names = {"train": "training", "validation": "validation"}
    ends = sorted((y(points[-1][1]), kind, points[-1][1]) for kind, points in lines.items())
    parts = []
    next_free = 0.0
    left = PLOT_WIDTH - MARGIN_RIGHT + 12
    for index, (height, kind, loss) in enumerate(ends):
        lowest = PLOT_HEIGHT - MARGIN_BOTTOM - 18 - LABEL_SPACING * (len(ends) - index - 1)
        top = max(min(height, lowest), next_free)
        parts.append(f'<text class="name {kind}" x="{left}" y="{top:.1f}">{names[kind]}</text>')
        parts.append(f'<text x="{left}" y="{top + 15:.1f}">{loss:.4g}</text>')
        next_free = top + LABEL_SPACING
    return parts
