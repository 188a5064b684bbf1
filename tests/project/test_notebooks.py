"""The notebooks run from top to bottom, and their training losses fall."""

import json
from typing import Any

import pytest

from tests.conftest import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, Any] = {"__name__": "notebook"}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            assert not cell["outputs"], "expected a notebook without outputs"
            exec(compile("".join(cell["source"]), path.name, "exec"), namespace)
    losses = [line.split(" -> ") for line in capsys.readouterr().out.splitlines() if " -> " in line]
    assert losses
    assert all(float(last) < float(first) for first, last in losses)
