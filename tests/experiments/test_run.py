"""Runs of a toy experiment: results, resuming after a kill, workers, the figure, the command."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from qkv.cli import main
from qkv.experiments import list_experiments, measures
from qkv.experiments.experiment import read_experiment
from qkv.experiments.run import build_row, get_table, read_experiment_state, run_cells, write_figure
from qkv.experiments.table import Measurement
from tests.experiments.conftest import TOY_EXPERIMENT


def run_toy(path: Path, results: Path, lines: list[str]) -> None:
    experiment = read_experiment(path)
    run_cells(
        experiment, experiment.cells, results=results, data=path.parent, device="cpu",
        report=lines.append,
    )  # fmt: skip


def test_finished_cells_are_rows_and_are_not_measured_again(toy_path: Path, tmp_path: Path) -> None:
    experiment = read_experiment(toy_path)
    lines: list[str] = []
    run_toy(toy_path, tmp_path, lines)
    assert len(lines) == 8
    table = get_table(experiment, tmp_path)
    row = table.read()[experiment.cells[0].key]
    assert row["coordinates"] == {"variant": "scaled", "head_dim": 4}
    assert row["settings"] == experiment.cells[0].settings
    assert {*row["metrics"]} == {"score_std", "max_weight", "gradient", "median_gradient"}
    assert row["device"].startswith("cpu")
    assert row["torch"]
    assert row["seconds"] >= 0
    content = table.path.read_bytes()
    run_toy(toy_path, tmp_path, lines)
    assert len(lines) == 8
    assert table.path.read_bytes() == content


def test_only_missing_cells_are_measured(toy_path: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    run_toy(toy_path, tmp_path, lines)
    experiment = read_experiment(toy_path)
    path = get_table(experiment, tmp_path).path
    first_rows = path.read_text().splitlines()[:5]
    path.write_text("\n".join(first_rows) + "\n" + '{"key": "torn')
    state = read_experiment_state(experiment, tmp_path, experiment.cells)
    assert (state.num_done, state.num_cells) == (5, 8)
    run_toy(toy_path, tmp_path, lines)
    assert len(lines) == 8 + 3
    assert not read_experiment_state(experiment, tmp_path, experiment.cells).missing


def test_a_killed_run_continues_with_the_missing_cells(toy_path: Path, tmp_path: Path) -> None:
    text = TOY_EXPERIMENT.replace("num_queries = 16", "num_queries = 20000")
    toy_path.write_text(text.replace("head_dim = [4, 16]", "head_dim = [4, 16, 64, 256]"))
    command = [sys.executable, "-m", "qkv", "experiment", str(toy_path), "--device", "cpu"]
    process = subprocess.Popen(
        [*command, "--results", str(tmp_path / "results")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()  # how many cells are done
    process.stdout.readline()  # the first cell
    process.send_signal(signal.SIGKILL)
    process.communicate()
    experiment = read_experiment(toy_path)
    state = read_experiment_state(experiment, tmp_path / "results", experiment.cells)
    assert 1 <= state.num_done < 16
    lines: list[str] = []
    run_toy(toy_path, tmp_path / "results", lines)
    assert len(lines) == len(state.missing)
    table = get_table(experiment, tmp_path / "results")
    assert len(table.path.read_text().splitlines()) == 16


def test_a_cell_of_an_absent_device_is_left_out(
    toy_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = TOY_EXPERIMENT.replace("num_keys = 8", 'num_keys = 8, device = "tpu"')
    toy_path.write_text(text, encoding="utf-8")
    monkeypatch.setattr(measures, "check_cell_settings", lambda cell: None)
    lines: list[str] = []
    run_toy(toy_path, tmp_path, lines)
    assert len(lines) == 8
    assert all("skipped: device 'tpu'" in line for line in lines)
    assert get_table(read_experiment(toy_path), tmp_path).read() == {}


def test_numbers_that_are_not_finite_are_null(toy_path: Path) -> None:
    cell = read_experiment(toy_path).cells[0]
    measurement = Measurement(
        metrics={"loss": float("nan"), "steps": 3}, points=({"x": 1, "y": float("inf")},)
    )
    row = build_row(cell, measurement, {"device": "cpu", "torch": "2"}, 1.0)
    assert row["metrics"] == {"loss": None, "steps": 3}
    assert row["points"] == [{"x": 1, "y": None}]


def test_the_figure_is_drawn_from_the_table_alone(toy_path: Path, tmp_path: Path) -> None:
    run_toy(toy_path, tmp_path, [])
    experiment = read_experiment(toy_path)
    path = write_figure(experiment, tmp_path)
    assert path is not None
    svg = path.read_text(encoding="utf-8")
    assert "2 seeds; 8 of 8 cells" in svg
    rows = get_table(experiment, tmp_path).read().values()
    values = [
        row["metrics"]["gradient"] for row in rows if row["coordinates"]["variant"] == "scaled"
    ]
    low, high = sorted(values[::2])  # of the two seeds, at the first d
    assert f"scaled: {(low + high) / 2:.4g} ({low:.4g} to {high:.4g})" in svg
    get_table(experiment, tmp_path).path.unlink()
    assert write_figure(experiment, tmp_path) is None


def test_the_command_runs_lists_and_draws(
    toy_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = ["--results", str(tmp_path / "results")]
    arguments = ["experiment", str(toy_path), "--device", "cpu", *results]
    assert main([*arguments, "--cells", "*seed=0"]) == 0
    assert "0 of 4 cells are done" in capsys.readouterr().out
    assert main([*arguments, "--workers", "2"]) == 0
    assert "4 of 8 cells are done" in capsys.readouterr().out
    assert len((tmp_path / "results" / "toy.jsonl").read_text().splitlines()) == 8
    assert main([*arguments, "--figure"]) == 0
    assert "figure:" in capsys.readouterr().out
    assert main(["experiment", "--json", *results]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [item["name"] for item in listed] == list_experiments()
    assert all(item["done"] == 0 < item["cells"] for item in listed)


@pytest.mark.parametrize(
    ("change", "flags", "message"),
    [
        (("attention-gradient", "attention-gradien"), [], "did you mean attention-gradient?"),
        (("num_keys", "num_key"), [], "num_key is unknown; did you mean num_keys?"),
        (("head_dim = [4, 16], ", ""), [], "settings head_dim are missing"),
        (
            ("num_queries = 16", "num_queries = -3"),
            [],
            "attention-gradient: num_queries is -3: expected",
        ),
        (
            ("num_queries = 16", f"num_queries = {2**40}"),
            [],
            "num_queries is 1099511627776: expected",
        ),
        (("head_dim = [4, 16]", "head_dim = [4, 0]"), [], "head_dim is 0: expected a whole number"),
        (
            ("head_dim = [4, 16]", 'head_dim = [4, "a"]'),
            [],
            "head_dim is 'a': Expected `int`, got `str`",
        ),
        (("is_scaled = true", "is_scaled = 1"), [], "is_scaled is 1: Expected `bool`"),
        (("seed = [0, 1]", "seed = [0, -1]"), [], "seed is -1: expected a whole number"),
        (("", ""), ["--workers", "0"], "--workers"),
        (("", ""), ["--figure"], "no results to draw"),
        (("", ""), ["--json"], "--json"),
        (("", ""), ["--device", "tpu"], "device 'tpu'"),
    ],
)
def test_bad_input_is_one_line(
    toy_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    change: tuple[str, str], flags: list[str], message: str,
) -> None:  # fmt: skip
    toy_path.write_text(TOY_EXPERIMENT.replace(*change, 1), encoding="utf-8")
    results = tmp_path / "results"
    assert main(["experiment", str(toy_path), "--results", str(results), *flags]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not results.exists()


def test_a_damaged_row_is_one_line(
    toy_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_toy(toy_path, tmp_path, [])
    experiment = read_experiment(toy_path)
    path = get_table(experiment, tmp_path).path
    content = path.read_text()
    row = json.loads(content.splitlines()[0])
    key = json.dumps({"key": row["key"]})
    text = json.dumps(row | {"metrics": {"gradient": "high"}})
    for line, message in (
        (key, "toy.jsonl: line 9 is not a row of a results table (measure is missing)"),
        (text, "panel 'Gradient': gradient is 'high', expected a number"),
    ):
        path.write_text(f"{content}{line}\n")
        arguments = ["experiment", str(toy_path), "--results", str(tmp_path), "--figure"]
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


def test_a_missing_data_file_leaves_no_results_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = ["--results", str(tmp_path / "results"), "--data", str(tmp_path / "nowhere")]
    assert main(["experiment", "norms", "--reduced", *folders]) == 2
    assert "input.txt: data file not found" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
