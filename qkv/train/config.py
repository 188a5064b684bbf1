"""Learn: the settings of a run, and what is wrong with them. Knows no network."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from qkv.validate import number

OPTIMISERS = ("adamw", "muon", "adafactor")
CHOICES = {
    "schedule": ("constant", "linear", "cosine", "noam"), "optimiser": OPTIMISERS,
    "precision": ("fp32", "bf16", "fp16"), "parallel": ("auto", "copy", "shard", "tensor"),
}  # fmt: skip
COUNT: dict[str, Any] = dict(whole=True, at_least=0)
SOME: dict[str, Any] = dict(whole=True, at_least=1)
POSITIVE: dict[str, Any] = dict(more_than=0)
SHARE: dict[str, Any] = dict(at_least=0, less_than=1)
NUMBERS: dict[str, dict[str, Any]] = {
    "steps": SOME, "accumulate": SOME, "log": SOME, "keep": SOME, "warmup": COUNT, "measure": COUNT,
    "save": COUNT, "patience": COUNT, "seed": COUNT, "last": COUNT, "write": COUNT, "beams": SOME,
    "rate": POSITIVE, "eps": POSITIVE, "decay": dict(at_least=0), "clip": dict(at_least=0),
    "floor": SHARE, "average": SHARE, "layer_decay": dict(more_than=0, at_most=1),
}  # fmt: skip
# More of these is better; of all else that is measured, less.
RISING = frozenset(
    "accuracy f1 macro_f1 precision recall matthews pearson spearman exact bleu chrf rouge1 rouge2 rougeL "
    "replaced_accuracy replaced_f1".split()
)


def better(value: float, best: float | None, *, rising: bool) -> bool:
    """Whether a measurement is better than the best so far; what is no number never is."""
    if math.isnan(value):
        return False
    return best is None or (value > best if rising else value < best)


@dataclass(frozen=True, kw_only=True)
class Learn:
    """The settings of a run; a recipe's table `learn`."""

    steps: int
    rate: float = 3e-4
    schedule: str = "cosine"
    warmup: int = 0
    floor: float = 0.0  # the last rate, as a share of the first
    optimiser: str = "adamw"
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    decay: float = 0.01
    layer_decay: float = 1.0  # lower layers learn so much less, layer by layer
    freeze: tuple[str, ...] = ()  # tensors that do not learn: `encoder.embed.*`, `layers.[0-5].*`
    clip: float = 1.0
    accumulate: int = 1  # parts a batch is run in
    precision: str = "fp32"
    parallel: str = "auto"  # how the network lies on several processes: see spread
    compile: bool = False
    recompute: bool = False  # blocks run again on the way back, and keep less
    average: float = 0.0  # decay of a moving average of the weights; 0: none
    last: int = 0  # the model at the end is the mean of so many checkpoints; 0: of none
    seed: int = 0
    log: int = 10  # steps between lines
    measure: int = 0  # steps between measurements; 0: at the end only
    save: int = 0  # steps between checkpoints; 0: at the end only; a recipe without it: a tenth of the steps
    keep: int = 2  # checkpoints that are kept
    patience: int = 0  # measurements without a better one, after which it stops; 0: it does not
    watch: str = "loss"  # the measurement that `best` goes by
    highest: bool = False  # whether more of it is better, where its name does not tell
    write: int = 0  # validation texts that are written at each measurement, for BLEU (seq2seq); 0: none
    beams: int = 1  # of the search that writes them; 1: greedy

    @property
    def rising(self) -> bool:
        """Whether more of what is watched is better."""
        return self.highest or self.watch in RISING

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise ValueError(f"learn.{name} {getattr(self, name)!r}, expected one of {', '.join(known)}")
        for name, bounds in NUMBERS.items():
            number(f"learn.{name}", getattr(self, name), **bounds)
        if len(self.betas) != 2:
            raise ValueError(f"learn.betas {self.betas!r}, expected two numbers")
        for place, beta in enumerate(self.betas):
            number(f"learn.betas[{place}]", beta, **SHARE)
        for name, most in (("warmup", "steps"), ("last", "steps"), ("last", "keep")):
            value, limit = getattr(self, name), getattr(self, most)
            if value > limit:
                raise ValueError(f"learn.{name} {value}, expected at most learn.{most}, {limit}")
        if self.last and self.average:
            raise ValueError(f"learn.last {self.last} and learn.average {self.average}, expected one of them")
        widest = (self.steps - 1) // max(self.last - 1, 1)  # so many steps apart there are enough
        if self.last > 1 and not 0 < self.save <= widest:
            raise ValueError(
                f"learn.save {self.save}, expected from 1 to {widest}: learn.last wants {self.last} "
                f"checkpoints in learn.steps {self.steps}"
            )


def nearest(name: str, known: Iterable[str]) -> str | None:
    """What may have been meant by a name that is unknown."""
    return next(iter(difflib.get_close_matches(name, known, n=1)), None)
