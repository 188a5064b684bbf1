"""Steps whose numbers are not finite: they never move a weight, and the device is not waited for.

The optimiser reads the flag of a step on the device; the host is told while later steps run. In fp16 a
gradient that overflows is no fault, as long as a lower scale of the loss can help."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import torch
from torch import Tensor

from qkv.data.batches.sampler import Place
from qkv.train.loop.optim import Joint

MOST = 3  # in a row
LATE = 8  # steps that the host may lag behind
FLOOR = 1.0  # the scale at which a gradient that overflows does so of itself


@dataclass
class Watch:
    waiting: deque[tuple[int, Place, Tensor, torch.cuda.Event | None]] = field(default_factory=deque)
    remedy: str = "a lower learn.rate"
    bad: int = 0  # steps in a row
    skipped: int = 0  # in all

    def add(self, step: int, place: Place, lost: Tensor) -> None:
        """`lost` is 1 where the step was skipped for a fault."""
        if lost.is_cuda:
            held = torch.empty((), dtype=lost.dtype, pin_memory=True)
            held.copy_(lost, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            self.waiting.append((step, place, held, event))
        else:
            self.waiting.append((step, place, lost, None))
        self.look(late=LATE)

    def look(self, *, late: int = 0) -> None:
        """Counts the flags that have arrived, and waits for those of more than `late` steps ago."""
        while self.waiting:
            step, place, held, event = self.waiting[0]
            if event is not None and not event.query():
                if len(self.waiting) <= late:
                    return
                event.synchronize()
            self.waiting.popleft()
            lost = bool(held)
            self.bad, self.skipped = (self.bad + 1, self.skipped + 1) if lost else (0, self.skipped)
            if self.bad >= MOST:
                raise ValueError(
                    f"step {step}: the loss or a gradient was not finite {MOST} times in a row, last at "
                    f"batch {place.batch} of epoch {place.epoch}; no weight moved; try {self.remedy}"
                )


def step_unless(optimiser: Joint, lost: Tensor) -> None:
    """A step, unless the flag is 1. A fused optimiser reads it on the device, another makes the host wait."""
    for part in optimiser.parts:
        if part.defaults.get("fused"):
            part.found_inf = lost  # type: ignore[attr-defined]
            part.step()
        elif not bool(lost):
            part.step()


def rescaled(scaler: torch.amp.GradScaler, device: torch.device) -> Tensor:
    """Moves the scale of the loss; returns whether a gradient's overflow lowered it, and not too far."""
    one = torch.ones((), device=device)
    was = scaler.scale(one)
    scaler.update()
    now = scaler.scale(one)
    return (now < was) & (now >= FLOOR)
