"""Training progress: a live panel on a terminal, one line per report elsewhere.

╭─ shakespeare ───────────────────────────────────────────────╮
│ 4.17 ⢣                                                      │
│      ⠈⠒⠤⣀⣀⣀⡀                                                │
│ 1.60         ⠉⠉⠉⠉⠒⠒⠒⠤⠤⠤⠤⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀    │
│ training    loss 1.602   lr 3.00e-04   grad_norm 0.412  …   │
╰─────────────────────────────────────────────────────────────╯
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from qkv.formatting import format_count, format_duration
from qkv.terminal import refresh_periodically
from qkv.train.config import TrainConfig
from qkv.train.loop.trainer import Report, TrainerState
from qkv.train.report.history import MetricsHistory, Points, downsample_points, extract_points

BRAILLE_BLANK = 0x2800  # a braille character is 2 x 4 dots, one bit each
BRAILLE_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # [row][column]
NUMBER_WIDTH = 9  # characters of the longest number, 1.235e-05
ECHO_WIDTH = 2  # columns of a `^C` that the terminal prints
MIN_PANEL_WIDTH = 30  # columns inside the panel
MIN_CURVE_HEIGHT = 3  # lines
TRAIN_STYLE = "cyan"
VALIDATION_STYLE = "bold yellow"
FloatArray = NDArray[np.float64]
ReportCallback = Callable[[Report], None]


@dataclass
class TrainingProgress:
    """A run in progress: its reports, its speed and the remaining time."""

    title: str
    train_config: TrainConfig
    flops_per_token: float
    measure_peak_flops: Callable[[], float]  # FLOPs per second of the device
    history: MetricsHistory = field(default_factory=MetricsHistory)
    step: int = 0  # the first step of this process, then that of the last report
    state: TrainerState | None = None  # of a running trainer: its step is known between reports
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._start = self.step, self.clock()

    def add(self, report: Report) -> None:
        self.history.add(report)
        self.step = report.step

    @cached_property
    def peak_flops(self) -> float:
        return self.measure_peak_flops()

    def compute_mfu(self, report: Report) -> float | None:
        """Return the model FLOPs utilization, as a fraction of the peak."""
        if not self.peak_flops:
            return None
        mfu = self.flops_per_token * report.tokens_per_second / self.peak_flops
        return mfu if mfu <= 1 else None  # the estimate of FLOPs is too high for this objective

    @property
    def current_step(self) -> int:
        """The step of the running trainer, else that of the last report."""
        return self.step if self.state is None else max(self.step, self.state.step)

    @property
    def remaining_seconds(self) -> float | None:
        """Remaining time at the average speed so far, including evaluation and checkpoints."""
        start_step, start_time = self._start
        step = self.current_step
        if step <= start_step:
            return None
        seconds_per_step = (self.clock() - start_time) / (step - start_step)
        return seconds_per_step * (self.train_config.total_steps - step)

    @property
    def best_report(self) -> Report | None:
        return self.history.find_best(
            self.train_config.best_metric, higher_is_better=self.train_config.maximizes_metric
        )


@contextmanager
def show_progress(progress: TrainingProgress, console: Console) -> Iterator[ReportCallback]:
    """Show a live panel on a terminal, else print lines; yield the callback for reports."""
    if console.is_terminal and not console.is_dumb_terminal:
        live = Live(
            get_renderable=lambda: render_panel(progress, console),
            console=console,
            auto_refresh=False,
        )
        with live, refresh_periodically(live, refresh_per_second=2):

            def show_report(report: Report) -> None:
                progress.compute_mfu(report)  # measures the peak here, not in the drawing thread
                progress.add(report)
                live.refresh()

            yield show_report
    else:

        def print_report(report: Report) -> None:
            progress.add(report)
            print(format_report(progress, report), flush=True)

        yield print_report


# --- lines ---


def format_report(progress: TrainingProgress, report: Report) -> str:
    """Return a report as one line, in aligned columns."""
    steps = f"{progress.train_config.total_steps:,}"
    parts = [f"step {report.step:>{len(steps)},}/{steps}"]
    if report.phase == "eval":
        parts += [
            "eval",
            *(f"{name} {format_metric(value)}" for name, value in report.metrics.items()),
        ]
        parts += ["best"] if progress.best_report is report else []
        return "   ".join(parts)
    metrics = dict(report.metrics)
    grad_norm = metrics.pop("grad_norm", math.nan)
    parts += [f"{name} {format_metric(value):>{NUMBER_WIDTH}}" for name, value in metrics.items()]
    parts += [f"grad_norm {format_metric(grad_norm):>{NUMBER_WIDTH}}", f"lr {report.lr:.2e}"]
    parts.append(f"{format_count(report.tokens_per_second):>5} tokens/s")
    mfu = progress.compute_mfu(report)
    if mfu is not None:
        parts.append(f"{mfu:>4.0%} MFU")
    if progress.remaining_seconds is not None:
        parts.append(f"{format_duration(progress.remaining_seconds):>7} left")
    return "   ".join(parts)


def format_metric(value: float) -> str:
    """Return four significant digits, at most nine characters: 0.8312, 12.35, 0.003503, 1.235e+05."""
    return f"{value:#.4g}".rstrip(".")


# --- panel ---


def render_panel(progress: TrainingProgress, console: Console) -> RenderableType:
    """Return the panel in the size of the terminal; a narrow terminal has room for a few words only.

    The last column stays free: a `^C` that the terminal prints at the end of a full line would begin
    another line, and the next drawing would leave the first line of this one behind."""
    width = min(console.width - ECHO_WIDTH, 120) - 4
    if width < MIN_PANEL_WIDTH:
        return render_words(progress, console.width - ECHO_WIDTH)
    metrics = render_metrics(progress)
    num_metric_lines = len(console.render_lines(metrics, console.options.update_width(width)))
    height = min(10, console.height - num_metric_lines - 4)  # beside the border and the bar
    body: list[RenderableType] = [metrics, render_progress_bar(progress, width)]
    if height >= MIN_CURVE_HEIGHT:
        body.insert(0, render_loss_curve(progress, width, height))
    return Panel(
        Group(*body), title=Text(progress.title, "bold"), title_align="left", width=width + 4
    )


def render_words(progress: TrainingProgress, width: int) -> Text:
    """Return the step, the loss and the remaining time, one per line."""
    words = [f"{progress.current_step:,}/{progress.train_config.total_steps:,}"]
    if progress.history.train:
        words.append(f"loss {format_metric(progress.history.train[-1].metrics['loss'])}")
    if progress.remaining_seconds is not None:
        words.append(f"{format_duration(progress.remaining_seconds)} left")
    return Text("\n".join(word[: max(width, 1)] for word in words))


def render_metrics(progress: TrainingProgress) -> Table:
    """Return the metrics; their names have the colors of the lines of the curve."""
    table = Table.grid(padding=(0, 2))
    if progress.history.train:
        report = progress.history.train[-1]
        metrics = dict(report.metrics)
        grad_norm = metrics.pop("grad_norm", math.nan)
        mfu = progress.compute_mfu(report)
        extra = [
            f"lr {report.lr:.2e}",
            f"grad_norm {format_metric(grad_norm)}",
            f"{format_count(report.tokens_per_second)} tokens/s",
        ]
        if mfu is not None:
            extra.append(f"{mfu:.0%} MFU")
        table.add_row(Text("training", TRAIN_STYLE), render_metric_pairs(metrics, extra))
    if progress.history.validation:
        metrics = progress.history.validation[-1].metrics
        table.add_row(Text("validation", VALIDATION_STYLE), render_metric_pairs(metrics))
    best = progress.best_report
    if best is not None:
        best_metric = progress.train_config.best_metric
        value = format_metric(best.metrics[best_metric])
        table.add_row(
            Text("best", VALIDATION_STYLE), f"{best_metric} {value} at step {best.step:,}"
        )
    return table


def render_metric_pairs(metrics: Mapping[str, float], extra: Sequence[str] = ()) -> Columns:
    """Return names and values; a line break never splits a pair."""
    pairs = [f"{name} {format_metric(value)}" for name, value in metrics.items()]
    return Columns([*pairs, *extra], padding=(0, 3))


def render_progress_bar(progress: TrainingProgress, width: int) -> Table:
    """Return the bar of the completed steps, with the remaining time."""
    steps = progress.train_config.total_steps
    label = f"{progress.current_step:,} of {steps:,}"
    if progress.remaining_seconds is not None:
        label += f", {format_duration(progress.remaining_seconds)} left"
    bar = ProgressBar(
        total=steps,
        completed=progress.current_step,
        width=max(width - len(label) - 2, 8),
        complete_style=TRAIN_STYLE,
    )
    table = Table.grid(padding=(0, 2))
    table.add_row(bar, label)
    return table


def render_loss_curve(progress: TrainingProgress, width: int, height: int) -> Text:
    """Return the curve of the losses so far, from the first report to the last."""
    train_points = extract_points(progress.history.train)
    validation_points = extract_points(progress.history.validation)
    all_points = [*train_points, *validation_points]
    if not all_points:
        return Text("waiting for the first report", "dim")
    low = min(loss for _, loss in all_points)
    high = max(loss for _, loss in all_points)
    first_step = min(step for step, _ in all_points)
    last_step = max(step for step, _ in all_points)
    labels = [format_metric(high), *[""] * (height - 2), format_metric(low)]
    margin = max(map(len, labels))
    num_columns = width - margin - 1
    steps = np.linspace(first_step, max(last_step, first_step + 1), 2 * num_columns)
    train_cells = render_braille(train_points, steps, low, high, height)
    validation_cells = render_braille(validation_points, steps, low, high, height)
    rows = []
    for label, train_row, validation_row in zip(labels, train_cells, validation_cells, strict=True):
        row = Text.assemble((f"{label:>{margin}} ", "dim"))
        for train_cell, validation_cell in zip(train_row, validation_row, strict=True):
            cell = int(train_cell | validation_cell)
            style = VALIDATION_STYLE if validation_cell else TRAIN_STYLE
            row.append(chr(BRAILLE_BLANK + cell) if cell else " ", style)
        rows.append(row)
    return Text("\n").join(rows)


def render_braille(
    points: Points, steps: FloatArray, low: float, high: float, height: int
) -> NDArray[np.uint8]:
    """Return a line as braille cells: (height, len(steps) / 2), each the bits of its dots."""
    cells = np.zeros((height, len(steps) // 2), np.uint8)
    if not points:
        return cells
    line = np.array(downsample_points(points, len(steps)), np.float64)
    x = line[:, 0]
    y = line[:, 1]
    inside = (steps[1:] >= x[0]) & (steps[:-1] <= x[-1])  # a single point has one column
    heights = (high - np.interp(steps, x, y)) / max(high - low, 1e-12) * (4 * height - 1)
    rows = np.rint(heights).astype(int)[1:][inside].tolist()
    columns = np.arange(1, len(steps))[inside].tolist()
    for column, row, previous_row in zip(columns, rows, [rows[0], *rows], strict=False):
        start = (
            previous_row + (row > previous_row) - (row < previous_row)
        )  # next to the last column's end
        for dot_row in range(min(start, row), max(start, row) + 1):
            cells[dot_row // 4, column // 2] |= BRAILLE_DOTS[dot_row % 4][column % 2]
    return cells
