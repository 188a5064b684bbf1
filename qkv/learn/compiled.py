"""Compiled: a network and its losses, compiled in place. Knows no data."""

from __future__ import annotations

import signal
import threading
from dataclasses import replace

import torch
from torch import nn

from qkv.learn.objective import Objective


def compiled(net: nn.Module, objective: Objective, device: torch.device) -> Objective:
    """Compiles the network where it is; gives the objective with losses that are compiled too."""
    if device.type != "cpu":
        start_compilers()
    torch.compiler.config.cache_key_tag = "qkv without cudnn"  # graphs made with it lie in the same cache
    net.compile(dynamic=None)
    return replace(objective, parts=torch.compile(objective.parts, dynamic=None))


def start_compilers() -> None:
    """Starts the processes that inductor compiles in, deaf to SIGTERM.

    Who ends a run often signals all of its processes (timeout, Slurm). The trainer then saves and leaves, but
    would wait for ever for a kernel whose compiler is gone."""
    if threading.current_thread() is not threading.main_thread():  # which alone may change signals
        return
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        from torch._inductor.async_compile import AsyncCompile

        AsyncCompile.warm_pool()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
