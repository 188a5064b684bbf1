"""The picture of a run, and the history that it is drawn from."""

from __future__ import annotations

import json
import math
import threading
import xml.etree.ElementTree as ET
from dataclasses import asdict
from pathlib import Path

import pytest

from qkv.train.loop.trainer import Report
from qkv.train.report.history import METRICS, History, points, thinned
from qkv.train.report.plot import MOST, draw, drawer, picture, ticks
from qkv.train.report.tensorboard import board
from tests.train.test_console import measured, told


def write(folder: Path, *reports: Report) -> None:
    with (folder / METRICS).open("a") as file:
        file.writelines(json.dumps(asdict(report)) + "\n" for report in reports)


def lines(svg: str) -> dict[str, list[tuple[float, float]]]:
    """The points of each line on the page."""
    found = ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}polyline")
    split = {each.attrib["class"]: each.attrib["points"].split() for each in found}
    return {
        name: [(float(p.split(",")[0]), float(p.split(",")[1])) for p in held] for name, held in split.items()
    }


def texts(svg: str) -> list[str]:
    return [each.text or "" for each in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


# --- history ---


def test_history_of_a_file(tmp_path: Path) -> None:
    assert History.read(tmp_path) == History()
    write(tmp_path, told(10, 3.0), measured(10, 3.5), told(20, 2.0), told(30, math.nan))
    with (tmp_path / METRICS).open("a") as file:
        file.write('{"step": 40, "kind": "tr')  # the machine stopped here
    found = History.read(tmp_path)
    assert [each.step for each in found.train] == [10, 20, 30]
    assert found.measures == [measured(10, 3.5)]
    assert points(found.train) == [(10, 3.0), (20, 2.0)]


def test_steps_that_are_told_anew_count_once() -> None:
    history = History()
    for step in (10, 20, 30, 40):
        history.add(told(step, 4.0))
    history.add(measured(40, 4.0))
    for step in (30, 40):  # it went back to a checkpoint at 25
        history.add(told(step, 3.0))
    history.add(measured(40, 3.0))
    assert points(history.train) == [(10, 4.0), (20, 4.0), (30, 3.0), (40, 3.0)]
    assert points(history.measures) == [(40, 3.0)]


def test_best() -> None:
    history = History()
    assert history.best("loss", highest=False) is None
    for step, loss, accuracy in ((1, 3.0, 0.1), (2, 1.0, 0.5), (3, 2.0, 0.7)):
        history.add(measured(step, loss, accuracy=accuracy))
    assert history.best("loss", highest=False) == history.measures[1]
    assert history.best("accuracy", highest=True) == history.measures[2]
    assert history.best("f1", highest=True) is None


def test_thinned() -> None:
    line = [(step, float(step)) for step in range(1, 1001)]
    few = thinned(line, 10)
    assert len(few) == 10
    assert few[0] == (50, 50.5)
    assert thinned(line, 1000) == line


# --- the picture ---


def test_a_picture() -> None:
    history = History()
    for step in range(100, 2100, 100):
        history.add(told(step, 5 - step / 500))
    for step, loss in ((1000, 3.5), (2000, 4.0)):
        history.add(measured(step, loss))
    svg = picture("mine & <yours>", history)
    said = texts(svg)
    assert {"mine & <yours>", "best 3.5 at step 1,000", "step", "loss", "training", "validation"} <= set(said)
    assert {"0", "500", "1,000", "1,500", "2,000", "1", "5"} <= set(said)
    found = lines(svg)
    assert len(found["train"]) == 20
    assert found["valid"][0][0] == found["train"][9][0]  # step 1000 of both
    heights = [y for _, y in found["train"]]
    assert heights == sorted(heights)  # a loss that falls goes down the page
    assert "prefers-color-scheme: dark" in svg


@pytest.mark.parametrize(
    "reports",
    [
        [],
        [told(1, 2.0)],
        [measured(5, 2.0)],
        [told(10, 2.0), told(20, 2.0)],
        [told(10, math.nan), told(20, math.inf)],
        [told(10, 1e-9), told(20, 3e8)],
        [told(step, 1.0 + step) for step in range(5 * MOST)],
        [told(2_000_000, 1.0), measured(3_000_000, -2.0)],
    ],
)
def test_odd_histories_have_a_picture(reports: list[Report]) -> None:
    history = History()
    for report in reports:
        history.add(report)
    svg = picture("odd", history)
    assert "nan" not in svg
    assert all(0 <= x <= 760 and 0 <= y <= 420 for line in lines(svg).values() for x, y in line)
    assert all(len(line) <= MOST for line in lines(svg).values())


@pytest.mark.parametrize(
    ("low", "high", "about", "found"),
    [
        (0, 10, 5, [0, 2, 4, 6, 8, 10]),
        (1.4, 4.2, 5, [1, 2, 3, 4, 5]),
        (0.011, 0.019, 4, [0.01, 0.012, 0.014, 0.016, 0.018, 0.02]),
    ],
)
def test_ticks(low: float, high: float, about: int, found: list[float]) -> None:
    assert ticks(low, high, about) == pytest.approx(found)


def test_a_run_that_goes_on_draws_the_whole_curve(tmp_path: Path) -> None:
    write(tmp_path, told(10, 4.0), told(20, 3.0), measured(20, 3.5))
    tell = drawer(tmp_path)
    tell(told(30, 2.0))
    assert not (tmp_path / "loss.svg").exists()
    tell(measured(30, 2.5))
    found = lines((tmp_path / "loss.svg").read_text())
    assert len(found["train"]) == 3
    assert len(found["valid"]) == 2
    assert {each.name for each in tmp_path.iterdir()} == {METRICS, "loss.svg"}


def test_who_looks_while_it_is_drawn_sees_a_whole_picture(tmp_path: Path) -> None:
    history = History([told(step, 1.0) for step in range(500)])
    draw(tmp_path, history)
    seen, stop = [], threading.Event()

    def look() -> None:
        while not stop.is_set():
            seen.append((tmp_path / "loss.svg").read_text())

    thread = threading.Thread(target=look)
    thread.start()
    for _ in range(50):
        draw(tmp_path, history)
    stop.set()
    thread.join()
    assert all(text.endswith("</svg>\n") for text in seen)


# --- TensorBoard ---


def test_no_board_without_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.train.report.tensorboard.find_spec", lambda name: None)
    board(tmp_path)(told(1, 2.0))
    assert not any(tmp_path.iterdir())


def test_board(tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    tell = board(tmp_path)
    tell(told(10, 2.0))
    tell(measured(10, 2.5))
    found = events.EventAccumulator(str(tmp_path / "board")).Reload()
    assert [(each.step, each.value) for each in found.Scalars("train/loss")] == [(10, 2.0)]
    assert [(each.step, each.value) for each in found.Scalars("measure/loss")] == [(10, 2.5)]
    assert {"train/rate", "train/norm", "train/tokens_per_second"} <= set(found.Tags()["scalars"])
