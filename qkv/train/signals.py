"""Signals of a training process: SIGTERM and Ctrl-C end it at a step, or before the first one. Does not
depend on torch."""

from __future__ import annotations

import atexit
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

SIGNAL_ECHO_SECONDS = 0.5  # torchrun forwards Ctrl-C to processes that have already received it


class TrainingInterrupted(KeyboardInterrupt):
    """Training stopped by Ctrl-C after everything was saved; its argument is the trainer state."""


class StoppedBeforeTraining(KeyboardInterrupt):
    """SIGTERM before the first step."""


@dataclass
class StopSignals:
    """What SIGTERM and Ctrl-C do: they call `request_stop`, or end the process before it is set."""

    request_stop: Callable[[], None] | None = None  # asks a trainer to stop
    is_terminated: bool = False  # by SIGTERM
    interrupts: list[float] = field(default_factory=list)  # times of Ctrl-C while training

    def on_sigterm(self, *_: object) -> None:
        # Another SIGTERM while the interpreter exits, which takes a while with torch, changes nothing.
        atexit.register(signal.signal, signal.SIGTERM, signal.SIG_IGN)
        self.is_terminated = True
        if self.request_stop is None:
            raise StoppedBeforeTraining
        self.request_stop()

    def start(self, request_stop: Callable[[], None]) -> None:
        """Let signals call `request_stop` from now on."""
        if self.is_terminated:  # an import that catches every error may have hidden it
            raise StoppedBeforeTraining
        self.request_stop = request_stop

    def on_sigint(self, *_: object) -> None:
        if self.request_stop is None:
            raise KeyboardInterrupt
        self.request_stop()
        self.interrupts.append(time.monotonic())
        if self.interrupts[-1] - self.interrupts[0] > SIGNAL_ECHO_SECONDS:
            raise KeyboardInterrupt


@contextmanager
def handle_stop_signals(stop_signals: StopSignals | None = None) -> Iterator[StopSignals]:
    """Handle SIGTERM and Ctrl-C in the block; `stop_signals` are those of a surrounding block.

    Only the main thread can receive signals; in others, the block has no effect."""
    if stop_signals is not None or threading.current_thread() is not threading.main_thread():
        yield stop_signals or StopSignals()
        return
    stop_signals = StopSignals()
    old_sigterm = signal.signal(signal.SIGTERM, stop_signals.on_sigterm)
    old_sigint = signal.signal(signal.SIGINT, stop_signals.on_sigint)
    try:
        yield stop_signals
    finally:
        signal.signal(signal.SIGTERM, old_sigterm)
        signal.signal(signal.SIGINT, old_sigint)
