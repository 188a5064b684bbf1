"""Running of the cells of an experiment: each missing cell is claimed, measured and appended.

Processes that run the same experiment share its table, and none measures a cell that another has
claimed. Worker processes are the same command without `--workers`."""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv.experiments.experiment import Cell, Experiment
from qkv.experiments.figure import render_figure
from qkv.experiments.table import Measurement, ResultsTable
from qkv.staging import write_file
from qkv.validate import check_number

MAX_WORKERS = 256
DEVICE = "device"  # setting of a cell that is measured on one kind of device only


@dataclass(frozen=True, kw_only=True)
class ExperimentState:
    """How many of the selected cells are in the table, and the cells that are not."""

    num_cells: int
    missing: tuple[Cell, ...]

    @property
    def num_done(self) -> int:
        return self.num_cells - len(self.missing)


def get_table(experiment: Experiment, results: Path) -> ResultsTable:
    return ResultsTable(results / f"{experiment.file_stem}.jsonl")


def read_experiment_state(
    experiment: Experiment, results: Path, cells: Sequence[Cell]
) -> ExperimentState:
    """Return which of these cells are done."""
    rows = get_table(experiment, results).read()
    missing = tuple(cell for cell in cells if cell.key not in rows)
    return ExperimentState(num_cells=len(cells), missing=missing)


def run_cells(
    experiment: Experiment,
    cells: Sequence[Cell],
    *,
    results: Path,
    data: Path,
    device: str,
    report: Callable[[str], None],
) -> None:
    """Measure the cells that are neither in the table nor claimed by another process."""
    from qkv.experiments.measures import CellContext, check_cell_settings, load_measure
    from qkv.model.device import pick_device

    table = get_table(experiment, results)
    for cell in cells:
        check_cell_settings(cell)  # all of them before the first runs
    default_device = pick_device(device)
    done = table.read()
    for cell in cells:
        if cell.key in done:
            continue
        try:
            cell_device = pick_device(cell.settings.get(DEVICE, default_device))
        except ValueError as error:
            report(f"{cell.name}: skipped: {error}")
            continue
        with table.claim(cell) as is_mine, tempfile.TemporaryDirectory(prefix="qkv-") as scratch:
            if not is_mine:
                continue
            context = CellContext(
                seed=cell.seed,
                device=cell_device,
                data=data,
                scratch=Path(scratch),
                results=results / experiment.file_stem,
                name=cell.name,
                variant=cell.variant,
                report=report,
            )
            start_time = time.perf_counter()
            measurement = load_measure(cell.measure)(context, **cell.settings)
            seconds = time.perf_counter() - start_time
            table.append(build_row(cell, measurement, context.describe_machine(), seconds))
        report(f"{cell.name}: {describe_metrics(measurement)} ({seconds:.1f} s)")


def build_row(
    cell: Cell, measurement: Measurement, machine: dict[str, str], seconds: float
) -> dict[str, Any]:
    """Return the row of a finished cell; numbers that are not finite become null."""
    return {
        "key": cell.key,
        "cell": cell.name,
        "measure": cell.measure,
        "coordinates": cell.coordinates,
        "seed": cell.seed,
        "metrics": replace_nonfinite(measurement.metrics),
        "points": [replace_nonfinite(point) for point in measurement.points],
        "settings": cell.settings,
        **machine,
        "seconds": round(seconds, 2),
    }


def replace_nonfinite(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }


def describe_metrics(measurement: Measurement) -> str:
    """Return the numbers of a cell on one line."""
    metrics = measurement.metrics or (measurement.points[-1] if measurement.points else {})
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in metrics.items()
    )


def run_workers(num_workers: int, arguments: Sequence[str], report: Callable[[str], None]) -> int:
    """Run the command `qkv experiment` in several processes; return the number that failed.

    Their lines are reported as they come; Ctrl-C ends all of them."""
    check_number("--workers", num_workers, integer=True, at_least=1, at_most=MAX_WORKERS)
    command = [sys.executable, "-m", "qkv", "experiment", *arguments]
    processes = [subprocess.Popen(command) for _ in range(num_workers)]
    try:
        statuses = [process.wait() for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
                process.wait()
    failures = sum(status != 0 for status in statuses)
    if failures:
        report(f"{failures} of {num_workers} workers failed; run the command again for the rest")
    return failures


def write_figure(experiment: Experiment, results: Path) -> Path | None:
    """Draw the figure from the table; return its path, or None if no panel has a point yet."""
    rows = get_table(experiment, results).read()
    keys = {cell.key for cell in experiment.cells}
    svg = render_figure(experiment, [row for key, row in rows.items() if key in keys])
    if svg is None:
        return None
    path = results / f"{experiment.file_stem}.svg"
    with write_file(path) as temporary:
        temporary.write_text(svg, encoding="utf-8")
    return path
