"""Schedule: the rate at each step. A pure function of the step, so a run that goes on needs nothing of it.

    constant   rate
    linear     falls in a line from `warmup` to `steps`, then stays at the floor
    cosine     falls in half a wave from `warmup` to `steps`, then stays at the floor
    noam       stays to `hold`, then falls as 1 / sqrt(step)

Before that, each rises in a line from 0 to `rate` in the first `warmup` steps. Steps are counted from one."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from qkv.validate import number


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """`schedule(step)` is the rate at that step; without `rate`, the factor on a rate."""

    kind: str = "linear"
    rate: float = 1.0
    steps: int | None = None
    warmup: int = 0
    floor: float = 0.0  # the last rate, as a share of `rate`
    hold: int | None = None  # None: warmup; T5 has no warm-up and holds for 10,000 steps
    width: int | None = None  # given: `rate` is a factor on width^-0.5 min(step^-0.5, step warmup^-1.5)

    def __post_init__(self) -> None:
        if self.kind not in FALLS:
            raise ValueError(f"schedule {self.kind!r}: expected one of {', '.join(FALLS)}")
        number("rate", self.rate, at_least=0)
        number("floor", self.floor, at_least=0, at_most=1)
        for name in ("steps", "hold", "width"):
            if getattr(self, name) is not None:
                number(name, getattr(self, name), whole=True, at_least=1)
        last = {} if self.steps is None else {"at_most": self.steps}
        number("warmup", self.warmup, whole=True, at_least=0, **last)
        if self.kind in ("linear", "cosine") and self.steps is None:
            raise ValueError(f"steps is None: schedule {self.kind!r} needs the step where it ends")
        if self.kind == "noam" and not self.held:
            raise ValueError("warmup is 0: schedule 'noam' needs a warm-up, or a step to hold until")
        own = {"floor": ("linear", "cosine"), "hold": ("noam",), "width": ("noam",)}
        for name, kinds in own.items():
            if getattr(self, name) and self.kind not in kinds:
                raise ValueError(f"{name} is {getattr(self, name)!r}: schedule {self.kind!r} has none")

    def __call__(self, step: int) -> float:
        share = step / self.warmup if step < self.warmup else FALLS[self.kind](self, step)
        return self.peak * share

    @property
    def held(self) -> int:
        """The step up to which `noam` stays at its peak."""
        return self.warmup if self.hold is None else self.hold

    @property
    def peak(self) -> float:
        """The highest rate (Vaswani et al. 2017, eq. 3, is highest at the end of its warm-up)."""
        return self.rate if self.width is None else self.rate * (self.width * self.held) ** -0.5

    def done(self, step: int) -> float:
        """The share of the way from `warmup` to `steps`."""
        assert self.steps is not None
        return min((step - self.warmup) / max(self.steps - self.warmup, 1), 1.0)

    def above(self, share: float) -> float:
        """A share of what lies over the floor."""
        return self.floor + (1 - self.floor) * share


FALLS: dict[str, Callable[[Schedule, int], float]] = {  # the share of the peak, after the warm-up
    "constant": lambda s, step: 1.0,
    "linear": lambda s, step: s.above(1 - s.done(step)),
    "cosine": lambda s, step: s.above((1 + math.cos(math.pi * s.done(step))) / 2),
    "noam": lambda s, step: math.sqrt(s.held / max(step, s.held)),
}
