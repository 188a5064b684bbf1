"""The command `experiment`, which runs and lists the experiments of the package."""

from __future__ import annotations

import json
from pathlib import Path

from qkv.cli.console import print_rich
from qkv.cli.flags import BoolFlag, JsonFlag, OutputPath, StrictInt, StringList
from qkv.experiments import find_experiment, list_experiments
from qkv.experiments.experiment import Experiment, read_experiment
from qkv.model.device import DEFAULT_DEVICE

DEFAULT_RESULTS = Path("experiments")
DEFAULT_DATA = Path()


def experiment(
    name: str | None = None,
    /,
    *,
    reduced: BoolFlag = False,
    cells: StringList = (),
    workers: StrictInt = 1,
    results: OutputPath = DEFAULT_RESULTS,
    data: Path = DEFAULT_DATA,
    device: str = DEFAULT_DEVICE,
    figure: BoolFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Run the cells of an experiment that have no result yet, or list the experiments.

    qkv experiment scaling --reduced

    Every finished cell is a line of the table RESULTS/NAME.jsonl. A run that was killed continues with
    the missing cells. The figure RESULTS/NAME.svg is drawn from the table.

    Parameters
    ----------
    name
        experiment of the package, or a TOML file; default: list all
    reduced
        run the reduced form, which takes minutes on two cores
    cells
        patterns of cells to run: "*variant=rotary*seed=0"
    workers
        number of processes that share the cells
    results
        folder of the table and the figure
    data
        folder of the data files that the experiment names
    device
        auto, cpu, cuda or mps
    figure
        only draw the figure from the table
    as_json
        print the list as JSON
    """
    from qkv.experiments.run import read_experiment_state, run_cells, run_workers, write_figure

    if name is None:
        list_states(reduced, results, as_json)
        return
    if as_json:
        raise ValueError(f"--json with {name}: only the list of experiments is printed as JSON")
    selected = read_experiment(find_experiment(name), is_reduced=reduced)
    chosen = selected.select_cells(cells)
    if not figure:
        state = read_experiment_state(selected, results, chosen)
        print(f"{selected.name}: {state.num_done} of {state.num_cells} cells are done", flush=True)
        if workers != 1 and state.missing:
            arguments = [name, "--results", str(results), "--data", str(data), "--device", device]
            arguments += ["--reduced"] * reduced + (["--cells", *cells] if cells else [])
            if run_workers(workers, arguments, print_line):
                raise ValueError(f"{selected.name}: a worker failed; its error is above")
        else:
            run_cells(
                selected, chosen, results=results, data=data, device=device, report=print_line
            )
    path = write_figure(selected, results)
    if path is None and figure:
        raise ValueError(f"{selected.name}: no results to draw in {results}; run the cells first")
    if path is not None:
        print(f"figure: {path}")


def print_line(text: str) -> None:
    print(text, flush=True)


def list_states(reduced: bool, results: Path, as_json: bool) -> None:
    """Print the name, the question and the number of finished cells of every experiment."""
    from qkv.experiments.run import read_experiment_state

    experiments: list[Experiment] = [
        read_experiment(find_experiment(name), is_reduced=reduced) for name in list_experiments()
    ]
    states = [read_experiment_state(item, results, item.cells) for item in experiments]
    if as_json:
        rows = [
            {
                "name": item.name,
                "question": item.about.question,
                "cells": state.num_cells,
                "done": state.num_done,
            }
            for item, state in zip(experiments, states, strict=True)
        ]
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for item, state in zip(experiments, states, strict=True):
        table.add_row(item.name, f"{state.num_done}/{state.num_cells}", item.about.question)
    print_rich(table)
    print("\nqkv experiment NAME   runs the cells that are missing in the table of the experiment")
