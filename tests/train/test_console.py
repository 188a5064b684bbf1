"""Training progress in a panel and in lines, and that measuring the peak leaves training unchanged."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from rich.console import Console

import qkv
from qkv.formatting import format_duration
from qkv.train.config import TrainConfig
from qkv.train.loop.trainer import Report, TrainerState
from qkv.train.report.console import (
    BRAILLE_BLANK,
    TrainingProgress,
    format_metric,
    format_report,
    render_braille,
    render_panel,
    show_progress,
)
from qkv.train.report.history import MetricsHistory
from qkv.train.report.throughput import (
    estimate_flops_per_token,
    measure_matmul_flops,
    measure_peak_flops,
)


def make_train_report(step: int, loss: float, **extra: float) -> Report:
    return Report(
        step=step, phase="train", metrics={"loss": loss, "grad_norm": 0.5, **extra}, seconds=1.0,
        tokens_per_second=20_000, lr=3e-4,
    )  # fmt: skip


def make_eval_report(step: int, loss: float, **extra: float) -> Report:
    return Report(step=step, phase="eval", metrics={"loss": loss, **extra}, seconds=1.0)


def make_progress(
    clock: Callable[[], float] = lambda: 0.0, *, steps: int = 2000, **changes: object
) -> TrainingProgress:
    config = TrainConfig(steps=steps, **changes)  # type: ignore[arg-type]
    return TrainingProgress(
        title="runs/x",
        train_config=config,
        flops_per_token=6e6,
        measure_peak_flops=lambda: 4e11,
        clock=clock,
    )


def make_console(width: int = 100, height: int = 30, *, terminal: bool = True) -> Console:
    return Console(
        width=width, height=height, file=io.StringIO(), force_terminal=terminal, color_system=None
    )


def draw_panel(progress: TrainingProgress, console: Console) -> list[str]:
    console.print(render_panel(progress, console))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_panel_shows_metrics_and_curve() -> None:
    seconds = [0.0]
    progress = make_progress(lambda: seconds[0], best_metric="accuracy", higher_is_better=True)
    for step in range(10, 1010, 10):
        progress.add(make_train_report(step, 4 * math.exp(-step / 200) + 1))
    progress.add(make_eval_report(500, 1.9, accuracy=0.6))
    progress.add(make_eval_report(1000, 1.4, accuracy=0.5))
    seconds[0] = 60.0
    lines = draw_panel(progress, make_console())
    assert {len(line) for line in lines} == {98}
    text = "\n".join(lines)
    for expected in (
        "runs/x", "loss 1.027", "lr 3.00e-04", "grad_norm 0.5000", "20.0K tokens/s", "30% MFU",
        "loss 1.400   accuracy 0.5000", "accuracy 0.6000 at step 500", "1,000 of 2,000, 1:00 left", "4.805",
    ):  # fmt: skip
        assert expected in text
    assert sum(bool(re.search("[\u2801-\u28ff]", line)) for line in lines) >= 8  # rows of the curve


@pytest.mark.parametrize(
    ("width", "height"), [(12, 20), (20, 8), (40, 12), (40, 20), (80, 24), (60, 24), (300, 80)]
)
def test_panel_fits_the_terminal(width: int, height: int) -> None:
    """Two columns stay free for the `^C` that a terminal prints: it must not begin another line."""
    progress = make_progress()
    for step in (10, 20, 30):
        progress.add(make_train_report(step, 3.0 - step / 100))
    progress.add(make_eval_report(30, 2.5, accuracy=0.25))
    lines = draw_panel(progress, make_console(width, height))
    assert max(map(len, lines)) <= width - len("^C")
    assert len(lines) <= height
    text = "\n".join(lines)
    assert "30" in text
    assert "loss 2.7" in text


def test_the_bar_moves_between_reports() -> None:
    seconds = [0.0]
    progress = make_progress(lambda: seconds[0])
    state = TrainerState()
    progress.state = state
    assert "0 of 2,000" in "\n".join(draw_panel(progress, make_console()))
    state.step = 7
    seconds[0] = 7.0
    text = "\n".join(draw_panel(progress, make_console()))
    assert "7 of 2,000, 33:13 left" in text
    assert "waiting for the first report" in text


def test_panel_without_reports_and_with_non_finite_losses() -> None:
    assert any(
        "waiting for the first report" in line
        for line in draw_panel(make_progress(), make_console())
    )
    progress = make_progress()
    for step, loss in ((10, math.nan), (20, 2.0), (30, math.inf)):
        progress.add(make_train_report(step, loss))
    assert any("loss inf" in line for line in draw_panel(progress, make_console()))
    progress.add(make_train_report(40, 2.0))  # a second value that equals the first
    draw_panel(progress, make_console())


def test_no_mfu_without_a_peak() -> None:
    progress = TrainingProgress(
        title="x",
        train_config=TrainConfig(steps=9),
        flops_per_token=1.0,
        measure_peak_flops=lambda: 0.0,
    )
    progress.add(make_train_report(2, 1.0))
    assert "MFU" not in "\n".join(draw_panel(progress, make_console()))
    assert "MFU" not in format_report(progress, make_train_report(2, 1.0))


def test_no_mfu_above_the_peak() -> None:
    progress = make_progress()
    progress.flops_per_token = 4e11 / 20_000 * 1.21
    assert "MFU" not in format_report(progress, make_train_report(2, 1.0))
    progress.flops_per_token = 4e11 / 20_000
    assert "100% MFU" in format_report(progress, make_train_report(2, 1.0))


def test_render_braille() -> None:
    import numpy as np

    cells = render_braille(
        [(0, 1.0), (9, 0.0)], np.linspace(0, 9, 10), 0.0, 1.0, 2
    )  # falls from left to right
    assert cells.shape == (2, 5)
    assert cells[0, 0] > 0
    assert cells[1, 4] > 0
    assert cells[1, 0] == cells[0, 4] == 0
    assert not render_braille([], np.linspace(0, 9, 10), 0.0, 1.0, 2).any()
    assert chr(BRAILLE_BLANK + 0xFF) == "⣿"


def test_lines_of_reports(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = [0.0]
    progress = make_progress(lambda: seconds[0])
    with show_progress(progress, make_console(terminal=False)) as report:
        for step, loss in ((100, 12.5), (1000, 2.25), (1100, 2.0)):
            seconds[0] += 30
            report(make_train_report(step, loss))
        report(make_eval_report(1100, 2.5, accuracy=0.25))
        report(make_eval_report(1200, 2.75))
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[0] == (
        "step   100/2,000   loss     12.50   grad_norm    0.5000   lr 3.00e-04   20.0K tokens/s    30% MFU"
        "      9:30 left"
    )
    assert len({len(line) for line in lines[:3]}) == 1
    assert lines[3] == "step 1,100/2,000   eval   loss 2.500   accuracy 0.2500   best"
    assert lines[4] == "step 1,200/2,000   eval   loss 2.750"


def test_line_names_the_parts_of_a_loss() -> None:
    assert "loss     3.000   start     1.000   end     2.000" in format_report(
        make_progress(), make_train_report(5, 3.0, start=1.0, end=2.0)
    )


def test_resumed_run_estimates_the_time_from_its_own_steps() -> None:
    seconds = [0.0]
    history = MetricsHistory([make_train_report(1000, 2.0)])
    progress = TrainingProgress(
        title="x",
        train_config=TrainConfig(steps=2000),
        flops_per_token=1.0,
        measure_peak_flops=lambda: 1.0,
        history=history,
        step=1000,
        clock=lambda: seconds[0],
    )
    assert progress.remaining_seconds is None
    seconds[0] = 10.0
    progress.add(make_train_report(1100, 1.9))
    assert progress.remaining_seconds == pytest.approx(90)


def test_columns_are_aligned() -> None:
    values = (12.5, 0.6928, 0.003503, 0.0001743, 1.234567e-05, 123456.0)
    lines = [format_report(make_progress(), make_train_report(5, loss)) for loss in values]
    assert len({line.index("grad_norm") for line in lines}) == 1
    assert len({line.index("lr ") for line in lines}) == 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [(2.0, "2.000"), (0.83125, "0.8313"), (12.345, "12.35"), (1234.5, "1234"), (0.0, "0.000"),
     (123456.0, "1.235e+05"), (1e-5, "1.000e-05"), (math.nan, "nan"), (-math.inf, "-inf")],
)  # fmt: skip
def test_format_metric(value: float, expected: str) -> None:
    assert format_metric(value) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0:00"),
        (59.6, "1:00"),
        (3599, "59:59"),
        (3642, "1:00:42"),
        (86_400 * 3 + 4 * 3600 + 600, "3d 04:10"),
    ],
)
def test_format_duration(seconds: float, expected: str) -> None:
    assert format_duration(seconds) == expected


# --- throughput ---


def test_measuring_the_peak_keeps_the_random_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.train.report.throughput.MEASURE_SECONDS", 0.02)
    torch.manual_seed(7)
    before = torch.get_rng_state()
    cpu = torch.device("cpu")
    assert 1e8 < measure_matmul_flops(cpu, torch.float32, size=256) < 1e15
    assert torch.get_rng_state().tolist() == before.tolist()
    assert measure_peak_flops(cpu, torch.float32) == 0


def test_flops_per_token() -> None:
    sizes = dict(vocab_size=50, width=16, depth=2, heads=2, ffn_width=24, max_positions=12)
    net = qkv.build("gpt2", None, **sizes).net  # type: ignore[arg-type]

    def count_weights(net: torch.nn.Module, *lookup_tables: str) -> int:
        """Count the weights, except for these tables."""
        parameters = dict(net.named_parameters())
        assert {*lookup_tables} <= parameters.keys()
        return sum(p.numel() for name, p in parameters.items() if name not in lookup_tables)

    assert estimate_flops_per_token(net) == 6 * count_weights(
        net, "decoder.embedding.positions.weight"
    )  # the token embedding is the LM head too
    albert = qkv.build("albert", None, **{**sizes, "depth": 6}).net  # type: ignore[arg-type]
    layer = sum(p.numel() for p in albert.get_submodule("encoder.layers.0").parameters())
    tables = [f"encoder.embedding.{name}.weight" for name in ("tokens", "positions", "token_types")]
    assert estimate_flops_per_token(albert) == 6 * (count_weights(albert, *tables) + 5 * layer)
    t5 = qkv.build(
        "t5", None, vocab_size=50, width=16, depth=2, heads=2, head_dim=8, ffn_width=24
    ).net
    biases = [f"{side}.position_bias.table.weight" for side in ("encoder", "decoder")]
    assert estimate_flops_per_token(t5) == 3 * count_weights(t5, *biases)
    switch_args: dict[str, Any] = dict(
        vocab_size=50, width=16, depth=2, decoder_depth=2, heads=2, head_dim=8, ffn_width=24
    )
    switch_args |= dict(num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, num_experts=4)
    switch = qkv.build("switch", **switch_args).net
    expert = 2 * 16 * 24
    layers = 2
    assert estimate_flops_per_token(switch) == 3 * (
        count_weights(switch, *biases) - layers * 3 * expert
    )
