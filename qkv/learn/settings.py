"""Learn: the settings of a run, and what is wrong with them. Knows no network."""

from __future__ import annotations

import math
from dataclasses import dataclass

CHOICES = {
    "schedule": ("constant", "linear", "cosine", "noam"), "optimiser": ("adamw", "muon"),
    "precision": ("fp32", "bf16", "fp16"), "parallel": ("auto", "copy", "shard", "tensor"),
}  # fmt: skip
POSITIVE = ("rate", "eps")
COUNTS = {
    "steps": 1,
    "accumulate": 1,
    "log": 1,
    "keep": 1,
    "warmup": 0,
    "measure": 0,
    "save": 0,
    "patience": 0,
    "seed": 0,
    "write": 0,
    "beams": 1,
}
# More of these is better; of all else that is measured, less.
RISING = frozenset(
    "accuracy f1 macro_f1 precision recall matthews pearson spearman exact bleu chrf rouge1 rouge2 rougeL "
    "replaced_accuracy replaced_f1".split()
)


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
    seed: int = 0
    log: int = 10  # steps between lines
    measure: int = 0  # steps between measurements; 0: at the end only
    save: int = 0  # steps between checkpoints; 0: at the end only
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
        for name in (*POSITIVE, "decay", "clip"):
            value, least = getattr(self, name), "more than 0" if name in POSITIVE else "0 or more"
            if not math.isfinite(value) or value < 0 or (name in POSITIVE and not value):
                raise ValueError(f"learn.{name} {value!r}, expected a number, {least}")
        for name, low in COUNTS.items():
            if getattr(self, name) < low:
                raise ValueError(f"learn.{name} {getattr(self, name)!r}, expected {low} or more")
        if self.warmup > self.steps:
            raise ValueError(f"learn.warmup {self.warmup}, expected at most learn.steps, {self.steps}")
        for name in ("floor", "average"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"learn.{name} {getattr(self, name)!r}, expected at least 0 and less than 1")
        if not 0 < self.layer_decay <= 1:
            raise ValueError(f"learn.layer_decay {self.layer_decay!r}, expected more than 0 and at most 1")
        if not all(0 <= beta < 1 for beta in self.betas) or len(self.betas) != 2:
            raise ValueError(
                f"learn.betas {self.betas!r}, expected two numbers of at least 0 and less than 1"
            )
