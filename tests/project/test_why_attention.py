"""docs/why-attention.md: a command for every experiment, and figures that are drawn from its tables."""

import pytest

from qkv.experiments import EXPERIMENT_ORDER, find_experiment, list_experiments
from qkv.experiments.experiment import read_experiment
from qkv.experiments.figure import render_figure
from qkv.experiments.table import ResultsTable
from tests.conftest import ROOT

RESULTS = ROOT / "docs" / "experiments"
PAGE = (ROOT / "docs" / "why-attention.md").read_text(encoding="utf-8")


def test_the_page_has_the_experiments_in_their_order() -> None:
    assert list_experiments() == list(EXPERIMENT_ORDER)
    places = [
        PAGE.index(f"\nqkv experiment {name}", PAGE.index("## 1.")) for name in EXPERIMENT_ORDER
    ]
    assert places == sorted(places)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.jsonl")), ids=lambda path: path.stem)
def test_figures_are_drawn_from_the_tables(path: object) -> None:
    name = str(path).rpartition("/")[2].removesuffix(".jsonl")
    experiment = read_experiment(find_experiment(name))
    rows = ResultsTable(RESULTS / f"{name}.jsonl").read()
    keys = {cell.key for cell in experiment.cells}
    assert rows.keys() <= keys, "a row has other settings than the experiment"
    svg = render_figure(experiment, list(rows.values()))
    assert svg == (RESULTS / f"{name}.svg").read_text(encoding="utf-8"), (
        f"run qkv experiment {name} --figure --results docs/experiments"
    )
    assert f"experiments/{name}.svg" in PAGE
