"""Results tables: rows of several processes, torn lines, claims."""

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from qkv.experiments.experiment import Cell
from qkv.experiments.table import ResultsTable


def make_cell(seed: int) -> Cell:
    return Cell(measure="toy", coordinates={}, settings={}, seed=seed)


def make_row(key: str, **changes: Any) -> dict[str, Any]:
    columns = dict(measure="toy", coordinates={}, metrics={}, points=[], device="cpu")
    return {"key": key} | columns | changes


def append_rows(path: Path, process: int) -> None:
    table = ResultsTable(path)
    for number in range(100):
        table.append(make_row(f"{process}-{number}", text="ü" * 3000))


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
    table.append(make_row("a"))
    first = table.path.read_text()
    with table.path.open("a") as file:
        file.write('{"key": "b", "met')
    assert table.read() == {"a": make_row("a")}
    table.append(make_row("c"))
    assert table.path.read_text() == first + json.dumps(make_row("c")) + "\n"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("[]", "not an object"),
        ('{"key": "b"}', "measure is missing"),
        ('{"key": "b", "met', "Unterminated string"),
        (json.dumps(make_row("b", metrics=3)), "metrics is 3"),
        (json.dumps(make_row("b", points=[1])), r"points is \[1\]"),
    ],
)
def test_a_damaged_line_is_an_error(line: str, problem: str, tmp_path: Path) -> None:
    table = ResultsTable(tmp_path / "toy.jsonl")
    good = [json.dumps(make_row(key)) for key in "ac"]
    table.path.write_text("\n".join([good[0], line, good[1], ""]))
    expected = rf"toy\.jsonl: line 2 is not a row of a results table \({problem}.*\); remove it"
    with pytest.raises(ValueError, match=expected) as error:
        table.read()
    assert "\n" not in str(error.value)


def test_a_claim_excludes_other_claims_until_it_ends(tmp_path: Path) -> None:
    table = ResultsTable(tmp_path / "toy.jsonl")
    with table.claim(make_cell(0)) as first, table.claim(make_cell(0)) as second:
        assert (first, second) == (True, False)
        with table.claim(make_cell(1)) as other:
            assert other
    with table.claim(make_cell(0)) as is_mine:
        assert is_mine
    assert list(tmp_path.iterdir()) == []


def test_a_claim_without_a_row_leaves_no_folder_behind(tmp_path: Path) -> None:
    table = ResultsTable(tmp_path / "new" / "results" / "toy.jsonl")
    with table.claim(make_cell(0)):
        assert table.path.parent.exists()
    assert list(tmp_path.iterdir()) == []
    table.path.parent.mkdir(parents=True)
    with table.claim(make_cell(0)):
        pass
    assert table.path.parent.exists()  # not of the claim
    with table.claim(make_cell(0)):
        table.append(make_row("a"))
    assert list(table.path.parent.iterdir()) == [table.path]


def test_a_finished_cell_cannot_be_claimed(tmp_path: Path) -> None:
    table = ResultsTable(tmp_path / "toy.jsonl")
    table.append(make_row(make_cell(0).key))
    with table.claim(make_cell(0)) as is_mine:
        assert not is_mine
