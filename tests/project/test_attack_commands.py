"""Random command lines and recipes: a short run with a fixed seed, and what the attack calls a failure."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path

import pytest

from tools.attack.case import run_case
from tools.attack.commands import attack_commands, attack_recipes, judge

COUNT = 20  # cases of each kind; `make attack` runs thousands


@pytest.mark.parametrize("attack", [attack_commands, attack_recipes], ids=lambda f: f.__name__)
def test_hostile_settings_end_with_one_line(tmp_path: Path, attack: object) -> None:
    (tmp_path / "shared").mkdir()
    cases = attack(tmp_path / "shared", random.Random("16"))  # type: ignore[operator]
    for index, case in enumerate(islice(cases, COUNT)):
        folder = tmp_path / f"case{index}"
        folder.mkdir()
        reason, _ = run_case(case, folder, tmp_path / "output.txt")
        assert reason is None, f"{case.name}: {reason}"


def test_judge() -> None:
    assert judge(0, "", []) is None
    assert judge(0, "wrote out.svg\n", ["out.svg"]) is None
    assert judge(2, "qkv: warning: slow\nqkv: --x: unknown\n", []) is None
    for status, text, files in (
        (1, "", []),
        (-6, "", []),
        (2, "", []),
        (2, "qkv: a\nqkv: b\n", []),
        (2, "error: a\n", []),
        (0, "Traceback (most recent call last):\n", []),
        (2, f"qkv: {'x' * 6000}\n", []),
        (2, "qkv: \x1b[31m\n", []),
        (2, "qkv: a\n", ["half.npy"]),
    ):
        assert judge(status, text, files), (status, text, files)
