"""Live terminal displays, redrawn by a thread that is joined before the program continues."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Protocol


class Display(Protocol):
    """A display that can be redrawn, such as rich's `Live` and `Progress`."""

    def refresh(self) -> None: ...


@contextmanager
def refresh_periodically(display: Display, refresh_per_second: float) -> Iterator[None]:
    """Redraw the display at this rate until the block ends.

    Rich's own refresh thread (`auto_refresh=True`) is stopped but not joined. If it still draws when
    the interpreter shuts down, it is unwound through native code and the process aborts."""
    done = Event()

    def refresh() -> None:
        while not done.wait(1 / refresh_per_second):
            display.refresh()

    thread = Thread(target=refresh, name="terminal-refresh", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
