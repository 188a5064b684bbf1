"""Signals of a training process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest

from qkv.train import signals
from qkv.train.signals import StoppedBeforeTraining, StopSignals, handle_stop_signals


@pytest.fixture(autouse=True)
def _no_exit_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.train.signals.atexit.register", lambda *_: None)


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def test_signals_before_the_first_step_end_the_process() -> None:
    with handle_stop_signals():
        with pytest.raises(StoppedBeforeTraining):
            send(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)


def test_hidden_sigterm_is_raised_again() -> None:
    """Code that catches every error, as some imports do, must not let the training start."""
    with handle_stop_signals() as stop_signals:
        with pytest.raises(StoppedBeforeTraining):
            send(signal.SIGTERM)
        with pytest.raises(StoppedBeforeTraining):
            stop_signals.start(lambda: None)


def test_signals_request_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[int] = []
    with handle_stop_signals() as stop_signals:
        stop_signals.start(lambda: requests.append(1))
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGINT):
            send(number)
        assert requests == [1, 1, 1, 1]
        assert len(stop_signals.interrupts) == 2
        monkeypatch.setattr(signals, "SIGNAL_ECHO_SECONDS", -1.0)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)


def test_handlers_are_restored() -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with handle_stop_signals() as stop_signals:
        with handle_stop_signals(stop_signals) as inner:
            assert inner is stop_signals
        assert signal.getsignal(signal.SIGTERM) == stop_signals.on_sigterm
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers


def test_other_threads_have_no_signals() -> None:
    received: list[StopSignals] = []

    def enter() -> None:
        with handle_stop_signals() as stop_signals:
            received.append(stop_signals)

    run_in_thread(enter)
    assert received[0].request_stop is None


def run_in_thread(function: Callable[[], None]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()
