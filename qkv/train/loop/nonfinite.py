"""Steps with a loss or gradient that is not finite, which are skipped without a device synchronization.

The optimizer reads the flag of a step on the device; the host reads it while later steps run. In fp16, a
gradient overflow is not counted while the loss scale can still be lowered."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import torch
from torch import Tensor

from qkv.data.batches.sampler import SamplerState
from qkv.train.loop.optim import CombinedOptimizer

MAX_NONFINITE_STEPS = 3  # consecutive steps before training stops
MAX_LAG_STEPS = 8  # steps by which the host may lag behind the device
MIN_LOSS_SCALE = 1.0  # at this scale an overflow is not caused by the scaling


@dataclass
class NonFiniteMonitor:
    """Counts skipped steps, and stops training after too many consecutive ones."""

    pending: deque[tuple[int, SamplerState, Tensor, torch.cuda.Event | None]] = field(
        default_factory=deque
    )
    remedy: str = "a lower train.lr"
    num_consecutive: int = 0
    num_skipped: int = 0

    def add(self, step: int, sampler_state: SamplerState, step_failed: Tensor) -> None:
        """Record the flag of a step: 1 if it was skipped."""
        if step_failed.is_cuda:
            flag = torch.empty((), dtype=step_failed.dtype, pin_memory=True)
            flag.copy_(step_failed, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            self.pending.append((step, sampler_state, flag, event))
        else:
            self.pending.append((step, sampler_state, step_failed, None))
        self.check(max_lag=MAX_LAG_STEPS)

    def check(self, *, max_lag: int = 0) -> None:
        """Count the flags that have arrived; wait for those more than `max_lag` steps old."""
        while self.pending:
            step, sampler_state, flag, event = self.pending[0]
            if event is not None and not event.query():
                if len(self.pending) <= max_lag:
                    return
                event.synchronize()
            self.pending.popleft()
            if bool(flag):
                self.num_consecutive += 1
                self.num_skipped += 1
            else:
                self.num_consecutive = 0
            if self.num_consecutive >= MAX_NONFINITE_STEPS:
                raise ValueError(
                    f"step {step}: the loss or a gradient was not finite in {MAX_NONFINITE_STEPS} "
                    f"consecutive steps, last at batch {sampler_state.batch_index} of epoch "
                    f"{sampler_state.epoch}; no weight was changed; try {self.remedy}"
                )


def step_if_finite(optimizer: CombinedOptimizer, found_inf: Tensor) -> None:
    """Step unless the flag is 1; a fused optimizer reads it on the device, others synchronize."""
    for part in optimizer.optimizers:
        if part.defaults.get("fused"):
            part.found_inf = found_inf  # type: ignore[attr-defined]
            part.step()
        elif not bool(found_inf):
            part.step()


def update_loss_scale(scaler: torch.amp.GradScaler, device: torch.device) -> Tensor:
    """Update the loss scale; return whether an overflow lowered it to a value above the minimum."""
    one = torch.ones((), device=device)
    old_scale = scaler.scale(one)
    scaler.update()
    new_scale = scaler.scale(one)
    return (new_scale < old_scale) & (new_scale >= MIN_LOSS_SCALE)
