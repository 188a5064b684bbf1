"""Staged writing: whatever interrupts a save, the folder holds all old files or all new ones."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from qkv.staging import (
    MANIFEST_FILE,
    check_new_folder,
    finish_save,
    read_folder,
    sweep,
    write_file,
    write_folder,
)
from tests.support.errors import assert_error
from tools.attack.file_events import fork, run_at_every_event, run_with_fault

OLD = {"a": "old", "b": "old", "sub/d": "old"}
NEW = {"a": "new", "c": "new", "other/e": "new"}
NOTES = {"notes.txt": "mine", "sub/mine": "mine"}


def replace_all(folder: Path, names: Collection[str]) -> list[str]:
    return [name for name in {*OLD, *NEW} if (folder / name).exists()]


def write(folder: Path, files: dict[str, str]) -> None:
    with write_folder(folder, replace_all) as staged:
        for name, text in files.items():
            (staged / name).parent.mkdir(exist_ok=True)
            (staged / name).write_text(text)


def read(folder: Path) -> dict[str, str]:
    with read_folder(folder):
        return {
            path.relative_to(folder).as_posix(): path.read_text()
            for path in folder.rglob("*")
            if path.is_file() and not path.relative_to(folder).parts[0].startswith(".qkv-save-")
        }


def make_reset(folder: Path, *contents: dict[str, str]) -> Callable[[], None]:
    def reset() -> None:
        shutil.rmtree(folder.parent)
        folder.parent.mkdir()
        for files in contents:
            write(folder, files)
        for name, text in NOTES.items():
            if (folder / name).parent.is_dir():
                (folder / name).write_text(text)

    return reset


@pytest.fixture
def folder(memory_path: Path) -> Path:
    """A missing folder in a folder of its own."""
    (memory_path / "parent").mkdir()
    return memory_path / "parent" / "folder"


def test_a_save_over_another_is_all_or_nothing(folder: Path) -> None:
    outcomes = []
    reset = make_reset(folder, OLD)
    for ending in run_at_every_event(lambda: write(folder, NEW), folder.parent, reset=reset):
        content = read(folder)
        assert content in (OLD | NOTES, NEW | NOTES), ending.names
        outcomes.append("new" if "c" in content else "old")
        write(folder, OLD)
        assert read(folder) == OLD | NOTES
        assert sorted(os.listdir(folder)) == ["a", "b", "notes.txt", "sub"]
        assert os.listdir(folder.parent) == ["folder"]
    assert outcomes == sorted(outcomes, key=["old", "new"].index)
    assert {*outcomes} == {"old", "new"}


@pytest.mark.parametrize("start", ["missing", "empty", "deep"])
def test_a_save_into_a_new_folder_is_all_or_nothing(folder: Path, start: str) -> None:
    target = folder / "x" / "y" if start == "deep" else folder

    def reset() -> None:
        make_reset(folder)()
        if start == "empty":
            folder.mkdir()

    for ending in run_at_every_event(lambda: write(target, NEW), folder.parent, reset=reset):
        assert not target.exists() or read(target) in ({}, NEW), ending.names
        write(target, NEW)
        assert read(target) == NEW
        assert os.listdir(folder.parent) == ["folder"]
        assert not any(folder.rglob(".qkv*"))


@pytest.mark.parametrize(("code", "persistent"), [("ENOSPC", False), ("EIO", True)])
def test_an_error_keeps_the_old_files_and_the_message_is_true(
    folder: Path, code: str, persistent: bool
) -> None:
    endings = run_at_every_event(
        lambda: write(folder, NEW), folder.parent, code,
        reset=make_reset(folder, OLD), persistent=persistent,
    )  # fmt: skip
    messages = set()
    for ending in endings:
        is_old = not os.path.lexists(folder / MANIFEST_FILE) and read(folder) == OLD | NOTES
        if not ending.error:
            assert read(folder) == NEW | NOTES
        elif "its files are unchanged" in ending.error:
            assert is_old
        else:
            assert "saved, but not finished" in ending.error
            assert read(folder) == NEW | NOTES
        messages.add(ending.error.partition(": [")[0])
        write(folder, OLD)
        assert sorted(os.listdir(folder)) == ["a", "b", "notes.txt", "sub"]
    assert len(messages) == 3


def test_an_error_in_a_new_folder_leaves_nothing(folder: Path) -> None:
    for ending in run_at_every_event(
        lambda: write(folder / "x", NEW), folder.parent, "ENOSPC", reset=make_reset(folder)
    ):
        if "not written" in ending.error:
            assert not folder.exists(), ending
        else:
            assert read(folder / "x") == NEW


def test_a_killed_reader_finishes_a_save_too(folder: Path) -> None:
    def interrupt() -> None:
        make_reset(folder, OLD)()
        interrupt_after_commit(folder)

    for _ in run_at_every_event(lambda: read(folder), folder, reset=interrupt):
        assert read(folder) == NEW | NOTES


def test_a_save_without_its_last_step_removes_no_new_file(folder: Path) -> None:
    make_reset(folder, OLD)()
    event = run_with_fault(lambda: write(folder, NEW), folder, -1).names.index(
        f"os.remove {MANIFEST_FILE}"
    )
    make_reset(folder, OLD)()
    run_with_fault(lambda: write(folder, NEW), folder, event)
    assert (folder / MANIFEST_FILE).exists()
    (folder / "b").write_text("mine")  # a name that the save removed
    assert read(folder) == NEW | NOTES | {"b": "mine"}


def test_an_interrupted_save_in_a_read_only_folder_is_an_error(folder: Path) -> None:
    write(folder, OLD)
    interrupt_after_commit(folder)
    ending = run_with_fault(lambda: read(folder), folder, 0, "EROFS", persistent=True)
    assert ending.error.startswith(f"ValueError: {folder}: a save was interrupted")
    assert "load it once where it is writable" in ending.error
    assert read(folder) == NEW


def interrupt_after_commit(folder: Path) -> None:
    """Kill a save after its manifest is written, before a file is moved."""
    copy = folder.parent / "copy"
    write(copy, OLD)
    names = run_with_fault(lambda: write(copy, NEW), copy, -1).names
    shutil.rmtree(copy)
    commit = next(i for i, name in enumerate(names) if name.endswith(f" {MANIFEST_FILE}"))
    run_with_fault(lambda: write(folder, NEW), folder, commit + 2)
    assert (folder / MANIFEST_FILE).exists()


@pytest.mark.parametrize(
    "change",
    [
        {"staging": "../x"}, {"staging": 3}, {"remove": ["../a"]}, {"remove": ["/etc/x"]}, {"move": 1},
        {"move": [""]}, {"move": ["x/../../a"]}, {"remove": ["link/a"]}, {"move": ["\0"]},
    ],
)  # fmt: skip
def test_a_manifest_cannot_lead_out_of_the_folder(folder: Path, change: dict[str, object]) -> None:
    write(folder, OLD)
    (folder.parent / "a").write_text("outside")
    (folder / "link").symlink_to("..")
    interrupt_after_commit(folder)
    manifest = json.loads((folder / MANIFEST_FILE).read_text())
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest | change))
    assert_error(lambda: finish_save(folder), "not a manifest of a save")
    assert (folder.parent / "a").read_text() == "outside"
    shutil.rmtree(folder / manifest["staging"])
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest))
    assert_error(lambda: finish_save(folder), "is missing", "copy both again")


def test_a_staging_folder_cannot_lead_out_of_the_folder(folder: Path) -> None:
    write(folder, OLD)
    interrupt_after_commit(folder)
    staging = folder / json.loads((folder / MANIFEST_FILE).read_text())["staging"]
    staging.rename(folder.parent / "outside")
    staging.symlink_to("../outside")
    assert_error(lambda: finish_save(folder), "leads out of the folder")
    assert (folder.parent / "outside" / "files" / "a").read_text() == "new"


def test_a_file_in_the_way_is_an_error_before_anything_is_moved(folder: Path) -> None:
    write(folder, OLD)
    (folder / "c").mkdir()
    assert_error(lambda: write(folder, NEW), "in the way of a file")
    (folder / "c").rmdir()
    (folder / "other").write_text("mine")
    assert_error(lambda: write(folder, NEW), "in the way of a file")
    assert read(folder) == OLD | {"other": "mine"}
    assert not [*folder.glob(".qkv*")]


def test_a_file_of_others_is_not_replaced(folder: Path) -> None:
    folder.mkdir()
    (folder / "a").write_text("mine")
    with pytest.raises(ValueError, match="a would be replaced"), write_folder(folder) as staged:
        (staged / "a").write_text("new")
    assert read(folder) == {"a": "mine"}
    with write_folder(folder) as staged:
        (staged / "b").write_text("new")
    assert read(folder) == {"a": "mine", "b": "new"}


def test_links_and_the_current_folder_are_written_in_place(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir()
    (folder.parent / "link").symlink_to("folder")
    write(folder.parent / "link", OLD)
    assert (folder.parent / "link").is_symlink()
    inode = folder.stat().st_ino
    monkeypatch.chdir(folder)
    write(Path(), NEW)
    assert read(folder) == NEW
    assert folder.stat().st_ino == inode


def test_the_staging_folder_of_a_live_process_stays(folder: Path) -> None:
    folder.mkdir()
    foreign = [".qkv-save-notes", ".qkv-save-0123456789abcdef"]
    for name in foreign:
        (folder / name).mkdir()
        (folder / name / "mine").write_text("mine")
    with write_folder(folder, replace_all) as staged:
        (staged / "a").write_text("1")
        sweep(folder)
        assert (staged / "a").exists()
        write(folder, {"b": "2"})
    assert read(folder).keys() == {"a"}  # the last save replaces the other
    assert {path.name for path in folder.glob(".qkv*")} == {*foreign}


def test_a_killed_save_leaves_a_folder_that_counts_as_empty(folder: Path) -> None:
    folder.mkdir()
    run_with_fault(lambda: write(folder, NEW), folder, 4)
    assert os.listdir(folder)
    check_new_folder(folder)
    assert not os.listdir(folder)
    (folder / "mine").write_text("")
    with pytest.raises(ValueError, match="expected a new or an empty folder"):
        check_new_folder(folder)


def test_two_savers_and_readers(folder: Path) -> None:
    """Each reader meets the whole files of one save; each save succeeds."""
    names = [f"file{i}" for i in range(5)]
    marks = {*names}

    def save_all(saver: int) -> None:
        for i in range(30):
            saved_names = names[: 3 + (i + saver) % 3]
            with write_folder(folder, lambda folder, _: marks & {*os.listdir(folder)}) as staged:
                for name in saved_names:
                    (staged / name).write_text(f"{saver} {i} {len(saved_names)}")

    children = [fork(lambda saver=saver: save_all(saver)) for saver in range(2)]  # type: ignore[misc]
    num_reads = 0
    contents = set()
    deadline = time.monotonic() + 60
    running = set(children)
    while running and time.monotonic() < deadline:
        for child in [*running]:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                assert status == 0
                running.remove(child)
        if folder.exists():
            content = read(folder)
            values = {*content.values()}
            assert len(values) == 1, content
            assert len(content) == int(values.pop().split()[-1])
            contents |= {*content.values()}
            num_reads += 1
    assert not running
    assert num_reads > 5
    assert len(contents) > 2
    assert not [*folder.glob(".qkv*")]


def test_write_file_is_all_or_nothing(folder: Path) -> None:
    path = folder / "a.svg"

    def reset() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        path.write_text("old")
        path.chmod(0o640)

    def change() -> None:
        with write_file(path) as temporary:
            temporary.write_text("new")

    for fault in ("kill", "ENOSPC"):
        for ending in run_at_every_event(change, folder, fault, reset=reset):
            assert (
                path.read_text() == "old" if ending.reached and not is_done(ending.names) else "new"
            )
            assert not ending.error or ("unchanged" in ending.error and path.read_text() == "old")
            change()
            assert os.listdir(folder) == ["a.svg"]
            assert path.stat().st_mode & 0o777 == 0o640


def is_done(names: list[str]) -> bool:
    """Return whether the rename was not the last event, so that it was made."""
    return any(name.startswith("os.rename") for name in names[:-1])


def test_write_file_follows_a_link_and_can_refuse_an_old_file(folder: Path) -> None:
    folder.mkdir()
    (folder / "target").write_text("old")
    (folder / "link").symlink_to("target")
    with write_file(folder / "link") as temporary:
        temporary.write_text("new")
    assert (folder / "link").is_symlink()
    assert (folder / "target").read_text() == "new"
    with (
        pytest.raises(ValueError, match="already exists"),
        write_file(folder / "target", exist_ok=False) as temporary,
    ):
        temporary.write_text("newer")
    assert (folder / "target").read_text() == "new"
