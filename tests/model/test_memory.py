"""Models that do not fit into the memory are refused before they are built."""

from __future__ import annotations

from pathlib import Path

import pytest

import qkv
from qkv.cli import main
from qkv.model import memory
from tests.support.errors import assert_error
from tests.support.limits import get_error_message


def test_a_model_larger_than_the_memory() -> None:
    message = get_error_message(
        lambda: qkv.build("gpt2", width=100_000, depth=2, heads=2, device="cpu")
    )
    assert "parameters: " in message
    assert "that are available; choose smaller sizes" in message


def test_available_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    available = memory.get_available_memory()
    if available is None:
        pytest.skip("no /proc")
    (tmp_path / "max").write_text("5000000\n")
    (tmp_path / "current").write_text("4000000\n")
    files = (str(tmp_path / "max"), str(tmp_path / "current"))
    monkeypatch.setattr(memory, "CGROUP_FILES", (("/none", "/none"), files))
    assert memory.get_available_memory() == min(available, 1_000_000)
    memory.check_memory(900_000, "it", "no advice")
    words = ("it: 1.10 MB of memory", "the 1.00 MB that are available; train less")
    assert_error(lambda: memory.check_memory(1_100_000, "it", "train less"), *words)
    monkeypatch.setattr(memory, "get_available_memory", lambda: None)
    memory.check_memory(10**18, "it", "no advice")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes."),
        RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"),
    ],
)
def test_a_failed_allocation_is_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("qkv.tasks.registry.create_task", fail)
    assert main(["complete", "hello"]) == 2
    assert capsys.readouterr().err.startswith("qkv: out of memory (")


def test_other_errors_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr("qkv.tasks.registry.create_task", fail)
    with pytest.raises(RuntimeError, match="a defect"):
        main(["complete", "hello"])
