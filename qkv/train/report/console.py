"""Panel: what a run shows while it learns; a picture on a terminal, a line a report elsewhere.

╭─ shakespeare ───────────────────────────────────────────────╮
│ 4.17 ⢣                                                      │
│      ⠈⠒⠤⣀⣀⣀⡀                                                │
│ 1.60         ⠉⠉⠉⠉⠒⠒⠒⠤⠤⠤⠤⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀    │
│ loss 1.602   validation 1.781   best 1.781 at step 1,500 …  │
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

from qkv.formatting import human, lasting
from qkv.terminal import refreshed
from qkv.train.config import Learn
from qkv.train.loop.trainer import Report
from qkv.train.report.history import History, Points, points, thinned

BLANK = 0x2800  # braille: each character is 2 x 4 dots, and each dot a bit
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # [row][column]
WIDE = 9  # letters of a figure: 1.235e-05
TRAIN, VALID = "cyan", "bold yellow"
Floats = NDArray[np.float64]
Callback = Callable[[Report], None]


@dataclass
class Course:
    """A run on its way: what it reported, how fast it goes, and how much is left."""

    title: str
    learn: Learn
    work: float  # operations a token
    measure_peak: Callable[[], float]  # operations a second that the machine can do
    history: History = field(default_factory=History)
    step: int = 0  # where this part of the run began, then where it is
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._begun = self.step, self.clock()

    def add(self, report: Report) -> None:
        self.history.add(report)
        self.step = report.step

    @cached_property
    def peak(self) -> float:
        return self.measure_peak()

    def share(self, report: Report) -> float | None:
        """Of the machine's peak."""
        return self.work * report.tokens_per_second / self.peak if self.peak else None

    @property
    def left(self) -> float | None:
        """Seconds, at the pace so far; measuring and saving are a part of it."""
        first, clock = self._begun
        if self.step <= first:
            return None
        return (self.clock() - clock) / (self.step - first) * (self.learn.steps - self.step)

    @property
    def best(self) -> Report | None:
        return self.history.best(self.learn.watch, highest=self.learn.rising)


@contextmanager
def shown(course: Course, screen: Console) -> Iterator[Callback]:
    """Gives what is to be told every report."""
    if screen.is_terminal and not screen.is_dumb_terminal:
        live = Live(get_renderable=lambda: panel(course, screen), console=screen, auto_refresh=False)
        with live, refreshed(live, per_second=2):

            def tell(report: Report) -> None:
                course.share(report)  # the peak is measured here, not by the thread that draws
                course.add(report)
                live.refresh()

            yield tell
    else:

        def write(report: Report) -> None:
            course.add(report)
            print(line(course, report), flush=True)

        yield write


# --- lines ---


def line(course: Course, report: Report) -> str:
    """A report as one line; the columns of all of them stand below each other."""
    steps = f"{course.learn.steps:,}"
    parts = [f"step {report.step:>{len(steps)},}/{steps}"]
    if report.kind == "measure":
        parts += ["measured", *(f"{name} {figure(value)}" for name, value in report.values.items())]
        parts += ["best"] if course.best is report else []
        return "   ".join(parts)
    values = dict(report.values)
    norm = values.pop("norm", math.nan)
    parts += [f"{name} {figure(value):>{WIDE}}" for name, value in values.items()]
    parts += [f"norm {figure(norm):>{WIDE}}", f"rate {report.rate:.2e}"]
    parts.append(f"{human(report.tokens_per_second):>5} tokens/s")
    share = course.share(report)
    parts += [f"{share:>4.0%} of peak"] if share is not None else []
    parts += [f"{lasting(course.left):>7} left"] if course.left is not None else []
    return "   ".join(parts)


def figure(value: float) -> str:
    """Four digits, in at most nine letters: 0.8312, 12.35, 0.003503, 1.235e+05."""
    return f"{value:#.4g}".rstrip(".")


# --- the picture ---


def panel(course: Course, screen: Console) -> RenderableType:
    width, height = min(screen.width, 120) - 4, max(3, min(10, screen.height - 9))
    body: list[RenderableType] = [curve(course, width, height), facts(course), bar(course, width)]
    return Panel(Group(*body), title=Text(course.title, "bold"), title_align="left", width=width + 4)


def facts(course: Course) -> Table:
    """The figures; the colours of their names tell the lines of the curve apart."""
    best, watch = course.best, course.learn.watch
    table = Table.grid(padding=(0, 2))
    if course.history.train:
        last = course.history.train[-1]
        values = dict(last.values)
        norm, share = values.pop("norm", math.nan), course.share(last)
        more = [f"rate {last.rate:.2e}", f"gradient {figure(norm)}"]
        more.append(f"{human(last.tokens_per_second)} tokens/s")
        more += [f"{share:.0%} of peak"] if share is not None else []
        table.add_row(Text("training", TRAIN), pairs(values, more))
    if course.history.measures:
        table.add_row(Text("validation", VALID), pairs(course.history.measures[-1].values))
    if best is not None:
        table.add_row(Text("best", VALID), f"{watch} {figure(best.values[watch])} at step {best.step:,}")
    return table


def pairs(values: Mapping[str, float], more: Sequence[str] = ()) -> Columns:
    """Names and values, none of them cut at the end of a line."""
    return Columns([*(f"{name} {figure(value)}" for name, value in values.items()), *more], padding=(0, 3))


def bar(course: Course, width: int) -> Table:
    """Steps done and to do, and the time left."""
    steps, left = course.learn.steps, course.left
    said = f"{course.step:,} of {steps:,}" + (f", {lasting(left)} left" if left is not None else "")
    table = Table.grid(padding=(0, 2))
    room = max(width - len(said) - 2, 8)
    table.add_row(ProgressBar(total=steps, completed=course.step, width=room, complete_style=TRAIN), said)
    return table


def curve(course: Course, width: int, height: int) -> Text:
    """Losses so far, from the first report to the last, over the width that there is."""
    train, valid = points(course.history.train), points(course.history.measures)
    every = [*train, *valid]
    if not every:
        return Text("the first report is on its way", "dim")
    low, high = min(loss for _, loss in every), max(loss for _, loss in every)
    first, last = min(step for step, _ in every), max(step for step, _ in every)
    labels = [figure(high), *[""] * (height - 2), figure(low)]
    margin = max(map(len, labels))
    room = width - margin - 1
    steps = np.linspace(first, max(last, first + 1), 2 * room)
    light, strong = (dots(each, steps, low, high, height) for each in (train, valid))
    rows = []
    for label, below, above in zip(labels, light, strong, strict=True):
        row = Text.assemble((f"{label:>{margin}} ", "dim"))
        for under, over in zip(below, above, strict=True):
            both = int(under | over)
            row.append(chr(BLANK + both) if both else " ", VALID if over else TRAIN)
        rows.append(row)
    return Text("\n").join(rows)


def dots(line: Points, steps: Floats, low: float, high: float, height: int) -> NDArray[np.uint8]:
    """A line as braille: (height, half the number of steps), each cell the bits of its dots."""
    cells = np.zeros((height, len(steps) // 2), np.uint8)
    if not line:
        return cells
    found = np.array(thinned(line, len(steps)), np.float64)
    x, y = found[:, 0], found[:, 1]
    inside = (steps[1:] >= x[0]) & (steps[:-1] <= x[-1])  # one column is seen of a single point too
    heights = (high - np.interp(steps, x, y)) / max(high - low, 1e-12) * (4 * height - 1)
    rows = np.rint(heights).astype(int)[1:][inside].tolist()
    columns = np.arange(1, len(steps))[inside].tolist()
    for column, row, before in zip(columns, rows, [rows[0], *rows], strict=False):
        start = before + (row > before) - (row < before)  # next to where the last column ended
        for each in range(min(start, row), max(start, row) + 1):
            cells[each // 4, column // 2] |= DOTS[each % 4][column % 2]
    return cells
