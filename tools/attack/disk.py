"""Full disks and I/O errors while a model is saved: the folder holds the old model or the new one.

After an error, the folder must hold what was there before, without any file that is new, and the same
save must succeed when the disk works again. A save that raises no error must have written the new model."""

from __future__ import annotations

import ctypes
import os
import random
import resource
import subprocess
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path

from tools.attack.case import Case
from tools.attack.file_events import run_with_fault
from tools.attack.saved_model import SAVES, SavedModels, restore_folder

FAULTS = ("ENOSPC", "EIO", "EROFS", "EACCES")
BLOCK = 4096
CLONE_NEWUSER, CLONE_NEWNS = 0x10000000, 0x00020000


def attack_save_with_errors(folder: Path, rng: random.Random) -> Iterator[Case]:
    """An I/O error at every file event of a save, once or from then on."""
    models = SavedModels(folder)
    combinations = [*product(SAVES, models.old, FAULTS, (False, True))]
    events: dict[tuple[str, str], list[str]] = {}
    for way, old_way in {(way, old_way) for way, old_way, *_ in combinations}:
        target = folder / "recorded" / "model"
        restore_folder(target, models.old[old_way])
        target.parent.mkdir(exist_ok=True)
        action = partial(SAVES[way], models.model, target)
        events[way, old_way] = run_with_fault(action, target.parent, -1).names
    places = [
        (way, old_way, fault, lasting, event)
        for way, old_way, fault, lasting in combinations
        for event in range(len(events[way, old_way]))
    ]
    rng.shuffle(places)
    for way, old_way, fault, lasting, event in places:

        def run(
            case_folder: Path, way: str = way, old_way: str = old_way, fault: str = fault,
            lasting: bool = lasting, event: int = event,
        ) -> str | None:  # fmt: skip
            target = case_folder / "model"
            restore_folder(target, models.old[old_way])
            save = partial(SAVES[way], models.model, target)
            ending = run_with_fault(save, case_folder, event, fault, persistent=lasting)
            return models.find_problem(target, old_way, way, ending.error, may_leave_files=lasting)

        place = f"{'from' if lasting else 'at'} {events[way, old_way][event]!r}"
        yield Case(name=f"{fault} {place} of a save ({way}) over {old_way}", run=run)


def attack_save_on_full_disk(folder: Path, rng: random.Random) -> Iterator[Case]:
    """A disk of random size, or a limit of the size of a file, that a save exceeds."""
    models = SavedModels(folder)
    has_disks = can_mount()
    while True:
        way, old_way = rng.choice([*SAVES]), rng.choice([*models.old])
        sizes = models.new_sizes[way]
        is_disk = rng.random() < 0.5
        num_blocks = rng.randrange(sum(sizes) // BLOCK + 8)
        size = rng.randrange(max(sizes) + 1)
        if is_disk and has_disks:
            old = models.old[old_way]
            old_sizes = [path.stat().st_size for path in old.iterdir()] if old else []
            size = BLOCK * (sum(-(-size // BLOCK) for size in old_sizes) + 2 + num_blocks)

        def run(
            case_folder: Path, way: str = way, old_way: str = old_way, size: int = size,
            is_disk: bool = is_disk and has_disks,
        ) -> str | None:  # fmt: skip
            disk = case_folder / "disk"
            disk.mkdir()
            if is_disk:
                mount_small_disk(disk, size)
            target = disk / "model"
            restore_folder(target, models.old[old_way])
            error = ""
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            if not is_disk:
                resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
            try:
                SAVES[way](models.model, target)
            except Exception as exception:
                error = f"{type(exception).__name__}: {exception}"
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            if is_disk:
                subprocess.run(["mount", "-o", "remount,size=100m", str(disk)], check=True)
            return models.find_problem(target, old_way, way, error, may_leave_files=False)

        kind = "a disk" if is_disk and has_disks else "files"
        yield Case(name=f"{kind} of {size} bytes, save ({way}) over {old_way}", run=run)


def mount_small_disk(folder: Path, size: int) -> None:
    """Mount a disk in memory that this process alone sees (Linux)."""
    user, group = os.getuid(), os.getgid()
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(CLONE_NEWUSER | CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)


def can_mount() -> bool:
    """Return whether this system lets a user mount a disk in memory."""
    command = ["unshare", "-Urm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    try:
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    except OSError:
        return False
