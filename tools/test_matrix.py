"""Run all tests under several instruction sets, thread counts and loads, and print a table.

    python tools/test_matrix.py [--only NAME ...] [--log-dir DIR] [PYTEST OPTION ...]

The order of summation in a kernel depends on the instruction set, the number of threads and the
alignment of its operands, so that tests that pass on one CPU may fail on another."""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CASES: dict[str, dict[str, str]] = {
    "as is": {},
    "ATEN_CPU_CAPABILITY=default": {"ATEN_CPU_CAPABILITY": "default"},
    "ATEN_CPU_CAPABILITY=avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "ONEDNN_MAX_CPU_ISA=SSE41": {"ONEDNN_MAX_CPU_ISA": "SSE41"},
    "ONEDNN_MAX_CPU_ISA=AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    "2 threads": {"QKV_THREADS": "2"},
    "4 threads": {"QKV_THREADS": "4"},
    "three busy loops": {},
}


def cpu_name() -> str:
    """Return the name, family and model of the CPU from /proc/cpuinfo."""
    path = Path("/proc/cpuinfo")
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    facts = dict(re.findall(r"^(model name|cpu family|model)\s*: (.*)$", text, flags=re.MULTILINE))
    if "model name" not in facts:
        return platform.processor() or platform.machine()
    return f"{facts['model name']} (family {facts.get('cpu family')} model {facts.get('model')})"


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Run processes that each keep one core busy."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", action="append", choices=list(CASES), help="run this case; may be repeated"
    )
    parser.add_argument(
        "--log-dir", type=Path, default=Path("test-matrix"), help="folder of the outputs"
    )
    options, pytest_options = parser.parse_known_args()
    options.log_dir.mkdir(parents=True, exist_ok=True)
    rows = []
    failed = False
    for name in options.only or CASES:
        log = options.log_dir / (re.sub(r"\W+", "-", name) + ".log")
        start = time.monotonic()
        with log.open("w") as file, busy_loops(3 if name == "three busy loops" else 0):
            command = [sys.executable, "-m", "pytest", "-q", *pytest_options]
            code = subprocess.call(command, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT,
                                   env={**os.environ, **CASES[name]})  # fmt: skip
        last_line = log.read_text(errors="replace").strip().rsplit("\n", 1)[-1]
        rows.append(f"| {name} | {last_line.strip('= ')} | {time.monotonic() - start:.0f} s |")
        failed = failed or code != 0
        print(rows[-1], flush=True)
    print(f"\n{cpu_name()}, {os.cpu_count()} cores\n")
    print("| case | result | time |", "|---|---|---|", *rows, sep="\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
