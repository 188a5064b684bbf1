"""Measures: the cells of every experiment of the package are valid, and one of each runs."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.experiments import find_experiment, list_experiments
from qkv.experiments.experiment import Cell, merge_settings, read_experiment
from qkv.experiments.measures import MEASURES, CellContext, check_cell_settings, load_measure
from qkv.experiments.measures.language_model import draw_rows, evaluate_rows
from qkv.experiments.measures.retrieval import QUESTION, predict_last
from qkv.experiments.table import Measurement
from qkv.model.build import build
from qkv.nn.network import Network
from tests.support.errors import assert_error

# Changes that let a reduced cell of a measure run in a second.
TINY_TRAIN = {"steps": 2, "warmup_steps": 0, "log_every": 1}
TINY_STACK = {"width": 16, "depth": 1, "heads": 2}
TINY_SETTINGS: dict[str, dict[str, Any]] = {
    "attention-gradient": {"num_queries": 8},
    "language-model": {"train": TINY_TRAIN, "model": TINY_STACK, "batch_size": 2, "eval_batches": 1},
    "equivariance": {},
    "previous-token": {"train": TINY_TRAIN, "model": {**TINY_STACK, "ffn_width": 16}, "batch_size": 2},
    "retrieval": {"train": TINY_TRAIN, "batch_size": 2},
    "pretraining": {
        "num_labels": [20],
        "tokenizer": {"vocab_size": 80},
        "model": {**TINY_STACK, "embedding_width": 16, "ffn_width": 16},
        "finetune": {"train": TINY_TRAIN},
    },
}  # fmt: skip


def run_cell(cell: Cell, data: Path, folder: Path, settings: Mapping[str, Any]) -> Measurement:
    context = CellContext(
        seed=cell.seed,
        device="cpu",
        data=data,
        scratch=folder,
        results=folder / "results",
        name=cell.name,
        variant=cell.variant,
        report=lambda line: None,
    )
    return load_measure(cell.measure)(context, **settings)


@pytest.mark.parametrize("is_reduced", [False, True])
@pytest.mark.parametrize("name", list_experiments())
def test_the_cells_of_an_experiment_have_the_settings_of_their_measure(
    name: str, is_reduced: bool
) -> None:
    experiment = read_experiment(find_experiment(name), is_reduced=is_reduced)
    for cell in experiment.cells:
        check_cell_settings(cell)
    seeds = {cell.seed for cell in experiment.cells}
    assert is_reduced or name == "cost" or len(seeds) >= 3
    measures = {cell.measure for cell in experiment.cells}
    assert {panel.measure for panel in experiment.panels} - {None} <= measures


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("cost", dict(precision="fp16"), "precision is 'fp16': expected one of fp32, bf16"),
        ("cost", dict(segment=-1), "segment is -1: expected a whole number, at least 0"),
        ("cost", dict(model="gpt2"), "model is 'gpt2': Expected `object`"),
        (
            "positions",
            dict(dtype="float16"),
            "dtype is 'float16': expected one of float32, float64",
        ),
        ("heads", dict(test_fraction=1.0), "test_fraction is 1.0: expected a number, more than 0"),
        ("heads", dict(example={"source": "x"}), "missing required field `target`"),
        ("sentence-length", dict(edges=[10, 0]), "edges is 0: expected a whole number, at least 1"),
        ("sentence-length", dict(edges=10), "edges is 10: Expected `array`"),
        ("sentence-length", dict(phrases=[{"source": "x"}]), "missing required field"),
        ("pretraining", dict(stages=[{}]), "missing required field `train`"),
        ("pretraining", dict(finetune={"train": {}}), "missing required field `data`"),
    ],
)
def test_settings_of_a_wrong_type_or_out_of_bounds(
    name: str, changes: dict[str, Any], message: str
) -> None:
    cell = read_experiment(find_experiment(name), is_reduced=True).cells[0]
    wrong = replace(cell, settings=cell.settings | changes)
    assert_error(lambda: check_cell_settings(wrong), f"{cell.measure}: ", message)


@pytest.mark.parametrize(
    ("name", "measure", "changes", "message"),
    [
        ("norms", "language-model", dict(model={"width": 8}), "model.family is missing"),
        ("norms", "language-model", dict(length=100_000), "expected more than a row of length 100,000"),
        ("positions", "equivariance", dict(model={"family": "bert"}), "model.vocab_size is None"),
        ("sentence-length", "translation",
         dict(text="fra-eng.tsv", vocab_size=200, edges=[1], test_fraction=0.2),
         "no row of the test sentences has at most 1 words"),
    ],
)  # fmt: skip
def test_what_a_measure_cannot_use_is_one_line(
    name: str, measure: str, changes: dict[str, Any], message: str, tiny_data: Path, tmp_path: Path
) -> None:
    cells = read_experiment(find_experiment(name), is_reduced=True).cells
    cell = next(cell for cell in cells if cell.measure == measure)
    assert_error(lambda: run_cell(cell, tiny_data, tmp_path, cell.settings | changes), message)


def list_first_cells() -> list[tuple[str, str]]:
    cells = [
        (name, cell.measure)
        for name in list_experiments()
        for cell in read_experiment(find_experiment(name), is_reduced=True).cells
        if cell.measure in TINY_SETTINGS
    ]
    return list(dict.fromkeys(cells))


@pytest.mark.parametrize(("name", "measure"), list_first_cells())
def test_a_cell_runs_and_is_drawn(name: str, measure: str, tiny_data: Path, tmp_path: Path) -> None:
    experiment = read_experiment(find_experiment(name), is_reduced=True)
    cell = next(cell for cell in experiment.cells if cell.measure == measure)
    settings = merge_settings(cell.settings, TINY_SETTINGS[measure])
    if "stages" in settings:
        stages = [
            {**stage, "train": {**stage["train"], **TINY_TRAIN}} for stage in settings["stages"]
        ]
        settings["stages"] = stages
    measurement = run_cell(cell, tiny_data, tmp_path, settings)
    points = measurement.points or ({},)
    values = cell.coordinates | measurement.metrics | points[0]
    for panel in experiment.panels:
        if panel.measure in (None, measure):
            metrics = [panel.y] if isinstance(panel.y, str) else [*panel.y]
            assert all(isinstance(values[metric], int | float) for metric in metrics)
            assert panel.x in values


def test_every_measure_exists() -> None:
    for name in MEASURES:
        assert load_measure(name).__doc__


@pytest.mark.parametrize("stages", [0, 2])
def test_an_encoder_is_fine_tuned_from_nothing_or_from_stages(
    stages: int, tiny_data: Path, tmp_path: Path
) -> None:
    experiment = read_experiment(find_experiment("pretraining"), is_reduced=True)
    cell = next(cell for cell in experiment.cells if len(cell.settings.get("stages", ())) == stages)
    settings = merge_settings(cell.settings, TINY_SETTINGS["pretraining"])
    settings["stages"] = [
        {**stage, "train": {**stage["train"], **TINY_TRAIN}} for stage in settings.get("stages", ())
    ]
    measurement = run_cell(cell, tiny_data, tmp_path, settings)
    (point,) = measurement.points
    assert point["num_labels"] == 20
    assert 0 <= point["accuracy"] <= 1
    assert len([key for key in measurement.metrics if key.endswith("train_loss")]) == stages


def test_a_uniform_softmax_has_a_larger_gradient_than_a_saturated_one(
    tiny_data: Path, tmp_path: Path
) -> None:
    def measure(is_scaled: bool) -> dict[str, Any]:
        settings = {"head_dim": 256, "is_scaled": is_scaled, "num_queries": 256}
        cell = Cell(measure="attention-gradient", coordinates={}, settings=settings, seed=0)
        return run_cell(cell, tiny_data, tmp_path, settings).metrics

    scaled, unscaled = measure(True), measure(False)
    assert scaled["score_std"] == pytest.approx(1, abs=0.05)
    assert unscaled["score_std"] == pytest.approx(16, rel=0.05)
    assert unscaled["max_weight"] > 0.8 > 0.2 > scaled["max_weight"]
    assert unscaled["median_gradient"] < scaled["median_gradient"] / 4


@pytest.mark.parametrize(
    ("position_embedding_type", "is_equivariant"), [("none", True), ("rotary", False)]
)
def test_without_positions_an_encoder_is_equivariant_to_rounding(
    position_embedding_type: str, is_equivariant: bool, tiny_data: Path, tmp_path: Path
) -> None:
    experiment = read_experiment(find_experiment("positions"))
    cell = next(
        cell
        for cell in experiment.cells
        if cell.measure == "equivariance"
        and cell.settings["model"]["position_embedding_type"] == position_embedding_type
        and cell.settings["dtype"] == "float64"
    )
    metrics = run_cell(cell, tiny_data, tmp_path, cell.settings).metrics
    assert (metrics["units"] < 100) == is_equivariant
    assert (metrics["relative_difference"] < 1e-13) == is_equivariant


def test_a_token_is_retrieved_by_attention_but_not_from_beyond_the_memory(
    tiny_data: Path, tmp_path: Path
) -> None:
    """A segment without memory sees the question only."""
    model = dict(
        family="transformer-xl", width=32, embedding_width=32, depth=1, heads=2, head_dim=16,
        ffn_width=32, clamp_len=-1, same_length=False, cutoffs=[], div_val=1, pre_lnorm=True,
        dropout=0.0, vocab_size=QUESTION + 1,
    )  # fmt: skip
    torch.manual_seed(0)
    ids = torch.randint(16, (2, 10))
    other = ids.clone()
    other[:, 1] = (ids[:, 1] + 1) % 16
    for mem_len, sees in ((16, True), (0, False)):
        net = build(**model, mem_len=mem_len, device="cpu").net  # type: ignore[arg-type]
        assert isinstance(net, Network)
        with torch.no_grad():
            same = torch.equal(predict_last(net, ids, 4), predict_last(net, other, 4))
        assert same != sees


def test_rows_of_a_text_are_windows_of_it() -> None:
    ids = torch.arange(100)
    rows = draw_rows(ids, 5, 7, torch.Generator().manual_seed(0))
    assert rows.shape == (5, 7)
    assert torch.equal(rows - rows[:, :1], torch.arange(7).expand(5, 7))
    net = build(
        "gpt2", vocab_size=100, width=8, depth=1, heads=1, max_positions=8, device="cpu"
    ).net
    losses = evaluate_rows(net, ids, 3, 5, 2)
    assert losses.shape == (6, 4)
    assert losses.mean() == pytest.approx(math.log(100), rel=0.1)


def test_a_missing_data_file_is_named(tmp_path: Path) -> None:
    experiment = read_experiment(find_experiment("norms"), is_reduced=True)
    cell = experiment.cells[0]
    with pytest.raises(ValueError, match=r"input\.txt: data file not found; .* --data"):
        run_cell(cell, tmp_path, tmp_path, cell.settings)
