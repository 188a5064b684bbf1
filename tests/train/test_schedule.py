"""Learning rate schedules: the formulas, and those of transformers and torch."""

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR

from qkv.train.config import TrainConfig
from qkv.train.loop.schedule import LRSchedule

STEPS, WARMUP = 50, 8
BASE: dict[str, Any] = dict(steps=STEPS, warmup_steps=WARMUP)


def get_transformers_schedule(function_name: str, **kwargs: Any) -> Callable[[int], float]:
    """Return the learning rate factor of one of transformers' schedules."""
    optimization = pytest.importorskip(
        "transformers.optimization", reason="transformers is the oracle here"
    )
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    factor: Callable[[int], float] = getattr(optimization, function_name)(
        optimizer, num_warmup_steps=WARMUP, **kwargs
    ).lr_lambdas[0]
    return factor


@pytest.mark.parametrize(
    ("settings", "function_name", "kwargs"),
    [
        (dict(name="constant"), "get_constant_schedule_with_warmup", {}),
        (dict(name="linear"), "get_linear_schedule_with_warmup", dict(num_training_steps=STEPS)),
        (dict(name="cosine"), "get_cosine_schedule_with_warmup", dict(num_training_steps=STEPS)),
        (
            dict(name="cosine", min_lr_ratio=0.1),
            "get_cosine_with_min_lr_schedule_with_warmup",
            dict(num_training_steps=STEPS, min_lr_rate=0.1),
        ),
        (
            dict(name="linear", min_lr_ratio=0.1),
            "get_polynomial_decay_schedule_with_warmup",
            dict(num_training_steps=STEPS, lr_end=0.1),
        ),
        (dict(name="noam"), "get_inverse_sqrt_schedule", {}),
    ],
    ids=lambda x: x if isinstance(x, str) else None,
)
def test_equals_transformers(
    settings: dict[str, Any], function_name: str, kwargs: dict[str, Any]
) -> None:
    schedule = LRSchedule(**settings, **BASE)
    expected = get_transformers_schedule(function_name, **kwargs)
    for step in range(STEPS + 1):
        assert schedule(step) == pytest.approx(expected(step), abs=1e-12)


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_equals_torch(name: str) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.3)
    schedulers: dict[str, Any] = {
        "linear": LinearLR(optimizer, 1.0, 0.2, STEPS),
        "cosine": CosineAnnealingLR(optimizer, STEPS, eta_min=0.2 * 0.3),
    }
    schedule = LRSchedule(name=name, lr=0.3, steps=STEPS, min_lr_ratio=0.2)
    for step in range(STEPS + 1):
        assert schedule(step) == pytest.approx(schedulers[name].get_last_lr()[0], rel=1e-9)
        optimizer.step()
        schedulers[name].step()


@pytest.mark.parametrize("step", [1, 2, 399, 400, 401, 5000])
def test_noam_equals_the_formula_of_the_paper(step: int) -> None:
    width, warmup_steps = 512, 400
    expected = width**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)
    schedule = LRSchedule(name="noam", lr=(width * warmup_steps) ** -0.5, warmup_steps=warmup_steps)
    assert schedule(step) == pytest.approx(expected, rel=1e-12)


def test_noam_reaches_its_peak_after_the_warmup() -> None:
    schedule = LRSchedule(name="noam", lr=0.02, warmup_steps=10)
    assert [schedule(step) for step in (5, 10, 40)] == pytest.approx([0.01, 0.02, 0.01])


@pytest.mark.parametrize("name", ["constant", "linear", "cosine", "noam"])
def test_warmup_is_linear_up_to_the_peak(name: str) -> None:
    schedule = LRSchedule(name=name, lr=0.5, **BASE)
    assert [schedule(step) for step in range(WARMUP + 1)] == pytest.approx(
        [0.5 * step / WARMUP for step in range(WARMUP + 1)]
    )
    assert max(schedule(step) for step in range(2 * STEPS)) == schedule(WARMUP)


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_stays_at_the_minimum_after_the_last_step(name: str) -> None:
    schedule = LRSchedule(name=name, lr=2.0, min_lr_ratio=0.25, **BASE)
    assert [schedule(step) for step in (STEPS, STEPS + 1, 10 * STEPS)] == pytest.approx([0.5] * 3)


def test_warmup_may_last_to_the_end() -> None:
    schedule = LRSchedule(name="linear", steps=4, warmup_steps=4)
    assert [schedule(step) for step in (1, 2, 3, 4)] == [0.25, 0.5, 0.75, 1.0]


def test_equal_settings_are_equal() -> None:
    assert LRSchedule(name="cosine", **BASE) == LRSchedule(name="cosine", **BASE)
    assert len({LRSchedule(name="cosine", **BASE), LRSchedule(name="cosine", **BASE)}) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(name="step"), "lr_schedule 'step': expected one of constant, linear, cosine, noam"),
        (dict(lr=-0.1), "lr is -0.1: expected a number, at least 0"),
        (dict(lr=math.nan), "lr is nan: expected a number, at least 0"),
        (dict(lr=math.inf), "lr is inf: expected a number, at least 0"),
        (dict(lr="1"), "lr is '1': expected a number, at least 0"),
        (
            dict(warmup_steps=51),
            "warmup_steps is 51: expected a whole number, at least 0 and at most 50",
        ),
        (
            dict(warmup_steps=-1),
            "warmup_steps is -1: expected a whole number, at least 0 and at most 50",
        ),
        (
            dict(warmup_steps=1.5),
            "warmup_steps is 1.5: expected a whole number, at least 0 and at most 50",
        ),
        (dict(steps=0), "steps is 0: expected a whole number, at least 1"),
        (dict(steps=True), "steps is True: expected a whole number, at least 1"),
        (dict(steps=None), "steps is None: lr_schedule 'linear' needs the number of steps"),
        (
            dict(min_lr_ratio=1.1),
            "min_lr_ratio is 1.1: expected a number, at least 0 and at most 1",
        ),
        (
            dict(name="constant", min_lr_ratio=0.1),
            "min_lr_ratio is 0.1: lr_schedule 'constant' has no minimum",
        ),
        (dict(name="noam"), "warmup_steps is 0: lr_schedule 'noam' needs a warmup"),
    ],
)
def test_error_names_the_wrong_value(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        LRSchedule(**{"name": "linear", "steps": STEPS, **settings})


def test_the_bounds_are_those_of_the_settings() -> None:
    assert TrainConfig(steps=1, min_lr_ratio=1.0).min_lr_ratio == 1.0
    with pytest.raises(
        ValueError, match=r"min_lr_ratio is 1.1: expected a number, at least 0 and at most 1"
    ):
        TrainConfig(steps=1, min_lr_ratio=1.1)
