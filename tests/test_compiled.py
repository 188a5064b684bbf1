"""Compiling: the processes that do it hear no signal that is meant for the trainer."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import os, signal, time
from qkv.learn.compiled import start_compilers

heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
start_compilers()
from torch._inductor.async_compile import AsyncCompile

pool = AsyncCompile.process_pool()
os.kill(pool.process.pid, signal.SIGTERM)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(0.5)
assert pool.process.poll() is None, "the compilers have ended"
assert pool.submit(os.getpid).result(timeout=60) != os.getpid()
assert heard == [1]
print("good")
"""


def test_compilers_go_on_when_all_processes_are_told_to_end() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "2"}, timeout=120,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "good\n", done.stderr
