"""What a run shows: the figures on a terminal and in lines, and that showing them changes no number."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable

import pytest
import torch
from rich.console import Console

import qkv
from qkv.formatting import lasting
from qkv.train.config import Learn
from qkv.train.loop.trainer import Report
from qkv.train.report.console import BLANK, Course, dots, figure, line, panel, shown
from qkv.train.report.history import History
from qkv.train.report.throughput import peak, work


def told(step: int, loss: float, **more: float) -> Report:
    return Report(
        step=step, kind="train", values={"loss": loss, "norm": 0.5, **more}, seconds=1.0,
        tokens_per_second=20_000, rate=3e-4,
    )  # fmt: skip


def measured(step: int, loss: float, **more: float) -> Report:
    return Report(step=step, kind="measure", values={"loss": loss, **more}, seconds=1.0)


def course(clock: Callable[[], float] = lambda: 0.0, *, steps: int = 2000, **changes: object) -> Course:
    learn = Learn(steps=steps, **changes)  # type: ignore[arg-type]
    return Course(title="runs/x", learn=learn, work=6e6, measure_peak=lambda: 4e11, clock=clock)


def screen(width: int = 100, height: int = 30, *, terminal: bool = True) -> Console:
    return Console(width=width, height=height, file=io.StringIO(), force_terminal=terminal, color_system=None)


def drawn(made: Course, console: Console) -> list[str]:
    console.print(panel(made, console))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_the_panel() -> None:
    seconds = [0.0]
    made = course(lambda: seconds[0], watch="accuracy", highest=True)
    for step in range(10, 1010, 10):
        made.add(told(step, 4 * math.exp(-step / 200) + 1))
    made.add(measured(500, 1.9, accuracy=0.6))
    made.add(measured(1000, 1.4, accuracy=0.5))
    seconds[0] = 60.0
    lines = drawn(made, screen())
    assert {len(each) for each in lines} == {100}
    text = "\n".join(lines)
    for words in (
        "runs/x", "loss 1.027", "rate 3.00e-04", "gradient 0.5000", "20.0K tokens/s", "30% of peak",
        "loss 1.400   accuracy 0.5000", "accuracy 0.6000 at step 500", "1,000 of 2,000, 1:00 left", "4.805",
    ):  # fmt: skip
        assert words in text
    assert sum(bool(re.search("[\u2801-\u28ff]", each)) for each in lines) >= 8  # the curve goes down


@pytest.mark.parametrize(("width", "height"), [(40, 12), (60, 24), (300, 80)])
def test_the_panel_fits(width: int, height: int) -> None:
    made = course()
    for step in (10, 20, 30):
        made.add(told(step, 3.0 - step / 100))
    lines = drawn(made, screen(width, height))
    assert max(map(len, lines)) <= width
    assert len(lines) <= max(height, 14)


def test_the_panel_before_the_first_report_and_of_odd_numbers() -> None:
    assert any("the first report is on its way" in each for each in drawn(course(), screen()))
    made = course()
    for step, loss in ((10, math.nan), (20, 2.0), (30, math.inf)):
        made.add(told(step, loss))
    assert any("loss inf" in each for each in drawn(made, screen()))
    made.add(told(40, 2.0))  # all the same
    drawn(made, screen())


def test_without_a_peak_none_is_shown() -> None:
    made = Course(title="x", learn=Learn(steps=9), work=1.0, measure_peak=lambda: 0.0)
    made.add(told(2, 1.0))
    assert "peak" not in "\n".join(drawn(made, screen()))
    assert "peak" not in line(made, told(2, 1.0))


def test_dots() -> None:
    import numpy as np

    cells = dots([(0, 1.0), (9, 0.0)], np.linspace(0, 9, 10), 0.0, 1.0, 2)  # down from left to right
    assert cells.shape == (2, 5)
    assert cells[0, 0] > 0
    assert cells[1, 4] > 0
    assert cells[1, 0] == cells[0, 4] == 0
    assert not dots([], np.linspace(0, 9, 10), 0.0, 1.0, 2).any()
    assert chr(BLANK + 0xFF) == "⣿"


def test_lines(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = [0.0]
    made = course(lambda: seconds[0])
    with shown(made, screen(terminal=False)) as tell:
        for step, loss in ((100, 12.5), (1000, 2.25), (1100, 2.0)):
            seconds[0] += 30
            tell(told(step, loss))
        tell(measured(1100, 2.5, accuracy=0.25))
        tell(measured(1200, 2.75))
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[0] == (
        "step   100/2,000   loss     12.50   norm    0.5000   rate 3.00e-04   20.0K tokens/s    30% of peak"
        "      9:30 left"
    )
    assert len({len(each) for each in lines[:3]}) == 1
    assert lines[3] == "step 1,100/2,000   measured   loss 2.500   accuracy 0.2500   best"
    assert lines[4] == "step 1,200/2,000   measured   loss 2.750"


def test_parts_of_a_loss_are_named() -> None:
    assert "loss     3.000   start     1.000   end     2.000" in line(
        course(), told(5, 3.0, start=1.0, end=2.0)
    )


def test_a_run_that_goes_on_shows_what_was_and_counts_its_own_time() -> None:
    seconds = [0.0]
    history = History([told(1000, 2.0)])
    made = Course(
        title="x", learn=Learn(steps=2000), work=1.0, measure_peak=lambda: 1.0, history=history, step=1000,
        clock=lambda: seconds[0],
    )  # fmt: skip
    assert made.left is None
    seconds[0] = 10.0
    made.add(told(1100, 1.9))
    assert made.left == pytest.approx(90)


def test_columns_stand_below_each_other_however_small_a_loss_is() -> None:
    values = (12.5, 0.6928, 0.003503, 0.0001743, 1.234567e-05, 123456.0)
    lines = [line(course(), told(5, loss)) for loss in values]
    assert len({each.index("norm") for each in lines}) == 1
    assert len({each.index("rate") for each in lines}) == 1


@pytest.mark.parametrize(
    ("value", "said"),
    [(2.0, "2.000"), (0.83125, "0.8313"), (12.345, "12.35"), (1234.5, "1234"), (0.0, "0.000"),
     (123456.0, "1.235e+05"), (1e-5, "1.000e-05"), (math.nan, "nan"), (-math.inf, "-inf")],
)  # fmt: skip
def test_figure(value: float, said: str) -> None:
    assert figure(value) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0:00"),
        (59.6, "1:00"),
        (3599, "59:59"),
        (3642, "1:00:42"),
        (86_400 * 3 + 4 * 3600 + 600, "3d 04:10"),
    ],
)
def test_lasting(seconds: float, said: str) -> None:
    assert lasting(seconds) == said


# --- the machine ---


def test_the_peak_leaves_the_numbers_of_a_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.train.report.throughput.SECONDS", 0.02)
    torch.manual_seed(7)
    before = torch.get_rng_state()
    assert 1e8 < peak(torch.device("cpu"), torch.float32) < 1e15
    assert torch.equal(torch.get_rng_state(), before)


def test_work() -> None:
    sizes = dict(vocab=50, width=16, depth=2, heads=2, feed=24, length=12)
    net = qkv.build("gpt2", None, **sizes).net  # type: ignore[arg-type]

    def passed(net: torch.nn.Module, *looked_up: str) -> int:
        """Weights without the tables of these names."""
        held = dict(net.named_parameters())
        assert {*looked_up} <= held.keys()
        return sum(p.numel() for name, p in held.items() if name not in looked_up)

    assert work(net) == 6 * passed(
        net, "decoder.embed.positions.weight"
    )  # the table of words is its head too
    albert = qkv.build("albert", None, **{**sizes, "depth": 6}).net  # type: ignore[arg-type]
    layer = sum(p.numel() for p in albert.get_submodule("encoder.layers.0").parameters())
    tables = [f"encoder.embed.{name}.weight" for name in ("tokens", "positions", "types")]
    assert work(albert) == 6 * (passed(albert, *tables) + 5 * layer)
    t5 = qkv.build("t5", None, vocab=50, width=16, depth=2, heads=2, head_dim=8, feed=24).net
    biases = [f"{side}.bias.table.weight" for side in ("encoder", "decoder")]
    assert work(t5) == 3 * passed(t5, *biases)
    small = dict(vocab=50, width=16, depth=2, decoder_depth=2, heads=2, head_dim=8, feed=24)
    switch = qkv.build("switch", None, **small, sparse=1, decoder_sparse=1, experts=4).net  # type: ignore[arg-type]
    expert, layers = 2 * 16 * 24, 2
    assert work(switch) == 3 * (passed(switch, *biases) - layers * 3 * expert)
