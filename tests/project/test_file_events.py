"""The harness of faults: it reports each change of a folder, and its faults come before the change."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools.attack.file_events import run_at_every_event, run_with_fault


def change(folder: Path) -> None:
    """Make one file event of each kind."""
    (folder / "sub").mkdir()
    with (folder / "sub" / "file").open("wb") as file:
        file.write(b"1")
        file.flush()
        os.fsync(file)
    (folder / "sub" / "file").replace(folder / "file")
    os.link(folder / "file", folder / "link")
    (folder / "link").unlink()
    (folder / "file").read_bytes()
    (folder.parent / "outside").write_text("2")
    shutil.rmtree(folder / "sub")


EVENTS = [
    "os.mkdir sub", "open sub/file", "os.fsync sub/file", "os.rename sub/file file",
    "os.link file link", "os.remove link", "os.rmdir sub",
]  # fmt: skip


def test_events_are_reported_in_order(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    ending = run_with_fault(lambda: change(tmp_path / "a"), tmp_path / "a", -1)
    assert ending == (-1, EVENTS, 0, "")


def test_a_kill_at_every_event(tmp_path: Path) -> None:
    folder = tmp_path / "a"

    def reset() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()

    states = []
    for ending in run_at_every_event(lambda: change(folder), folder, reset=reset):
        assert ending.signal == (9 if ending.reached else 0)
        assert ending.names == EVENTS[: ending.event + 1]
        states.append(sorted(path.name for path in folder.iterdir()))
    assert states == [
        [], ["sub"], ["sub"], ["sub"], ["file", "sub"], ["file", "link", "sub"], ["file", "sub"],
        ["file"],
    ]  # fmt: skip


def test_an_error_is_raised_once_or_from_an_event_on(tmp_path: Path) -> None:
    for persistent in (False, True):
        folder = tmp_path / str(persistent)
        folder.mkdir()

        def make_folders(folder: Path = folder) -> None:
            (folder / "a").mkdir()
            try:
                (folder / "b").mkdir()
            finally:
                (folder / "c").mkdir()

        ending = run_with_fault(make_folders, folder, 1, "ENOSPC", persistent=persistent)
        assert ending.names == ["os.mkdir a", "os.mkdir b", "os.mkdir c"]
        assert ending.error.startswith("OSError: [Errno 28]")
        assert (folder / "a").exists()
        assert not (folder / "b").exists()
        assert (folder / "c").exists() != persistent


def test_a_module_runs_with_a_fault(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.attack.file_events", str(tmp_path), "0", "kill"]
    command += ["-m", "zipfile", "-c", str(tmp_path / "a.zip"), __file__]
    assert subprocess.run(command, check=False).returncode == -9
    assert not any(tmp_path.iterdir())
