"""The frame of `make attack`: what fails is found, kept and repeated; and a short run of all attacks."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tools.attack.__main__ import format_table
from tools.attack.case import Case, call_in_fork
from tools.attack.registry import ATTACKS, select_attacks
from tools.attack.runner import AttackResult, run_attack, run_one_case


def raise_error(folder: Path) -> None:
    raise TypeError("a defect")


def use_memory(folder: Path) -> None:
    bytearray(1 << 30)


def start_process(folder: Path) -> None:
    """Leave a process that would write a file after this one ended."""
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    (folder / "input").write_text("3")
    print("started")
    time.sleep(60)


def attack_frame(folder: Path, rng: random.Random) -> Iterator[Case]:
    """Cases of every ending."""
    assert not any(folder.iterdir())
    number = rng.random()
    yield Case(name="passes", run=lambda _: None)
    yield Case(name="returns", run=lambda _: f"a reason {number}")
    yield Case(name="raises", run=raise_error)
    yield Case(name="dies", run=lambda _: os.kill(os.getpid(), signal.SIGKILL))
    yield Case(name="hangs", run=start_process, timeout=0.5)
    yield Case(name="grows", run=use_memory, memory=100 << 20)


def test_every_failure_is_found_and_kept(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    result = run_attack("frame", attack_frame, seed=7, seconds=60, failures=tmp_path, header="")
    assert (result.num_cases, result.num_failures, result.is_complete) == (6, 5, True)
    facts = {}
    for file in sorted(tmp_path.glob("*/case.json")):
        facts[file.parent.name] = json.loads(file.read_text("utf-8"))
    reasons = {fact["name"]: fact["reason"].splitlines()[-1] for fact in facts.values()}
    assert reasons.pop("returns").startswith("a reason 0.")
    assert reasons == {
        "raises": "TypeError: a defect",
        "dies": "killed by signal SIGKILL",
        "hangs": "did not end in time",
        "grows": "MemoryError",
    }
    hang = facts["frame-seed7-4"]
    assert hang["command"] == "python -m tools.attack --only frame --seed 7 --case 4"
    assert (tmp_path / "frame-seed7-4" / "files" / "input").read_text() == "3"
    assert (tmp_path / "frame-seed7-4" / "output.txt").read_text() == "started\n"
    assert capfd.readouterr().out.count("FAILED frame") == 5


def test_a_case_is_repeated_from_its_seed_and_number(tmp_path: Path) -> None:
    run_attack("frame", attack_frame, seed=7, seconds=0, failures=tmp_path, header="")
    assert not any(tmp_path.iterdir())  # time for one case, which passes
    reasons = {
        run_one_case("frame", attack_frame, seed=seed, index=1, failures=tmp_path)
        for seed in (7, 7, 8)
    }
    assert len(reasons) == 2
    assert run_one_case("frame", attack_frame, seed=7, index=0, failures=tmp_path) is None
    with pytest.raises(ValueError, match="--case 6: frame has fewer cases"):
        run_one_case("frame", attack_frame, seed=7, index=6, failures=tmp_path)


def test_processes_that_a_case_left_are_killed(tmp_path: Path) -> None:
    def leave_process() -> int:
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid

    process = call_in_fork(leave_process).value
    deadline = time.monotonic() + 10
    while is_running(process) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_running(process)


def is_running(process: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rsplit(")", 1)[1].split()[0] != "Z"


def test_an_attack_that_does_not_end_is_a_failure(tmp_path: Path) -> None:
    def attack(folder: Path, rng: random.Random) -> Iterator[Case]:
        yield Case(name="passes", run=lambda _: None)
        raise RuntimeError("cannot prepare")

    result = run_attack("broken", attack, seed=0, seconds=9, failures=tmp_path, header="")
    assert result.error
    assert "RuntimeError: cannot prepare" in result.error
    assert "did not end" in format_table([result])


def test_table() -> None:
    results = [AttackResult("a", 12, 3.0, 1, True), AttackResult("bombs", 5, 2.2, 0, False)]
    assert format_table(results).splitlines() == [
        "attack     cases   seconds      failures",
        "a            12*         3             1",
        "bombs         5          2             0",
        "total        17          5             1",
        "* every case of the attack was run",
    ]


def test_select_attacks() -> None:
    assert select_attacks(None) == ATTACKS
    assert select_attacks(["disk"]).keys() == {
        name for name, entry in ATTACKS.items() if entry.group == "disk"
    }
    for name in ATTACKS:  # the command that repeats a case selects one attack
        assert [*select_attacks([name])] == [name]
    with pytest.raises(ValueError, match="--only nothing: expected groups"):
        select_attacks(["nothing"])


def test_a_short_run_of_all_attacks(tmp_path: Path) -> None:
    """At least one case of every attack; the seed is fixed, so that a failure stays."""
    command = [sys.executable, "-m", "tools.attack", "--seed", "1", "--minutes", "0.05"]
    result = subprocess.run(
        [*command, "--failures", str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    for name in ATTACKS:
        assert f"{name}: 0 cases" not in result.stdout
        assert f"{name}: " in result.stdout
