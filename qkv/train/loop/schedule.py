"""Learning rate schedules: pure functions of the step, so that a resumed run needs no schedule state.

    constant   lr
    linear     decreases linearly from `warmup_steps` to `steps`, then stays at the minimum
    cosine     decreases as half a cosine wave from `warmup_steps` to `steps`, then stays at the minimum
    noam       decreases as 1 / sqrt(step) after `warmup_steps` (Vaswani et al. 2017, eq. 3)

During the first `warmup_steps`, the learning rate increases linearly from 0 to `lr`. Steps are counted
from one. `Trainer.train_step` sets the learning rate of each step."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from qkv.validate import check_number


@dataclass(frozen=True, kw_only=True)
class LRSchedule:
    """A learning rate schedule: `schedule(step)` is the learning rate at a step."""

    name: str
    lr: float = 1.0  # peak learning rate
    steps: int | None = None
    warmup_steps: int = 0
    min_lr_ratio: float = 0.0  # final learning rate as a fraction of the peak

    def __post_init__(self) -> None:
        if self.name not in DECAY_FUNCTIONS:
            raise ValueError(
                f"lr_schedule {self.name!r}: expected one of {', '.join(DECAY_FUNCTIONS)}"
            )
        check_number("lr", self.lr, at_least=0)
        check_number("min_lr_ratio", self.min_lr_ratio, at_least=0, at_most=1)
        if self.steps is not None:
            check_number("steps", self.steps, integer=True, at_least=1)
        upper_bound = {} if self.steps is None else {"at_most": self.steps}
        check_number("warmup_steps", self.warmup_steps, integer=True, at_least=0, **upper_bound)
        has_minimum = self.name in ("linear", "cosine")
        if has_minimum and self.steps is None:
            raise ValueError(f"steps is None: lr_schedule {self.name!r} needs the number of steps")
        if self.name == "noam" and not self.warmup_steps:
            raise ValueError("warmup_steps is 0: lr_schedule 'noam' needs a warmup")
        if self.min_lr_ratio and not has_minimum:
            raise ValueError(
                f"min_lr_ratio is {self.min_lr_ratio!r}: lr_schedule {self.name!r} has no minimum"
            )

    def __call__(self, step: int) -> float:
        if step < self.warmup_steps:
            return self.lr * (step / self.warmup_steps)
        return self.lr * DECAY_FUNCTIONS[self.name](self, step)

    def decay_progress(self, step: int) -> float:
        """Return the fraction of the way from `warmup_steps` to `steps`."""
        assert self.steps is not None
        return min((step - self.warmup_steps) / max(self.steps - self.warmup_steps, 1), 1.0)

    def scale_above_min(self, fraction: float) -> float:
        """Map a fraction from [0, 1] to [min_lr_ratio, 1]."""
        return self.min_lr_ratio + (1 - self.min_lr_ratio) * fraction


# The learning rate after the warmup, as a fraction of the peak.
DECAY_FUNCTIONS: dict[str, Callable[[LRSchedule, int], float]] = {
    "constant": lambda s, step: 1.0,
    "linear": lambda s, step: s.scale_above_min(1 - s.decay_progress(step)),
    "cosine": lambda s, step: s.scale_above_min(
        (1 + math.cos(math.pi * s.decay_progress(step))) / 2
    ),
    "noam": lambda s, step: math.sqrt(s.warmup_steps / max(step, s.warmup_steps)),
}
