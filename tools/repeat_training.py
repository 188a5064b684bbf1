"""Run many short trainings in a narrow terminal on a loaded machine, and count their exit statuses.

    python -m tools.repeat_training [--runs 500] [--jobs 4] [--busy-loops 3] [--columns 12]

A process that ends while one of its threads is inside a torch call may abort (status 134), rarely
and mostly under load: only many runs show that every thread is joined at exit."""

from __future__ import annotations

import argparse
import os
import pty
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.test_matrix import ROOT, busy_loops, cpu_name

RECIPE = """
[model]
family = "gpt2"
width = 16
depth = 1
heads = 2
ffn_width = 32
max_positions = 16
[tokenizer]
type = "char"
vocab_size = 40
[data]
train = "train.txt"
validation = 0.1
max_length = 16
batch_size = 4
num_workers = {num_workers}
[objective]
name = "causal-lm"
[train]
steps = 6
warmup_steps = 1
eval_every = 3
save_every = 3
"""
TEXT = "to be or not to be that is the question\n" * 50
MAX_LOG_CHARS = 2000


def train_once(run: int, columns: int) -> int:
    """Train in a pseudo-terminal; print the end of the output of a run that fails."""
    with tempfile.TemporaryDirectory(prefix="qkv-") as folder:
        recipe = RECIPE.format(num_workers=run % 2)
        (Path(folder) / "recipe.toml").write_text(recipe, encoding="utf-8")
        (Path(folder) / "train.txt").write_text(TEXT, encoding="utf-8")
        terminal, process_side = pty.openpty()
        search_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        process = subprocess.Popen(
            [sys.executable, "-m", "qkv", "train", "recipe.toml"],
            stdin=subprocess.DEVNULL,
            stdout=process_side,
            stderr=process_side,
            cwd=folder,
            env={
                **os.environ,
                "PYTHONPATH": search_path,
                "TERM": "xterm-256color",
                "COLUMNS": str(columns),
                "LINES": "30",
            },
        )
        os.close(process_side)
        output = bytearray()
        try:
            while part := os.read(terminal, 1 << 16):
                output += part
        except OSError:  # Linux reports the end of a pseudo-terminal as an error
            pass
        os.close(terminal)
        status = process.wait()
    if status:
        print(f"run {run}: status {status}\n{output.decode(errors='replace')[-MAX_LOG_CHARS:]}")
    return status


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=500, help="number of trainings")
    parser.add_argument("--jobs", type=int, default=4, help="trainings at a time")
    parser.add_argument("--busy-loops", type=int, default=3, help="busy processes beside them")
    parser.add_argument("--columns", type=int, default=12, help="width of the terminal")
    options = parser.parse_args()
    statuses: Counter[int] = Counter()
    with busy_loops(options.busy_loops), ThreadPoolExecutor(options.jobs) as pool:
        futures = [pool.submit(train_once, run, options.columns) for run in range(options.runs)]
        for number, future in enumerate(futures, start=1):
            statuses[future.result()] += 1
            if number % 50 == 0:
                print(f"{number} of {options.runs} runs: {dict(statuses)}", flush=True)
    print(f"{cpu_name()}, {os.cpu_count()} cores, {options.jobs} at a time, "
          f"{options.busy_loops} busy loops: exit statuses {dict(statuses)}")  # fmt: skip
    return int(set(statuses) != {0})


if __name__ == "__main__":
    sys.exit(main())
