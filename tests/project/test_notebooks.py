"""The notebooks run from top to bottom, and what they train learns."""

import json
from typing import Any

import pytest

from tests.conftest import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"__name__": "notebook"}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            assert not cell["outputs"], "a notebook is kept without what it printed"
            exec(compile("".join(cell["source"]), path.name, "exec"), names)
    falls = [line.split(" -> ") for line in capsys.readouterr().out.splitlines() if " -> " in line]
    assert falls
    assert all(float(last) < float(first) for first, last in falls)
