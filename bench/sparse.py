"""Local, banded, strided and fixed patterns against dense attention, in time and memory.

    python bench/sparse.py [--device cuda] [--dtype bfloat16] [--heads 8] [--length 16384]

Forward and backward of one attention call on q, k, v of (1, heads, T, 64). Dense is what the same rule costs
without blocks: scaled_dot_product_attention under its T x T mask; `causal` is that kernel without a mask.
The first call makes the masks, which the layers of a model share: they count in memory, not in time."""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from qkv.kernels.bias import Where
from qkv.kernels.block_sparse import sparse_attention
from qkv.spec import Banded, Causal, Chunk, Local, Pattern, Strided, Summary

PATTERNS: dict[str, Pattern] = {
    "causal": Causal(),
    "local 128": Local(128),
    "banded 256": Banded(256),
    "strided 128": Banded(128) | Strided(128),
    "fixed 128/8": Chunk(128) | Summary(128, 8),
}


def attention(form: str, where: Where, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    if form == "blocks":
        return sparse_attention(q, k, v, where.pattern, where.cut, 0.125)
    if isinstance(where.pattern, Causal):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=where.bias(None))


def measure(name: str, form: str, length: int, heads: int, device: str, dtype: str) -> dict[str, float]:
    """Seconds and bytes over the inputs' own; the best of a few runs."""
    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    q, k, v = (
        torch.randn(1, heads, length, 64, device=device, dtype=kind, requires_grad=True) for _ in range(3)
    )
    gpu = device == "cuda"
    held = torch.cuda.memory_allocated() if gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    positions, best = torch.arange(length, device=device)[None], float("inf")
    where = Where(pattern=PATTERNS[name], q=positions, k=positions, full=True, same=True, dtype=kind)
    for _ in range(6 if gpu else 2):
        if gpu:
            torch.cuda.synchronize()
        start = time.perf_counter()
        attention(form, where, q, k, v).sum().backward()
        if gpu:
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    most = (
        torch.cuda.max_memory_allocated()
        if gpu
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    )
    return {"seconds": best, "bytes": most - held}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=16384)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--one", nargs=2, metavar=("PATTERN", "FORM"), help="measure one, in this process")
    options = parser.parse_args()
    settings = (options.length, options.heads, options.device, options.dtype)
    if options.one:
        print(json.dumps(measure(*options.one, *settings)))
        return
    print(f"T {options.length}, {options.heads} heads of 64, {options.dtype} on {options.device}")
    titles = ("blocks s", "dense s", "share", "blocks MB", "dense MB", "share")
    print(f"{'pattern':<14}" + "".join(f"{title:>10}" for title in titles))
    for name in PATTERNS:
        found = {}
        for form in ("blocks", "dense"):
            if name == "causal" and form == "blocks":
                continue
            command = [sys.executable, __file__, "--one", name, form, "--length", str(options.length)]
            command += ["--heads", str(options.heads), "--device", options.device, "--dtype", options.dtype]
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            found[form] = json.loads(run.stdout) if run.returncode == 0 else None
            if run.returncode:
                print(f"{name} {form}: {run.stderr.strip().splitlines()[-1]}")
        dense, blocks = found.get("dense"), found.get("blocks")
        if dense is None:
            continue
        cells = ["-", f"{dense['seconds']:.4f}", "-", "-", f"{dense['bytes'] / 1e6:.0f}", "-"]
        if blocks is not None:
            cells[0], cells[3] = f"{blocks['seconds']:.4f}", f"{blocks['bytes'] / 1e6:.0f}"
            cells[2] = f"{blocks['seconds'] / dense['seconds']:.2f}"
            cells[5] = f"{blocks['bytes'] / dense['bytes']:.2f}"
        print(f"{name:<14}" + "".join(f"{cell:>10}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
