"""Cost: peak memory, and the points of training and decoding."""

from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.experiments import find_experiment
from qkv.experiments.experiment import Cell, merge_settings, read_experiment
from qkv.experiments.measures import load_measure
from qkv.experiments.peak_memory import PeakMemory, read_status
from qkv.nn.selections import SELECTIONS
from tests.experiments.test_translation import build_context, list_cells

CPU = torch.device("cpu")
MEGABYTE = 2**20


@pytest.mark.skipif(read_status("VmHWM") is None, reason="no peak of the memory of a process here")
def test_the_peak_includes_memory_that_was_freed() -> None:
    memory = PeakMemory(CPU)
    torch.ones(100 * MEGABYTE // 4)
    peak = memory.read_peak()
    assert peak is not None
    assert 90 * MEGABYTE < peak < 130 * MEGABYTE
    memory.reset()
    peak = memory.read_peak()
    assert peak is not None
    assert peak < 20 * MEGABYTE


@pytest.mark.parametrize(
    "cell",
    [
        cell
        for cell in read_experiment(find_experiment("cost")).cells
        if cell.settings["device"] == "cpu" and cell.settings["length"] == 128
    ],
    ids=lambda cell: cell.coordinates["variant"],
)
def test_training_and_decoding_are_measured(cell: Cell, tmp_path: Path) -> None:
    sizes = {"width": 16, "depth": 1, "heads": 2, "embedding_width": 16, "head_dim": 8}
    tiny = {name: size for name, size in sizes.items() if name in cell.settings["model"]}
    changes = {"length": 12, "batch_tokens": 24, "repeats": 1, "new_tokens": 2, "model": tiny}
    if "segment" in cell.settings:
        changes["segment"] = 8
    context = build_context(tmp_path, tmp_path, cell.name)
    measurement = load_measure("cost")(context, **merge_settings(cell.settings, changes))
    assert [point["work"] for point in measurement.points] == ["training", "decoding"]
    assert all(point["microseconds"] > 0 for point in measurement.points)


def test_a_lack_of_memory_gives_a_point_without_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("qkv.experiments.measures.cost.measure_training", fail)
    cell = read_experiment(find_experiment("cost")).cells[0]
    changes = {"device": "cpu", "length": 4, "new_tokens": 1, "model": {"width": 16, "depth": 1}}
    context = build_context(tmp_path, tmp_path, cell.name)
    training, decoding = load_measure("cost")(
        context, **merge_settings(cell.settings, changes)
    ).points
    assert training["microseconds"] is training["memory_mb"] is None
    assert decoding["microseconds"] > 0


@pytest.mark.parametrize("selection", [name for name in SELECTIONS if name != "local-m"])
def test_the_backward_pass_of_a_selection_reaches_queries_and_keys(
    selection: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also that of hard attention, whose weights have no gradient."""
    inputs: list[torch.Tensor] = []
    draw = torch.randn

    def record_draw(*sizes: int, **settings: Any) -> torch.Tensor:
        inputs.append(draw(*sizes, **settings))
        return inputs[-1]

    monkeypatch.setattr(torch, "randn", record_draw)
    load_measure("selection-speed")(
        build_context(tmp_path, tmp_path, "cell"),
        selection=selection, num_keys=12, num_queries=3, rows=2, width=4, repeats=1,
    )  # fmt: skip
    assert len(inputs) == 3
    for tensor in inputs:
        assert tensor.grad is not None
        assert tensor.grad.abs().sum() > 0


def test_the_support_of_a_selection_is_counted(tmp_path: Path) -> None:
    supports = {}
    for cell in list_cells("selection", "selection-speed"):
        if cell.settings["num_keys"] == 64:
            context = build_context(tmp_path, tmp_path, cell.name)
            changes = {"rows": 2, "num_queries": 4, "repeats": 1}
            settings = merge_settings(cell.settings, changes)
            measurement = load_measure(cell.measure)(context, **settings)
            supports[cell.settings["selection"]] = measurement.metrics["support"]
    assert supports["hard"] == supports["gumbel"] == 1
    assert supports["top-k"] == 8
    assert supports["softmax"] == 64
    assert 1 < supports["sparsemax"] < supports["entmax15"] < 64
