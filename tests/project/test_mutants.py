"""tools/mutants.py: its table fits the code, and it tells mutants that tests catch from survivors."""

import subprocess
import sys
from pathlib import Path

import pytest

from tools import mutants
from tools.mutants import TABLE, Mutant

KNOWN = next(row for row in TABLE if row.name == "causal-excludes-self")
FIRST_IMPORT = "from __future__ import annotations"
NO_EFFECT = Mutant(
    "no-effect", "spec/patterns.py", FIRST_IMPORT, f"{FIRST_IMPORT}  # changed", KNOWN.tests
)


def test_every_mutant_applies() -> None:
    assert mutants.find_table_errors(TABLE) == []
    assert len(TABLE) >= 150


def test_a_mutant_that_no_longer_applies_is_named() -> None:
    rows = [
        NO_EFFECT._replace(name="gone", old="no such text"),
        NO_EFFECT._replace(name="often", old="def "),
        NO_EFFECT._replace(name="nowhere", file="no.py"),
        NO_EFFECT._replace(name="the same", new=NO_EFFECT.old),
        NO_EFFECT._replace(name="no code", new='"""'),
        NO_EFFECT._replace(name="untested", tests="patterns:nothing"),
        NO_EFFECT,
        NO_EFFECT,
    ]
    errors = mutants.find_table_errors(rows)
    names = [row.name for row in rows if row is not NO_EFFECT]
    assert [error.split(":")[0] for error in errors] == [*names, "no-effect"]


def run_python(*arguments: str) -> str:
    """Return the output of a new Python process; a test process must not fork."""
    command = [sys.executable, *arguments]
    result = subprocess.run(
        command, cwd=mutants.ROOT, capture_output=True, text=True, timeout=200, check=True
    )
    return result.stdout


def test_a_known_mutant_is_caught() -> None:
    output = run_python("tools/mutants.py", "--only", KNOWN.name, "--jobs", "1")
    assert mutants.expand_test_id(KNOWN.tests) in output
    assert "1 of 1 caught" in output


def test_a_mutant_without_effect_survives(tmp_path: Path) -> None:
    """A test that fails without the mutant too does not count."""
    mutants.copy_repository(mutants.ROOT, tmp_path)
    (tmp_path / "tests" / "test_bad.py").write_text(
        "def test_bad() -> None:\n    raise AssertionError\n"
    )
    attempt = f"mutants.run_mutant(NO_EFFECT, Path({str(tmp_path)!r}), ['tests/test_bad.py'])"
    imports = "from pathlib import Path; from tests.project.test_mutants import NO_EFFECT, mutants"
    code = f"{imports}; print({attempt}[1:3])"
    assert run_python("-c", code).strip() == str(
        ("SURVIVED", "tests/test_bad.py::test_bad fails without a mutant too")
    )


TEST_ID = "tests/families/test_xl.py::test_outputs_and_gradients_match_the_reference[xl-base]"


@pytest.mark.parametrize(
    ("status", "output", "word"),
    [
        (1, f"FAILED {TEST_ID} - AssertionError: hidden", "caught"),
        (1, f"FAILED {TEST_ID}", "caught"),
        (1, f"FAILED {TEST_ID} - NameError: name 'w'", "NOT RUN"),
        (1, f"ERROR {TEST_ID} - AssertionError", "NOT RUN"),
        (1, "NOT RUN: ImportError: no such module", "NOT RUN"),
        (2, "ERROR tests/families/test_xl.py", "NOT RUN"),
        (4, "ERROR: not found", "NOT RUN"),
        (5, "no tests ran", "NOT RUN"),
        (0, "1 passed", "SURVIVED"),
        (124, "more than 120 s", "SURVIVED"),
    ],
)
def test_only_a_failing_test_catches_a_mutant(status: int, output: str, word: str) -> None:
    assert mutants.classify_run(status, output)[0] == word
