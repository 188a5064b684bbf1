"""Staged writing: the files of a save replace the former ones in one step, or not at all. Knows no
model.

    FOLDER/.qkv-save-0123456789abcdef/   the staging folder of one save, locked by its process
        files/                           the new files; on disk before the manifest
    FOLDER/.qkv-manifest.json            the commit point: files to remove, and to move into place

A save that ends before the manifest changes nothing; one that ends after it is finished by the next
reader or save of the folder. A new folder is staged beside its place and renamed. A lock of the
folder (`flock`) is shared by readers and exclusive for the moves. A file system without locks still
gives one save at a time all or nothing."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from qkv.files import format_error, read_json_object, save_json, sync_file

MANIFEST_FILE = ".qkv-manifest.json"
STAGING_NAME = re.compile(r"\.qkv-save-[0-9a-f]{16}")
FILES_FOLDER = "files"
# Called with the folder and the names of the new files before they replace old ones. Returns the
# names of old files to remove; raises ValueError if a file in the way must not be replaced.
ReplaceRule = Callable[[Path, Collection[str]], Collection[str]]


def replace_nothing(folder: Path, names: Collection[str]) -> Collection[str]:
    """Raise ValueError if a new file has the name of a file in the folder; remove nothing."""
    existing = [name for name in sorted(names) if os.path.lexists(folder / name)]
    if existing:
        listed = ", ".join(existing[:6]) + (" and more" if len(existing) > 6 else "")
        raise ValueError(
            f"{folder}: not written, because {listed} would be replaced, which no save wrote there; "
            "move the old files away, or choose another folder"
        )
    return []


@dataclass
class Stage:
    """The staging folder of a save, and how far the save has come."""

    path: Path
    state: Literal["staged", "committed", "renamed"] = "staged"

    @property
    def files(self) -> Path:
        """The folder of the new files."""
        return self.path / FILES_FOLDER


@contextmanager
def write_folder(target: Path, rule: ReplaceRule = replace_nothing) -> Iterator[Path]:
    """Yield a staging folder whose files are moved into `target` in one step after the block.

    Other files of `target` stay. Inside another staging folder, the block writes into it directly."""
    if any(STAGING_NAME.fullmatch(part) for part in target.parts):
        target.mkdir(parents=True, exist_ok=True)
        yield target
        return
    folder = Path(os.path.realpath(target))
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{target}: a file; expected a folder")
    parent = next(path for path in (folder, *folder.parents) if path.is_dir())
    if not os.access(parent, os.W_OK):
        raise ValueError(f"{target}: {parent} is not writable; expected a writable folder")
    new_parents = [path for path in folder.parents if not path.exists()]
    stage = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        for path in (folder, folder.parent):
            sweep(path)
        with _open_stage(folder if folder.is_dir() else folder.parent) as stage:
            yield stage.files
            _sync_tree(stage.files)
            if folder.is_dir() or not _publish_new(stage, folder):
                _publish(stage, folder, rule)
    except OSError as error:
        message = {
            "staged": "not written, its files are unchanged: {}",
            "committed": "saved, but not finished: {}; the next load or save of this folder finishes it",
            "renamed": "written, but perhaps not on disk: {}",
        }[stage.state if stage else "staged"]
        raise OSError(f"{target}: {message.format(format_error(error))}") from error
    finally:
        for path in new_parents:
            with suppress(OSError):  # not empty
                path.rmdir()


@contextmanager
def write_file(path: Path, *, exist_ok: bool = True) -> Iterator[Path]:
    """Yield a temporary path, with the suffix of `path`, whose file replaces `path` after the block.

    The permissions of an old file are kept; with `exist_ok=False`, an old file is an error."""
    target = Path(os.path.realpath(path))
    sweep(target.parent)
    try:
        with _open_stage(target.parent) as stage:
            temporary = stage.files / path.name
            yield temporary
            if not exist_ok and os.path.lexists(target):
                raise ValueError(f"{path}: already exists; not written")
            if target.exists():
                temporary.chmod(stat.S_IMODE(target.stat().st_mode))
            sync_file(temporary)
            temporary.replace(target)
    except OSError as error:
        unchanged = ", the old file is unchanged" if target.exists() else ""
        raise OSError(f"{path}: not written{unchanged}: {format_error(error)}") from error


@contextmanager
def read_folder(folder: Path) -> Iterator[None]:
    """Keep saves from changing a folder inside the block; finish one that was interrupted."""
    if not folder.is_dir():
        yield
        return
    while True:
        with _lock(folder, shared=True):
            if not os.path.lexists(folder / MANIFEST_FILE):
                yield
                return
        finish_save(folder)


def finish_save(folder: Path) -> None:
    """Move the files of an interrupted save into place, if there is one."""
    if not os.path.lexists(folder / MANIFEST_FILE):
        return
    try:
        with _lock(folder):
            _move_files(folder)
    except OSError as error:
        raise ValueError(
            f"{folder}: a save was interrupted, and its files cannot be moved into place: "
            f"{format_error(error)}; load it once where it is writable"
        ) from None


def sweep(folder: Path) -> None:
    """Finish an interrupted save of a folder, and remove what killed saves left in it.

    The staging folder of a process that is alive is locked, and stays."""
    with (
        suppress(OSError, ValueError),
        _lock(folder, wait=False) as is_locked,
    ):
        if not is_locked:
            return
        _move_files(folder)
        for path in folder.iterdir():
            if STAGING_NAME.fullmatch(path.name) and not path.is_symlink() and path.is_dir():
                with suppress(OSError), _lock(path, wait=False) as is_dead:
                    if is_dead and {*os.listdir(path)} <= {FILES_FOLDER, MANIFEST_FILE}:
                        shutil.rmtree(path)


def check_new_folder(target: Path) -> None:
    """Raise ValueError unless `target` is missing or an empty folder, after a sweep."""
    if target.is_dir():
        sweep(target)
    if os.path.lexists(target) and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"{target}: already exists; expected a new or an empty folder")


# --- steps of a save ---


@contextmanager
def _open_stage(parent: Path) -> Iterator[Stage]:
    """Yield a new, locked staging folder; remove it after the block, unless a manifest needs it."""
    while True:
        stage = Stage(parent / f".qkv-save-{secrets.token_hex(8)}")
        stage.path.mkdir()
        with ExitStack() as stack:
            try:
                stack.enter_context(_lock(stage.path))
                stage.files.mkdir()
            except FileNotFoundError:  # a sweep was faster than the lock
                continue
            except OSError:
                shutil.rmtree(stage.path, ignore_errors=True)
                raise
            try:
                yield stage
            finally:
                if stage.state != "committed":
                    shutil.rmtree(stage.path, ignore_errors=True)
            return


def _publish_new(stage: Stage, folder: Path) -> bool:
    """Rename the new files to a folder; return False if another save has made it meanwhile."""
    try:
        stage.files.rename(folder)
    except OSError:
        if folder.is_dir():
            return False
        raise
    stage.state = "renamed"
    sync_file(folder.parent)
    return True


def _publish(stage: Stage, folder: Path, rule: ReplaceRule) -> None:
    """Commit the new files of an existing folder, and move them into place."""
    if stage.path.parent != folder:
        stage.path = stage.path.rename(folder / stage.path.name)
    names = [
        path.relative_to(stage.files).as_posix()
        for path in sorted(stage.files.rglob("*"))
        if path.is_file()
    ]
    with _lock(folder):
        _move_files(folder)  # of another save, which was interrupted
        stale = sorted({*rule(folder, names)} - {*names})
        for name in names:
            if (folder / name).is_dir() or not _is_inside(folder, name):
                raise ValueError(
                    f"{folder / name}: in the way of a file; move it away; not written"
                )
        manifest = stage.path / MANIFEST_FILE
        save_json({"staging": stage.path.name, "remove": stale, "move": names}, manifest)
        sync_file(manifest)
        manifest.rename(folder / MANIFEST_FILE)
        stage.state = "committed"
        sync_file(folder)
        _move_files(folder)


def _move_files(folder: Path) -> None:
    """Do what the manifest of a folder says, from where it was interrupted; the folder is locked."""
    path = folder / MANIFEST_FILE
    if not os.path.lexists(path):
        return
    staging, stale, names = _read_manifest(path)
    remaining = [name for name in names if os.path.lexists(staging / FILES_FOLDER / name)]
    parents = {(folder / name).parent for name in (*remaining, *stale)}
    for name in stale if remaining else ():  # after the last move, the names may be of others
        (folder / name).unlink(missing_ok=True)
    for name in remaining:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # without locks, another process may have moved it
            (staging / FILES_FOLDER / name).replace(folder / name)
    for parent in parents - {folder}:
        if parent.is_dir() and not any(parent.iterdir()):
            parent.rmdir()
        elif parent.is_dir():
            sync_file(parent)
    sync_file(folder)
    path.unlink(missing_ok=True)
    shutil.rmtree(staging, ignore_errors=True)


def _read_manifest(path: Path) -> tuple[Path, list[str], list[str]]:
    """Return the staging folder, the names to remove and the names to move; all inside the folder."""
    manifest = read_json_object(path)
    staging, stale, names = (manifest.get(key) for key in ("staging", "remove", "move"))
    if (
        not isinstance(staging, str)
        or not STAGING_NAME.fullmatch(staging)
        or not isinstance(stale, list)
        or not isinstance(names, list)
        or not all(_is_inside(path.parent, name) for name in (*stale, *names))
    ):
        raise ValueError(f"{path}: not a manifest of a save; remove it, or copy the folder again")
    staged = f"{staging}/{FILES_FOLDER}"
    if not all(_is_inside(path.parent, f"{staged}/{name}") for name in names):
        raise ValueError(
            f"{path.parent / staged}: leads out of the folder; remove it and {path.name}"
        )
    if not (path.parent / staged).is_dir():
        raise ValueError(
            f"{path}: of an interrupted save, whose folder {staging} is missing; copy both again"
        )
    return path.parent / staging, stale, names


def _is_inside(folder: Path, name: object) -> bool:
    """Return whether a file of this name is in the folder, or in a real folder in it."""
    if not isinstance(name, str) or not name or "\0" in name:
        return False
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts:
        return False
    parents = [folder / parent for parent in path.parents[:-1]]
    return all(x.is_dir() and not x.is_symlink() for x in parents if os.path.lexists(x))


def _sync_tree(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder, folder.parent):
        sync_file(path)


@contextmanager
def _lock(folder: Path, *, shared: bool = False, wait: bool = True) -> Iterator[bool]:
    """Lock a folder; yield whether it is locked, or cannot be locked by anyone.

    Without `wait`, False is yielded if another process has the lock or if there are no locks."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:
        yield wait
        return
    import fcntl  # not on Windows, where a folder cannot be opened

    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        try:
            fcntl.flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)
            is_locked = True
        except OSError:  # locked by another process, or a file system without locks
            is_locked = wait
        yield is_locked
    finally:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # also for processes forked in between
        os.close(descriptor)
