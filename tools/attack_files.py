"""Attack the readers of files with changed valid files of every kind.

    python -m tools.attack_files --seed 7 --seconds 60 --kinds safetensors CTranslate2

A reader accepts a file, or raises a ValueError or OSError of one line. Anything else is a failure:
another error, a native crash, more than 20 seconds or a gigabyte, a connection, a started process, a
file outside of the folder. Cases run in forked processes; `--case N` runs one case of a seed again."""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from tools.attack_mutations import mutate_file
from tools.attack_targets import Target, write_targets

MAX_SECONDS = 20
MAX_BYTES = 2**30
MAX_MESSAGE = 5000  # characters
CASES_PER_PROCESS = 50
FORBIDDEN_EVENTS = (
    "socket.connect", "socket.bind", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork",
    "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.symlink", "os.truncate", "shutil.rmtree",
    "pickle.find_class", "ctypes.dlopen",
)  # fmt: skip
DATA_SUFFIXES = (".py", ".pyc", ".so")  # files of Python itself, which imports open


class ForbiddenError(BaseException):
    """A reader did what no reader may do."""


@dataclass(frozen=True)
class Failure:
    """A case that failed: its number, the kind and the name of the file, and the reason."""

    case: int
    kind: str
    name: str
    reason: str


@dataclass
class Report:
    """The number of accepted and refused files by kind, and the failures."""

    accepted: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    @property
    def num_cases(self) -> int:
        return self.accepted.total() + self.refused.total() + len(self.failures)

    def format_table(self) -> str:
        """Return a table of the kinds, and the failures."""
        failed = Counter(failure.kind for failure in self.failures)
        lines = [f"{'kind':<28}{'accepted':>10}{'refused':>10}{'failed':>10}"]
        for kind in sorted({*self.accepted, *self.refused, *failed}, key=str.lower):
            counts = (self.accepted[kind], self.refused[kind], failed[kind])
            lines.append(f"{kind:<28}" + "".join(f"{count:>10,}" for count in counts))
        totals = (self.accepted.total(), self.refused.total(), len(self.failures))
        lines.append(f"{'total':<28}" + "".join(f"{count:>10,}" for count in totals))
        lines += [f"case {f.case}, {f.kind}, {f.name}: {f.reason}" for f in self.failures]
        return "\n".join(lines)


def attack_files(
    *,
    seed: int,
    seconds: float = 60.0,
    max_cases: int = 10**9,
    kinds: Sequence[str] = (),
    first_case: int = 0,
    keep_failures: Path | None = None,
) -> Report:
    """Read changed files until the time or the number of cases is over.

    Case n of a seed is always the same. The files of failures are copied to `keep_failures`."""
    report = Report()
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="qkv-files-") as temporary:
        root = Path(temporary)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            targets = select_targets(write_targets(root / "valid"), kinds)
            for target in targets:  # this also imports what reading needs
                status, reason = judge(target, target.folder)
                if status != ("refused" if target.is_refused else "accepted"):
                    raise ValueError(f"{target.kind}: the valid file is {status}: {reason}")
        start = first_case
        while start < first_case + max_cases and time.monotonic() < end:
            stop = min(start + CASES_PER_PROCESS, first_case + max_cases)
            for case, kind, name, status, reason in run_cases(targets, seed, start, stop, root):
                start = case + 1
                if status == "failed":
                    report.failures.append(Failure(case, kind, name, reason))
                    if keep_failures is not None and (root / "case").exists():
                        shutil.copytree(
                            root / "case", keep_failures / f"{seed}-{case}", dirs_exist_ok=True
                        )
                else:
                    (report.accepted if status == "accepted" else report.refused)[kind] += 1
    return report


def select_targets(targets: list[Target], kinds: Sequence[str]) -> list[Target]:
    """Return the targets whose kinds contain one of the words; all without words."""
    selected = [
        target
        for target in targets
        if not kinds or any(word.lower() in target.kind.lower() for word in kinds)
    ]
    if not selected:
        known = ", ".join(dict.fromkeys(target.kind for target in targets))
        raise ValueError(f"kinds {', '.join(kinds)}: expected some of {known}")
    return selected


def draw_case(targets: list[Target], seed: int, case: int) -> tuple[Target, str, random.Random]:
    """Return the target, the file and the generator of a case."""
    rng = random.Random(f"{seed} {case}")
    target = rng.choice(targets)
    return target, rng.choice(target.list_files()), rng


def run_cases(
    targets: list[Target], seed: int, start: int, stop: int, root: Path
) -> Iterator[tuple[int, str, str, str, str]]:
    """Run cases in one forked process; yield the number, kind, file, status and reason of each.

    A case that ends the process, or does not end, is the last one."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    process = os.fork()
    if not process:
        os.close(reader)
        with os.fdopen(writer, "w") as results:
            _run_child(targets, seed, start, stop, root, results)
    os.close(writer)
    case = start
    with os.fdopen(reader) as results:
        for case in range(start, stop):
            target, name, _ = draw_case(targets, seed, case)
            is_ready, _, _ = select.select([results], [], [], MAX_SECONDS + 10)
            line = results.readline() if is_ready else ""
            if line:
                status, reason = json.loads(line)
            else:
                status, reason = "failed", f"no result after {MAX_SECONDS} seconds"
                if is_ready:
                    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
                    yield case, target.kind, name, status, f"the process ended with status {code}"
                    return
            yield case, target.kind, name, status, reason
            if status == "failed":  # the memory or the hooks of the process may be spoiled
                break
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def _run_child(
    targets: list[Target], seed: int, start: int, stop: int, root: Path, results: IO[str]
) -> None:
    silent = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silent, stream)
    warnings.simplefilter("ignore")
    folder = root / "case"
    scratch = root / "scratch"  # of readers that need temporary files
    scratch.mkdir(exist_ok=True)
    tempfile.tempdir = str(scratch)
    is_watching = False

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if is_watching:
            check_event(event, args, (folder, root / "valid"), scratch)

    def raise_timeout(*_: object) -> None:
        raise TimeoutError

    sys.addaudithook(watch)
    signal.signal(signal.SIGALRM, raise_timeout)
    for case in range(start, stop):
        target, name, rng = draw_case(targets, seed, case)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(target.folder, folder)
        (folder / name).write_bytes(mutate_file(name, (folder / name).read_bytes(), rng))
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        signal.alarm(MAX_SECONDS)
        is_watching = True
        try:
            status, reason = judge(target, folder)
        finally:
            is_watching = False
            signal.alarm(0)
        growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) * 1024
        if growth > MAX_BYTES:
            status, reason = "failed", f"{growth:,} bytes of memory"
        results.write(json.dumps((status, reason)) + "\n")
        results.flush()
    os._exit(0)


def judge(target: Target, folder: Path) -> tuple[str, str]:
    """Read a folder; return "accepted", "refused" or "failed", and the message."""
    try:
        target.read(folder)
    except TimeoutError:
        return "failed", f"more than {MAX_SECONDS} seconds"
    except (ValueError, OSError) as error:
        message = str(error)
        if not message or len(message) > MAX_MESSAGE or not message.isprintable():
            return "failed", f"not one line of at most {MAX_MESSAGE} characters: {message[:300]!r}"
        return "refused", message
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else ""
        return "failed", f"{type(error).__name__} {str(error)[:300]!r} at {place}"
    return "accepted", ""


def check_event(event: str, args: tuple[Any, ...], folders: Sequence[Path], scratch: Path) -> None:
    """Raise ForbiddenError for an event that no reader may cause; temporary files are allowed."""
    is_path = bool(args) and isinstance(args[0], str | bytes | os.PathLike)
    path = resolve_path(*args) if is_path else Path()
    if path.is_relative_to(scratch):
        return
    if event in FORBIDDEN_EVENTS:
        raise ForbiddenError(f"{event} {args}"[:300])
    if event != "open" or not is_path:
        return
    mode, flags = args[1], args[2]
    if (isinstance(mode, str) and set(mode) & set("wax+")) or flags & (os.O_WRONLY | os.O_RDWR):
        raise ForbiddenError(f"opened for writing: {path}")
    is_own = path.suffix in DATA_SUFFIXES or path.is_relative_to(sys.prefix)
    is_system = path.is_relative_to("/proc") or path.is_relative_to(sys.base_prefix)
    package = Path(__file__).resolve().parent.parent
    is_inside = any(path.is_relative_to(folder) for folder in (*folders, package))
    if not (is_own or is_system or is_inside):
        raise ForbiddenError(f"opened outside of the folder: {path}")


def resolve_path(name: str | bytes | os.PathLike[str], *args: Any) -> Path:
    """Return the absolute path of an audit event; its last argument may be the descriptor of a folder."""
    path = os.fsdecode(name)
    if not os.path.isabs(path) and args and isinstance(args[-1], int) and args[-1] > 0:
        descriptor = Path(f"/proc/self/fd/{args[-1]}")
        path = os.path.join(os.readlink(descriptor) if descriptor.exists() else "", path)
    return Path(os.path.abspath(path))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.attack_files",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of all cases")
    parser.add_argument("--seconds", type=float, default=60.0, help="time limit")
    parser.add_argument("--cases", type=int, default=10**9, help="maximum number of cases")
    parser.add_argument("--kinds", nargs="+", default=[], help="parts of the names of kinds")
    parser.add_argument("--case", type=int, help="run only this case")
    parser.add_argument("--keep", type=Path, help="folder for the files of failures")
    options = parser.parse_args()
    report = attack_files(
        seed=options.seed,
        seconds=options.seconds,
        max_cases=options.cases if options.case is None else 1,
        kinds=options.kinds,
        first_case=options.case or 0,
        keep_failures=options.keep,
    )
    print(report.format_table())
    return int(bool(report.failures))


if __name__ == "__main__":
    os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")
    sys.exit(main())
