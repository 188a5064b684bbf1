"""The screen: how commands print, in the width and the colours that there are. Knows no command."""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from qkv.terminal import refreshed

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from qkv.train.evaluate.validation import Tell


LINE = 4000  # characters of a complaint
PAUSE = 10.0  # seconds between lines, where no bar can be drawn


def complain(message: str) -> None:
    """One line on stderr; what a terminal would obey is not in it, and no more than people read."""
    line = "".join(letter if letter.isprintable() else "�" for letter in " ".join(message.split()))
    print(
        "qkv:", line if len(line) <= LINE else f"{line[: LINE // 2]} … {line[-LINE // 2 :]}", file=sys.stderr
    )


def console() -> Console:
    """As wide as the terminal; where there is none, as COLUMNS says, or 100."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else shutil.get_terminal_size((100, 24)).columns
    return Console(width=width, highlight=False, markup=False, emoji=False)


@contextmanager
def progress(what: str, clock: Callable[[], float] = time.monotonic) -> Iterator[Tell]:
    """A bar on a terminal, a line now and then elsewhere; beside the results, which may go into a file."""
    from rich.console import Console

    screen = Console(stderr=True, highlight=False, markup=False, emoji=False)
    if screen.is_terminal and not screen.is_dumb_terminal:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        bar = Progress(*columns, console=screen, transient=True, auto_refresh=False)
        with bar, refreshed(bar, per_second=10):
            task = bar.add_task(what, total=None)
            yield lambda words, done, of: bar.update(task, description=words, completed=done, total=of)
        return
    last = clock()

    def line(words: str, done: int, of: int | None) -> None:
        nonlocal last
        if clock() - last >= PAUSE:
            last = clock()
            print(words, file=sys.stderr, flush=True)

    yield line


def say(*parts: RenderableType) -> None:
    """Prints as rich draws it; off a terminal without the blanks that fill its lines."""
    screen = console()
    with screen.capture() as caught:
        for part in parts:
            screen.print(part, soft_wrap=bool(getattr(part, "no_wrap", False)))  # print forgets it of a text
    text = caught.get()
    sys.stdout.write(text if screen.is_terminal else re.sub(r" +$", "", text, flags=re.MULTILINE))
