"""The loss plot of a run, and the history that it is drawn from."""

from __future__ import annotations

import math
import threading
import xml.etree.ElementTree as ET
from functools import partial
from pathlib import Path

import pytest

from qkv.formatting import compute_ticks
from qkv.train.loop.trainer import Report
from qkv.train.report.history import METRICS_FILE, MetricsHistory, downsample_points, extract_points
from qkv.train.report.plot import (
    MAX_LINE_POINTS,
    make_plot_callback,
    render_loss_svg,
    write_loss_plot,
)
from qkv.train.report.tensorboard import make_tensorboard_callback
from qkv.train.run import make_metrics_callback
from tests.train.test_console import make_eval_report, make_train_report


def append_reports(folder: Path, *reports: Report) -> None:
    write_report = make_metrics_callback(folder)
    for report in reports:
        write_report(report)


def read_lines(svg: str) -> dict[str, list[tuple[float, float]]]:
    """Return the points of each line on the page."""
    result = {}
    for polyline in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}polyline"):
        pairs = [pair.split(",") for pair in polyline.attrib["points"].split()]
        result[polyline.attrib["class"]] = [(float(x), float(y)) for x, y in pairs]
    return result


def read_texts(svg: str) -> list[str]:
    return [
        element.text or ""
        for element in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    ]


# --- history ---


def test_history_is_read_from_a_file(tmp_path: Path) -> None:
    assert MetricsHistory.read(tmp_path) == MetricsHistory()
    append_reports(
        tmp_path,
        make_train_report(10, 3.0),
        make_eval_report(10, 3.5),
        make_train_report(20, 2.0),
        make_train_report(30, math.nan),
    )
    with (tmp_path / METRICS_FILE).open("a") as file:
        file.write('{"step": 40, "phase": "tr')  # the machine was stopped here
    history = MetricsHistory.read(tmp_path)
    assert [report.step for report in history.train] == [10, 20, 30]
    assert history.validation == [make_eval_report(10, 3.5)]
    assert extract_points(history.train) == [(10, 3.0), (20, 2.0)]


def test_reports_of_repeated_steps_are_replaced() -> None:
    history = MetricsHistory()
    for step in (10, 20, 30, 40):
        history.add(make_train_report(step, 4.0))
    history.add(make_eval_report(40, 4.0))
    for step in (30, 40):  # resumed from a checkpoint at step 25
        history.add(make_train_report(step, 3.0))
    history.add(make_eval_report(40, 3.0))
    assert extract_points(history.train) == [(10, 4.0), (20, 4.0), (30, 3.0), (40, 3.0)]
    assert extract_points(history.validation) == [(40, 3.0)]


def test_find_best() -> None:
    history = MetricsHistory()
    assert history.find_best("loss", higher_is_better=False) is None
    for step, loss, accuracy in ((1, 3.0, 0.1), (2, 1.0, 0.5), (3, 2.0, 0.7)):
        history.add(make_eval_report(step, loss, accuracy=accuracy))
    assert history.find_best("loss", higher_is_better=False) == history.validation[1]
    assert history.find_best("accuracy", higher_is_better=True) == history.validation[2]
    assert history.find_best("f1", higher_is_better=True) is None


def test_downsample_points() -> None:
    points = [(step, float(step)) for step in range(1, 1001)]
    downsampled = downsample_points(points, 10)
    assert len(downsampled) == 10
    assert downsampled[0] == (50, 50.5)
    assert downsample_points(points, 1000) == points


# --- plot ---


def test_plot_has_lines_labels_and_ticks() -> None:
    history = MetricsHistory()
    for step in range(100, 2100, 100):
        history.add(make_train_report(step, 5 - step / 500))
    for step, loss in ((1000, 3.5), (2000, 4.0)):
        history.add(make_eval_report(step, loss))
    svg = render_loss_svg("mine & <yours>", history)
    labels = read_texts(svg)
    assert {
        "mine & <yours>",
        "best 3.5 at step 1,000",
        "step",
        "loss",
        "training",
        "validation",
    } <= set(labels)
    assert {"0", "500", "1,000", "1,500", "2,000", "1", "5"} <= set(labels)
    plotted = read_lines(svg)
    assert len(plotted["train"]) == 20
    assert plotted["validation"][0][0] == plotted["train"][9][0]  # step 1000 of both lines
    heights = [y for _, y in plotted["train"]]
    assert heights == sorted(heights)  # a falling loss goes down the page
    assert "prefers-color-scheme: dark" in svg


@pytest.mark.parametrize(
    "reports",
    [
        [],
        [make_train_report(1, 2.0)],
        [make_eval_report(5, 2.0)],
        [make_train_report(10, 2.0), make_train_report(20, 2.0)],
        [make_train_report(10, math.nan), make_train_report(20, math.inf)],
        [make_train_report(10, 1e-9), make_train_report(20, 3e8)],
        [make_train_report(step, 1.0 + step) for step in range(5 * MAX_LINE_POINTS)],
        [make_train_report(2_000_000, 1.0), make_eval_report(3_000_000, -2.0)],
    ],
)
def test_unusual_histories_can_be_plotted(reports: list[Report]) -> None:
    history = MetricsHistory()
    for report in reports:
        history.add(report)
    svg = render_loss_svg("odd", history)
    assert "nan" not in svg
    assert all(
        0 <= x <= 760 and 0 <= y <= 420 for line in read_lines(svg).values() for x, y in line
    )
    assert all(len(line) <= MAX_LINE_POINTS for line in read_lines(svg).values())


@pytest.mark.parametrize(
    ("low", "high", "count", "expected"),
    [
        (0, 10, 5, [0, 2, 4, 6, 8, 10]),
        (1.4, 4.2, 5, [1, 2, 3, 4, 5]),
        (0.011, 0.019, 4, [0.01, 0.012, 0.014, 0.016, 0.018, 0.02]),
    ],
)
def test_compute_ticks(low: float, high: float, count: int, expected: list[float]) -> None:
    assert compute_ticks(low, high, count) == pytest.approx(expected)


def test_resumed_run_plots_its_full_history(tmp_path: Path) -> None:
    append_reports(
        tmp_path, make_train_report(10, 4.0), make_train_report(20, 3.0), make_eval_report(20, 3.5)
    )
    callback = make_plot_callback(tmp_path)
    callback(make_train_report(30, 2.0))
    assert not (tmp_path / "loss.svg").exists()
    callback(make_eval_report(30, 2.5))
    plotted = read_lines((tmp_path / "loss.svg").read_text())
    assert len(plotted["train"]) == 3
    assert len(plotted["validation"]) == 2
    assert {path.name for path in tmp_path.iterdir()} == {METRICS_FILE, "loss.svg"}


def test_plot_is_written_atomically(tmp_path: Path) -> None:
    history = MetricsHistory([make_train_report(step, 1.0) for step in range(500)])
    write_loss_plot(tmp_path, history)
    seen = []
    stop = threading.Event()

    def read_plot() -> None:
        while not stop.is_set():
            seen.append((tmp_path / "loss.svg").read_text())

    thread = threading.Thread(target=read_plot)
    thread.start()
    for _ in range(50):
        write_loss_plot(tmp_path, history)
    stop.set()
    thread.join()
    assert all(text.endswith("</svg>\n") for text in seen)


# --- TensorBoard ---


def test_nothing_is_written_without_tensorboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qkv.train.report.tensorboard.find_spec", lambda name: None)
    make_tensorboard_callback(tmp_path)(make_train_report(1, 2.0))
    assert not any(tmp_path.iterdir())


def test_tensorboard_events(tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    callback = make_tensorboard_callback(tmp_path)
    callback(make_train_report(10, 2.0))
    callback(make_eval_report(10, 2.5))
    accumulator = events.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in accumulator.Scalars("train/loss")] == [(10, 2.0)]
    assert [(event.step, event.value) for event in accumulator.Scalars("eval/loss")] == [(10, 2.5)]
    assert {"train/lr", "train/grad_norm", "train/tokens_per_second"} <= set(
        accumulator.Tags()["scalars"]
    )


def test_tensorboard_events_of_a_resumed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed process may have reported later steps than its checkpoint, and its last event is torn."""
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for number, reports in enumerate(([(10, 2.0), (20, 1.9), (30, 1.8)], [(20, 1.5), (30, 1.4)])):
        monkeypatch.setattr("qkv.train.report.tensorboard.time.time", partial(float, 1e9 + number))
        callback = make_tensorboard_callback(tmp_path)
        for step, loss in reports:
            callback(make_train_report(step, loss))
        if number == 0:
            (path,) = (tmp_path / "tensorboard").iterdir()
            path.write_bytes(path.read_bytes()[:-3])
    accumulator = events.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    losses = [(event.step, round(event.value, 3)) for event in accumulator.Scalars("train/loss")]
    assert losses == [(10, 2.0), (20, 1.5), (30, 1.4)]


def test_tensorboard_does_not_create_a_removed_folder(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    callback = make_tensorboard_callback(tmp_path / "run")
    with pytest.raises(FileNotFoundError):
        callback(make_train_report(1, 2.0))
    assert not any(tmp_path.iterdir())
