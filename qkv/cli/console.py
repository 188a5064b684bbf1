"""Terminal output of commands, with the available width and colors. Does not depend on commands."""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from qkv.terminal import refresh_periodically

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from qkv.train.evaluate.evaluation_loop import ProgressReporter


MAX_ERROR_CHARACTERS = 4000
PROGRESS_LINE_INTERVAL = 10.0  # seconds between lines if there is no progress bar


def print_error(message: str) -> None:
    """Print an error as one line on stderr, without control characters and of limited length."""
    line = "".join(letter if letter.isprintable() else "�" for letter in " ".join(message.split()))
    if len(line) > MAX_ERROR_CHARACTERS:
        half = MAX_ERROR_CHARACTERS // 2
        line = f"{line[:half]} … {line[-half:]}"
    print("qkv:", line, file=sys.stderr)


def make_console() -> Console:
    """Return a console with the width of the terminal, else of COLUMNS, else 100."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else shutil.get_terminal_size((100, 24)).columns
    return Console(width=width, highlight=False, markup=False, emoji=False)


@contextmanager
def show_progress_bar(
    description: str, clock: Callable[[], float] = time.monotonic
) -> Iterator[ProgressReporter]:
    """Show progress on stderr: a bar on a terminal, an occasional line elsewhere."""
    from rich.console import Console

    screen = Console(stderr=True, highlight=False, markup=False, emoji=False)
    if screen.is_terminal and not screen.is_dumb_terminal:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
        )
        bar = Progress(*columns, console=screen, transient=True, auto_refresh=False)
        with bar, refresh_periodically(bar, refresh_per_second=10):
            task = bar.add_task(description, total=None)
            yield lambda text, done, total: bar.update(
                task, description=text, completed=done, total=total
            )
        return
    last_time = clock()

    def print_line(text: str, done: int, total: int | None) -> None:
        nonlocal last_time
        if clock() - last_time >= PROGRESS_LINE_INTERVAL:
            last_time = clock()
            print(text, file=sys.stderr, flush=True)

    yield print_line


def print_rich(*renderables: RenderableType) -> None:
    """Print with rich; without a terminal, strip trailing whitespace."""
    screen = make_console()
    with screen.capture() as capture:
        for renderable in renderables:
            # Console.print ignores Text.no_wrap
            screen.print(renderable, soft_wrap=bool(getattr(renderable, "no_wrap", False)))
    text = capture.get()
    sys.stdout.write(text if screen.is_terminal else re.sub(r" +$", "", text, flags=re.MULTILINE))
