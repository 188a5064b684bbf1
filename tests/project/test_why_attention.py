"""docs/why-attention.md: a command, a table and a figure for every experiment. The figures are drawn from
the tables of results, and the numbers of the page's Markdown tables are computed from them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from statistics import fmean
from typing import Any

import pytest

from qkv.experiments import EXPERIMENT_ORDER, find_experiment, list_experiments
from qkv.experiments.experiment import read_experiment
from qkv.experiments.figure import render_figure
from qkv.experiments.table import ResultsTable
from tests.conftest import ROOT

RESULTS = ROOT / "docs" / "experiments"
PAGE = (ROOT / "docs" / "why-attention.md").read_text(encoding="utf-8")
SECTIONS = re.split(r"^## \d+\. ", PAGE, flags=re.MULTILINE)[1:]
# Names on the page that are not those of the tables.
NAMES = {
    "Transformer-XL": "transformer-xl",
    "Gumbel": "gumbel",
    "entmax-1.5": "entmax15",
    "hard, expected": "hard-expected",
}
NAMES_OF_NETWORKS = {
    "RNN": "rnn",
    "GRU": "gru",
    "LSTM": "lstm",
    "fixed vector (Cho)": "fixed-vector",
    "reversed LSTM": "lstm-reversed",
    "attention (Bahdanau)": "bahdanau",
    "attention (Luong)": "luong",
    "Transformer": "transformer",
    "Transformer-XL": "transformer-xl",
}
NAMES_OF_POSITIONS = {
    "sinusoids": "sinusoid",
    "T5's buckets": "t5",
    "ALiBi": "alibi",
    "Transformer-XL": "xl",
}
NAMES_OF_SCALING = {
    "not scaled": "unscaled",
    "scaled, unit variance": "scaled-unit-variance",
    "not scaled, unit variance": "unscaled-unit-variance",
}
NAMES_OF_NORMS = {
    "post-norm, warmup": "post-norm+warmup",
    "pre-norm, warmup": "pre-norm+warmup",
}
NAMES_OF_PRETRAINING = {
    "from nothing": "nothing",
    "masked language modeling": "masked-lm",
    "replaced token detection": "replaced-token-detection",
}
MIN_SOLVED = 0.98  # accuracy of a network that retrieves the token
NUM_PHRASES = 6  # of the selections: nouns and adjectives that are to be aligned
Cells = dict[tuple[str, str], str]  # by row and column
ComputeCell = Callable[[str, str], str]


@cache
def read_results(name: str) -> list[dict[str, Any]]:
    return [*ResultsTable(RESULTS / f"{name}.jsonl").read().values()]


def test_the_page_has_the_experiments_in_their_order() -> None:
    assert list_experiments() == list(EXPERIMENT_ORDER)
    places = [
        PAGE.index(f"\nqkv experiment {name}", PAGE.index("## 1.")) for name in EXPERIMENT_ORDER
    ]
    assert places == sorted(places)
    assert len(SECTIONS) == len(EXPERIMENT_ORDER)


@pytest.mark.parametrize("name", EXPERIMENT_ORDER)
def test_every_experiment_has_a_table_and_a_figure_of_it(name: str) -> None:
    experiment = read_experiment(find_experiment(name))
    rows = ResultsTable(RESULTS / f"{name}.jsonl").read()
    assert rows, f"docs/experiments/{name}.jsonl is missing or empty"
    keys = {cell.key for cell in experiment.cells}
    assert rows.keys() <= keys, "a row has other settings than the experiment"
    svg = render_figure(experiment, list(rows.values()))
    assert svg == (RESULTS / f"{name}.svg").read_text(encoding="utf-8"), (
        f"run qkv experiment {name} --figure --results docs/experiments"
    )
    section = SECTIONS[EXPERIMENT_ORDER.index(name)]
    assert re.search(rf"^!\[.+\]\(experiments/{name}\.svg\)$", section, re.MULTILINE)


def test_every_table_and_figure_is_that_of_an_experiment() -> None:
    names = {path.stem for path in RESULTS.glob("*.*")}
    assert names == {*EXPERIMENT_ORDER}


# --- the numbers of the page ---


def read_table(experiment: str, index: int) -> Cells:
    """Return a Markdown table in the section of an experiment, by the first cells of rows and columns."""
    section = SECTIONS[EXPERIMENT_ORDER.index(experiment)]
    table = re.findall(r"(?:^\|.*\|\n)+", section, re.MULTILINE)[index]
    lines = [[cell.strip() for cell in line[1:-1].split("|")] for line in table.splitlines()]
    header, dashes, *rows = lines
    assert {*dashes} == {"---"}
    return {
        (name, column): cell
        for name, *cells in rows
        for column, cell in zip(header[1:], cells, strict=True)
    }


def select_results(experiment: str, measure: str, **coordinates: Any) -> list[dict[str, Any]]:
    """Return the results with these coordinates, in the order of their seeds."""
    rows = [
        row
        for row in read_results(experiment)
        if row["measure"] == measure and row["coordinates"].items() >= coordinates.items()
    ]
    return sorted(rows, key=lambda row: row["seed"])


def read_number(text: str) -> int:
    """Return the number in a label: "4,096 keys" -> 4096."""
    return int(re.sub(r"\D", "", text))


def format_seeds(values: Sequence[float], decimals: int) -> str:
    """Return the mean and the largest distance of a seed from it; one value alone; "" for none."""
    if not values:
        return ""
    mean = fmean(values)
    text = f"{mean:,.{decimals}f}"
    distance = max(abs(value - mean) for value in values)
    return text if len(values) == 1 else f"{text} ± {distance:,.{decimals}f}"


def compute_sentence_length(variant: str, words: str) -> str:
    rows = select_results("sentence-length", "translation", variant=variant)
    points = [point for row in rows for point in row["points"] if point["words"] == int(words)]
    return format_seeds([point["bleu"] for point in points], 1)


def compute_cost(device: str, row: str, column: str) -> str:
    """Return the time at a length, or for a column "memory at ...", the memory."""
    work, variant = row.split(": ")
    rows = select_results(
        "cost", "cost", variant=NAMES.get(variant, variant), device=device,
        length=read_number(column),
    )  # fmt: skip
    points = [point for row in rows for point in row["points"] if point["work"] == work]
    if column.startswith("memory"):
        return format_seeds([point["memory_mb"] for point in points], 0) + " MB"
    decimals = 2 if (device, work) == ("cuda", "training") else 0
    return format_seeds([point["microseconds"] for point in points], decimals)


def compute_retrieval(network: str, distance: str) -> str:
    """Return the steps of the networks that solve the task, and the accuracy of the others, by seed."""
    rows = select_results(
        "retrieval", "retrieval", variant=NAMES_OF_NETWORKS.get(network, network),
        distance=read_number(distance),
    )  # fmt: skip
    return ", ".join(
        f"{row['metrics']['steps']:,}"
        if row["metrics"]["accuracy"] >= MIN_SOLVED
        else f"{row['metrics']['accuracy']:.2f}"
        for row in rows
    )


def compute_positions(variant: str, position: str) -> str:
    rows = select_results(
        "positions", "language-model", variant=NAMES_OF_POSITIONS.get(variant, variant)
    )
    points = [point for row in rows for point in row["points"]]
    place = read_number(position)
    return format_seeds([p["position_loss"] for p in points if p["position"] == place], 2)


def compute_scaling(variant: str, head_dim: str) -> str:
    rows = select_results(
        "scaling", "language-model", variant=NAMES_OF_SCALING.get(variant, variant)
    )
    metrics = [row["metrics"] for row in rows]
    size = read_number(head_dim)
    return format_seeds([values["loss"] for values in metrics if values["head_dim"] == size], 2)


def compute_heads(num_heads: str, column: str) -> str:
    rows = select_results("heads", "heads", variant=num_heads)
    if column in ("BLEU", "loss"):
        name, decimals = {"BLEU": ("bleu", 1), "loss": ("loss", 2)}[column]
        return format_seeds([row["metrics"][name] for row in rows], decimals)
    heads_of_seeds = [[point for point in row["points"] if "head" in point] for row in rows]
    if column.endswith("word"):  # "self-attention: same word"
        part, pattern = column.split(": ")
        shares_of_seeds = [
            [head[pattern] for head in heads if head["part"].endswith(part)]
            for heads in heads_of_seeds
        ]
        counts = [sum(share >= 0.5 for share in shares) for shares in shares_of_seeds]
        return ", ".join(map(str, counts)) + f" of {len(shares_of_seeds[0])}"
    losses = [[head["removal_loss"] for head in heads] for heads in heads_of_seeds]
    if column == "removal of a head, mean":
        means = [fmean(values) for values in losses]
        return format_seeds(means, 2 if fmean(means) >= 0.1 else 3)
    values = {"largest": map(max, losses), "all of them, sum": map(sum, losses)}[column]
    return format_seeds([*values], 2)


def compute_norms(variant: str, depth: str) -> str:
    rows = select_results(
        "norms", "language-model", variant=NAMES_OF_NORMS.get(variant, variant),
        **{"model.depth": read_number(depth)},
    )  # fmt: skip
    return ", ".join(f"{row['metrics']['loss']:.2f}" for row in rows)


def compute_selection(row: str, selection: str) -> str:
    selection = NAMES.get(selection, selection)
    if row.startswith("time"):
        results = select_results(
            "selection", "selection-speed", selection=selection, num_keys=read_number(row)
        )
        return format_seeds([result["metrics"]["milliseconds"] for result in results], 2)
    metrics = [
        result["metrics"]
        for result in select_results("selection", "translation", variant=selection)
    ]
    if row == "aligned":
        return ", ".join(f"{values['aligned'] * NUM_PHRASES:.0f}" for values in metrics)
    name, decimals = {"BLEU": ("mean_bleu", 1), "loss": ("mean_loss", 2)}[row]
    return format_seeds([values[name] for values in metrics], decimals)


def compute_pretraining(kind: str, num_labels: str) -> str:
    rows = select_results("pretraining", "pretraining", variant=NAMES_OF_PRETRAINING[kind])
    points = [point for row in rows for point in row["points"]]
    number = read_number(num_labels)
    return format_seeds([p["accuracy"] for p in points if p["num_labels"] == number], 3)


# An experiment, the number of a Markdown table in its section, the function that computes a cell, and
# names of variants.
TABLES: dict[str, tuple[str, int, ComputeCell, dict[str, str]]] = {
    "sentence length": ("sentence-length", 0, compute_sentence_length, {}),
    "cost, GPU": ("cost", 0, partial(compute_cost, "cuda"), NAMES),
    "cost, CPU": ("cost", 1, partial(compute_cost, "cpu"), NAMES),
    "retrieval": ("retrieval", 0, compute_retrieval, NAMES_OF_NETWORKS),
    "positions": ("positions", 0, compute_positions, NAMES_OF_POSITIONS),
    "scaling": ("scaling", 0, compute_scaling, NAMES_OF_SCALING),
    "heads": ("heads", 0, compute_heads, {}),
    "norms": ("norms", 0, compute_norms, NAMES_OF_NORMS),
    "selection": ("selection", 0, compute_selection, NAMES),
    "pretraining": ("pretraining", 0, compute_pretraining, NAMES_OF_PRETRAINING),
}


@pytest.mark.parametrize("name", TABLES)
def test_numbers_on_the_page_are_those_of_the_results(name: str) -> None:
    """An empty cell stands for no results."""
    experiment, index, compute_cell, names = TABLES[name]
    cells = read_table(experiment, index)
    expected = {labels: compute_cell(*labels) for labels in cells}
    different = {
        labels: f"{cell!r} on the page, {expected[labels]!r} by the results"
        for labels, cell in cells.items()
        if cell != expected[labels]
    }
    assert not different
    # Every variant has a row, or a column.
    labels = {part.rpartition(": ")[2] for pair in cells for part in pair}
    variants = {row["coordinates"].get("variant") for row in read_results(experiment)} - {None}
    assert variants <= {names.get(label, label) for label in labels}
