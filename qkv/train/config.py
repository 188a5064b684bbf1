"""TrainConfig: the settings of the training loop and their validation. Does not depend on networks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypedDict

from qkv.train.evaluate.metrics import HIGHER_IS_BETTER_METRICS
from qkv.train.loop.schedule import DECAY_FUNCTIONS, LRSchedule
from qkv.validate import check_number

OPTIMIZER_BYTES = {"adamw": 8, "muon": 4, "adafactor": 0}  # least state per parameter, in fp32
OPTIMIZERS = tuple(OPTIMIZER_BYTES)
TRAIN_CHOICES = {
    "lr_schedule": tuple(DECAY_FUNCTIONS),
    "optimizer": OPTIMIZERS,
    "precision": ("fp32", "bf16", "fp16"),
    "parallelism": ("auto", "ddp", "fsdp", "tp"),
}
MAX_COUNT = 10**12  # upper limit of whole numbers
NON_NEGATIVE_INTEGER: dict[str, Any] = dict(integer=True, at_least=0, at_most=MAX_COUNT)
POSITIVE_INTEGER: dict[str, Any] = dict(integer=True, at_least=1, at_most=MAX_COUNT)
POSITIVE_NUMBER: dict[str, Any] = dict(more_than=0)
FRACTION: dict[str, Any] = dict(at_least=0, less_than=1)
NUMBER_BOUNDS: dict[str, dict[str, Any]] = {
    "steps": POSITIVE_INTEGER,
    "epochs": POSITIVE_INTEGER,
    "grad_accum": POSITIVE_INTEGER,
    "log_every": POSITIVE_INTEGER,
    "keep_checkpoints": POSITIVE_INTEGER,
    "eval_num_beams": POSITIVE_INTEGER,
    "warmup_steps": NON_NEGATIVE_INTEGER,
    "eval_every": NON_NEGATIVE_INTEGER,
    "save_every": NON_NEGATIVE_INTEGER,
    "patience": NON_NEGATIVE_INTEGER,
    "seed": dict(integer=True, at_least=0, less_than=2**32),
    "average_last": NON_NEGATIVE_INTEGER,
    "eval_generate": NON_NEGATIVE_INTEGER,
    "lr": POSITIVE_NUMBER,
    "eps": POSITIVE_NUMBER,
    "weight_decay": dict(at_least=0),
    "grad_clip": dict(at_least=0),
    "min_lr_ratio": dict(at_least=0, at_most=1),
    "ema_decay": FRACTION,
    "layer_lr_decay": dict(more_than=0, at_most=1),
}


def is_better(value: float, best: float | None, *, higher_is_better: bool) -> bool:
    """Return whether the value of a metric is better than the best so far; NaN never is."""
    if math.isnan(value):
        return False
    return best is None or (value > best if higher_is_better else value < best)


class TrainSettings(TypedDict, total=False):
    """The keyword arguments of `qkv.fit` that are fields of TrainConfig, except `steps` and `epochs`."""

    lr: float
    lr_schedule: str
    warmup_steps: int
    min_lr_ratio: float
    optimizer: str
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    layer_lr_decay: float
    freeze: tuple[str, ...]
    grad_clip: float
    grad_accum: int
    precision: str
    parallelism: str
    compile: bool
    activation_checkpointing: bool
    ema_decay: float
    average_last: int
    seed: int
    log_every: int
    eval_every: int
    save_every: int | None
    keep_checkpoints: int
    patience: int
    best_metric: str
    higher_is_better: bool
    eval_generate: int
    eval_num_beams: int


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Settings of the training loop: the table `[train]` of a recipe, and arguments of `qkv.fit`."""

    steps: int | None = None  # optimizer steps
    epochs: int | None = None  # passes over the training data, instead of `steps`
    lr: float = 3e-4  # peak learning rate
    lr_schedule: str = "cosine"
    warmup_steps: int = 0
    min_lr_ratio: float = 0.0  # final learning rate as a fraction of the peak
    optimizer: str = "adamw"
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01
    layer_lr_decay: float = 1.0  # learning rate factor per layer, from the top layer down
    freeze: tuple[str, ...] = ()  # frozen parameters: `encoder.embedding.*`, `layers.[0-5].*`
    grad_clip: float = 1.0  # maximum gradient norm; 0: no clipping
    grad_accum: int = 1  # micro-batches per batch
    precision: str = "fp32"
    parallelism: str = "auto"  # strategy with several processes
    compile: bool = False
    activation_checkpointing: bool = False  # recompute the blocks' activations in the backward pass
    ema_decay: float = 0.0  # decay of an exponential moving average of the weights; 0: none
    average_last: int = 0  # number of last checkpoints whose mean is the final model; 0: none
    seed: int = 0
    log_every: int = 10  # steps between reports
    eval_every: int = 0  # steps between evaluations; 0: at the end only
    # Steps between checkpoints; 0: at the end only; None: a tenth of the steps.
    save_every: int | None = None
    keep_checkpoints: int = 2  # number of checkpoints to keep
    patience: int = 0  # evaluations without improvement before training stops; 0: no early stopping
    best_metric: str = "loss"  # validation metric that selects the best model
    higher_is_better: bool = False  # for a best_metric whose name does not imply it
    eval_generate: int = 0  # validation examples to generate at each evaluation, for BLEU (seq2seq)
    eval_num_beams: int = 1  # beams of that generation; 1: greedy

    @property
    def maximizes_metric(self) -> bool:
        """Whether a higher value of `best_metric` is better."""
        return self.higher_is_better or self.best_metric in HIGHER_IS_BETTER_METRICS

    @property
    def total_steps(self) -> int:
        """The number of optimizer steps, which `resolve_epochs` sets for `epochs`."""
        assert self.steps is not None
        return self.steps

    @property
    def save_interval(self) -> int:
        """Steps between checkpoints; 0: at the end only."""
        if self.save_every is not None:
            return self.save_every
        return 0 if self.average_last else max(1, self.total_steps // 10)

    def resolve_epochs(self, count_batches: Callable[[int], int]) -> TrainConfig:
        """Return the config with `steps` instead of `epochs`; `count_batches` maps epochs to steps."""
        if self.epochs is None:
            return self
        return replace(self, steps=count_batches(self.epochs), epochs=None)

    def check_ineffective_settings(self) -> None:
        """Raise ValueError for a setting that has no effect with the others."""
        ineffective = {
            "patience": (self.eval_every == 0, "without train.eval_every: set both"),
            "eval_num_beams": (self.eval_generate == 0, "without train.eval_generate: set both"),
            "higher_is_better": (self.best_metric == "loss", "with train.best_metric 'loss'"),
            "betas": (self.optimizer == "adafactor", "with train.optimizer 'adafactor'"),
            "eps": (self.optimizer == "adafactor", "with train.optimizer 'adafactor'"),
        }
        for name, (is_ineffective, reason) in ineffective.items():
            default = TRAIN_DEFAULTS[name]
            if is_ineffective and getattr(self, name) != default:
                raise ValueError(
                    f"train.{name} {getattr(self, name)!r}, expected {default!r} {reason}, or remove it"
                )

    def check_lr_schedule(self) -> None:
        """Raise ValueError for settings that the schedule does not have; steps may not be known yet."""
        try:
            LRSchedule(
                name=self.lr_schedule,
                lr=self.lr,
                steps=self.steps or max(self.warmup_steps, 1),
                warmup_steps=self.warmup_steps,
                min_lr_ratio=self.min_lr_ratio,
            )
        except ValueError as error:
            raise ValueError(f"train.{error}") from None

    def __post_init__(self) -> None:
        if self.steps is None and self.epochs is None:
            raise ValueError(
                "train.steps is missing; set it, or train.epochs, the number of passes over the data"
            )
        if self.steps is not None and self.epochs is not None:
            raise ValueError(
                f"train.steps {self.steps} and train.epochs {self.epochs}, "
                "expected only one of them"
            )
        for name, choices in TRAIN_CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"train.{name} {getattr(self, name)!r}, expected one of {', '.join(choices)}"
                )
        for name, bounds in NUMBER_BOUNDS.items():
            if getattr(self, name) is not None:
                check_number(f"train.{name}", getattr(self, name), **bounds)
        if len(self.betas) != 2:
            raise ValueError(f"train.betas {self.betas!r}, expected two numbers")
        for index, beta in enumerate(self.betas):
            check_number(f"train.betas[{index}]", beta, **FRACTION)
        self.check_ineffective_settings()
        for name, limit_name in (
            ("warmup_steps", "steps"),
            ("average_last", "steps"),
            ("average_last", "keep_checkpoints"),
        ):
            value = getattr(self, name)
            limit = getattr(self, limit_name)
            if limit is not None and value > limit:
                raise ValueError(
                    f"train.{name} {value}, expected at most train.{limit_name}, {limit}"
                )
        self.check_lr_schedule()
        if self.average_last and self.ema_decay:
            raise ValueError(
                f"train.average_last {self.average_last} and train.ema_decay {self.ema_decay}, "
                "expected only one of them"
            )
        if self.steps is None:  # checked again when the steps of the epochs are known
            return
        max_interval = (self.steps - 1) // max(self.average_last - 1, 1)
        if self.average_last > 1 and not 0 < self.save_interval <= max_interval:
            raise ValueError(
                f"train.save_every {self.save_interval}, expected from 1 to {max_interval}: "
                f"train.average_last needs {self.average_last} checkpoints in "
                f"train.steps {self.steps}"
            )


TRAIN_DEFAULTS: dict[str, Any] = {item.name: item.default for item in fields(TrainConfig)}
