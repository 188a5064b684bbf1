"""Results tables: rows of several processes, torn lines, claims."""

import multiprocessing
from pathlib import Path

import pytest

from qkv.experiments.experiment import Cell
from qkv.experiments.table import ResultsTable


def make_cell(seed: int) -> Cell:
    return Cell(measure="toy", coordinates={}, settings={}, seed=seed)


def append_rows(path: Path, process: int) -> None:
    table = ResultsTable(path)
    for number in range(100):
        table.append({"key": f"{process}-{number}", "text": "ü" * 3000})


def test_rows_of_two_processes_are_all_there(tmp_path: Path) -> None:
    path = tmp_path / "results" / "toy.jsonl"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=append_rows, args=(path, number)) for number in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert ResultsTable(path).read().keys() == {f"{p}-{n}" for p in range(2) for n in range(100)}


def test_a_torn_line_is_ignored_and_then_removed(tmp_path: Path) -> None:
    table = ResultsTable(tmp_path / "toy.jsonl")
    table.append({"key": "a"})
    with table.path.open("a") as file:
        file.write('{"key": "b", "met')
    assert table.read() == {"a": {"key": "a"}}
    table.append({"key": "c"})
    assert table.path.read_text() == '{"key": "a"}\n{"key": "c"}\n'


def test_a_damaged_line_is_an_error(tmp_path: Path) -> None:
    table = ResultsTable(tmp_path / "toy.jsonl")
    table.path.write_text('{"key": "a"}\n[]\n{"key": "b"}\n')
    with pytest.raises(ValueError, match=r"toy\.jsonl: line 2 is not a row"):
        table.read()


def test_a_claim_excludes_other_claims_until_it_ends(tmp_path: Path) -> None:
    table = ResultsTable(tmp_path / "toy.jsonl")
    with table.claim(make_cell(0)) as first, table.claim(make_cell(0)) as second:
        assert (first, second) == (True, False)
        with table.claim(make_cell(1)) as other:
            assert other
    with table.claim(make_cell(0)) as is_mine:
        assert is_mine
    assert list(tmp_path.iterdir()) == []


def test_a_finished_cell_cannot_be_claimed(tmp_path: Path) -> None:
    table = ResultsTable(tmp_path / "toy.jsonl")
    table.append({"key": make_cell(0).key})
    with table.claim(make_cell(0)) as is_mine:
        assert not is_mine
