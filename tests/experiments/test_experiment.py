"""Experiments parsed from TOML: cells, variants, axes, the reduced form, and errors."""

from pathlib import Path

import pytest

from qkv.experiments import EXPERIMENT_ORDER, find_experiment, list_experiments
from qkv.experiments.experiment import merge_settings, read_experiment
from tests.experiments.conftest import TOY_EXPERIMENT


def test_a_cell_for_every_combination_with_the_seed_outermost(toy_path: Path) -> None:
    experiment = read_experiment(toy_path)
    assert [cell.name for cell in experiment.cells[:5]] == [
        "attention-gradient,variant=scaled,head_dim=4,seed=0",
        "attention-gradient,variant=scaled,head_dim=16,seed=0",
        "attention-gradient,variant=unscaled,head_dim=4,seed=0",
        "attention-gradient,variant=unscaled,head_dim=16,seed=0",
        "attention-gradient,variant=scaled,head_dim=4,seed=1",
    ]
    assert len(experiment.cells) == len({cell.key for cell in experiment.cells}) == 8
    first = {"num_keys": 8, "num_queries": 16, "is_scaled": True, "head_dim": 4}
    assert experiment.cells[0].settings == first


def test_the_reduced_form_has_other_cells(toy_path: Path) -> None:
    full, reduced = read_experiment(toy_path), read_experiment(toy_path, is_reduced=True)
    assert [cell.settings["num_queries"] for cell in reduced.cells] == [4, 4]
    assert not {cell.key for cell in full.cells} & {cell.key for cell in reduced.cells}
    assert (full.file_stem, reduced.file_stem) == ("toy", "toy-reduced")


def test_a_key_depends_on_settings_and_not_on_names(toy_path: Path) -> None:
    keys = [cell.key for cell in read_experiment(toy_path).cells]
    toy_path.write_text(TOY_EXPERIMENT.replace("unscaled =", "plain ="), encoding="utf-8")
    assert [cell.key for cell in read_experiment(toy_path).cells] == keys
    toy_path.write_text(TOY_EXPERIMENT.replace("num_keys = 8", "num_keys = 9"), encoding="utf-8")
    assert not {*keys} & {cell.key for cell in read_experiment(toy_path).cells}


def test_patterns_select_cells(toy_path: Path) -> None:
    experiment = read_experiment(toy_path)
    assert len(experiment.select_cells(["*variant=scaled*seed=0", "*seed=1"])) == 6
    with pytest.raises(ValueError, match="matches none of 8 cells of toy"):
        experiment.select_cells(["*seed=7"])


def test_tables_are_merged_and_dots_reach_into_them() -> None:
    base = {"model": {"width": 8, "heads": 2}, "steps": 5}
    merged = merge_settings(base, {"model": {"width": 16}, "model.depth": 3, "steps": 6})
    assert merged == {"model": {"width": 16, "heads": 2, "depth": 3}, "steps": 6}
    assert base == {"model": {"width": 8, "heads": 2}, "steps": 5}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[about]", "[about"), "not an experiment in TOML"),
        (('question = "Does the harness run?"', ""), "question"),
        (("settings = {", "setings = {"), "setings"),
        (("head_dim = [4, 16]", "head_dim = 4"), "axis head_dim is 4, expected a list"),
        (("num_keys = 8", "num_keys = 8, head_dim = 3"), "head_dim is a setting and an axis"),
        (("seed = [0, 1]", 'seed = ["a"]'), "seed"),
        (("seed = [0, 1]", 'seed = [0], variant = ["scald"]'), "did you mean scaled"),
        (("head_dim = [4, 16]", "head_dim = []"), "no cells"),
        (('x_scale = "log2"', 'x_scale = "log3"'), "log3"),
    ],
)
def test_errors_name_the_file_and_the_cause(
    toy_path: Path, change: tuple[str, str], message: str
) -> None:
    toy_path.write_text(TOY_EXPERIMENT.replace(*change), encoding="utf-8")
    with pytest.raises(ValueError, match=message) as error:
        read_experiment(toy_path)
    assert str(error.value).startswith(f"{toy_path}: ")
    assert "\n" not in str(error.value)


def test_experiments_are_found_by_name_in_the_order_of_the_page() -> None:
    names = list_experiments()
    assert names == [name for name in EXPERIMENT_ORDER if name in names]
    with pytest.raises(ValueError, match="did you mean norms"):
        find_experiment("norm")
