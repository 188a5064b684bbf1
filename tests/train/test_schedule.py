"""The rate at each step: the formulas, and transformers' and torch's where they have the same."""

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR

from qkv.train.loop.schedule import Schedule

STEPS, WARMUP = 50, 8
BASE: dict[str, Any] = dict(steps=STEPS, warmup=WARMUP)


def theirs(maker: str, **more: Any) -> Callable[[int], float]:
    """The factor of one of transformers' schedules."""
    optimization = pytest.importorskip("transformers.optimization", reason="transformers is the oracle here")
    optimiser = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    factor: Callable[[int], float] = getattr(optimization, maker)(
        optimiser, num_warmup_steps=WARMUP, **more
    ).lr_lambdas[0]
    return factor


@pytest.mark.parametrize(
    ("ours", "maker", "more"),
    [
        (dict(kind="constant"), "get_constant_schedule_with_warmup", {}),
        (dict(kind="linear"), "get_linear_schedule_with_warmup", dict(num_training_steps=STEPS)),
        (dict(kind="cosine"), "get_cosine_schedule_with_warmup", dict(num_training_steps=STEPS)),
        (
            dict(kind="cosine", floor=0.1),
            "get_cosine_with_min_lr_schedule_with_warmup",
            dict(num_training_steps=STEPS, min_lr_rate=0.1),
        ),
        (
            dict(kind="linear", floor=0.1),
            "get_polynomial_decay_schedule_with_warmup",
            dict(num_training_steps=STEPS, lr_end=0.1),
        ),
        (dict(kind="noam"), "get_inverse_sqrt_schedule", {}),
    ],
    ids=lambda x: x if isinstance(x, str) else None,
)
def test_as_transformers_has_it(ours: dict[str, Any], maker: str, more: dict[str, Any]) -> None:
    schedule, factor = Schedule(**ours, **BASE), theirs(maker, **more)
    for step in range(STEPS + 1):
        assert schedule(step) == pytest.approx(factor(step), abs=1e-12)


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_as_torch_has_it(kind: str) -> None:
    optimiser = torch.optim.SGD([torch.zeros(1)], lr=0.3)
    made: dict[str, Any] = {
        "linear": LinearLR(optimiser, 1.0, 0.2, STEPS),
        "cosine": CosineAnnealingLR(optimiser, STEPS, eta_min=0.2 * 0.3),
    }
    schedule = Schedule(kind=kind, rate=0.3, steps=STEPS, floor=0.2)
    for step in range(STEPS + 1):
        assert schedule(step) == pytest.approx(made[kind].get_last_lr()[0], rel=1e-9)
        optimiser.step()
        made[kind].step()


@pytest.mark.parametrize("step", [1, 2, 399, 400, 401, 5000])
def test_noam_is_the_formula_of_the_paper(step: int) -> None:
    width, warmup = 512, 400
    paper = width**-0.5 * min(step**-0.5, step * warmup**-1.5)
    assert Schedule(kind="noam", warmup=warmup, width=width)(step) == pytest.approx(paper, rel=1e-12)
    assert Schedule(kind="noam", rate=2.0, warmup=warmup, width=width)(step) == pytest.approx(2 * paper)


def test_noam_with_a_peak() -> None:
    schedule = Schedule(kind="noam", rate=0.02, warmup=10)
    assert [schedule(step) for step in (5, 10, 40)] == pytest.approx([0.01, 0.02, 0.01])


@pytest.mark.parametrize("step", [1, 9_999, 10_000, 40_000])
def test_t5_holds_and_then_falls(step: int) -> None:
    schedule = Schedule(kind="noam", rate=0.01, hold=10_000)
    assert schedule(step) == pytest.approx(1 / math.sqrt(max(step, 10_000)))


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine", "noam"])
def test_rises_in_a_line_and_peaks_at_the_warmup(kind: str) -> None:
    schedule = Schedule(kind=kind, rate=0.5, **BASE)
    assert [schedule(step) for step in range(WARMUP + 1)] == pytest.approx(
        [0.5 * step / WARMUP for step in range(WARMUP + 1)]
    )
    assert max(schedule(step) for step in range(2 * STEPS)) == schedule(WARMUP)


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_stays_at_the_floor_after_the_end(kind: str) -> None:
    schedule = Schedule(kind=kind, rate=2.0, floor=0.25, **BASE)
    assert [schedule(step) for step in (STEPS, STEPS + 1, 10 * STEPS)] == pytest.approx([0.5] * 3)


def test_warmup_may_last_to_the_end() -> None:
    schedule = Schedule(kind="linear", steps=4, warmup=4)
    assert [schedule(step) for step in (1, 2, 3, 4)] == [0.25, 0.5, 0.75, 1.0]


def test_equal_settings_are_equal() -> None:
    assert Schedule(kind="cosine", **BASE) == Schedule(kind="cosine", **BASE)
    assert len({Schedule(kind="cosine", **BASE), Schedule(kind="cosine", **BASE)}) == 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (dict(kind="step"), "schedule 'step': expected one of constant, linear, cosine, noam"),
        (dict(rate=-0.1), "rate is -0.1: expected a number, at least 0"),
        (dict(rate=math.nan), "rate is nan: expected a number, at least 0"),
        (dict(rate=math.inf), "rate is inf: expected a number, at least 0"),
        (dict(rate="1"), "rate is '1': expected a number, at least 0"),
        (dict(warmup=51), "warmup is 51: expected a whole number, at least 0 and at most 50"),
        (dict(warmup=-1), "warmup is -1: expected a whole number, at least 0 and at most 50"),
        (dict(warmup=1.5), "warmup is 1.5: expected a whole number, at least 0 and at most 50"),
        (dict(steps=0), "steps is 0: expected a whole number, at least 1"),
        (dict(steps=True), "steps is True: expected a whole number, at least 1"),
        (dict(steps=None), "steps is None: schedule 'linear' needs the step where it ends"),
        (dict(floor=1.1), "floor is 1.1: expected a number, at least 0 and at most 1"),
        (dict(hold=3), "hold is 3: schedule 'linear' has none"),
        (dict(kind="constant", floor=0.1), "floor is 0.1: schedule 'constant' has none"),
        (dict(kind="noam"), "warmup is 0: schedule 'noam' needs a warm-up, or a step to hold until"),
        (dict(kind="noam", width=0, warmup=1), "width is 0: expected a whole number, at least 1"),
    ],
)
def test_a_wrong_value_is_named(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        Schedule(**{"steps": STEPS, **wrong})
