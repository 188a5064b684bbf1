"""Compare the time and memory of block-sparse attention (local, banded, strided, fixed) with dense attention.

    python bench/sparse.py [--device cuda] [--dtype bfloat16] [--heads 8] [--length 16384]

It measures the forward and backward pass of one attention call on q, k, v of shape (1, heads, T, 64). Dense
attention is scaled_dot_product_attention with the pattern as a T x T mask; `causal` is that kernel without a
mask. The first call computes the masks, which the layers of a model share: they count as memory, but not as
time."""

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

from qkv.kernels.bias import AttentionBias
from qkv.kernels.block_sparse import block_sparse_attention
from qkv.spec import Banded, Causal, Chunk, ChunkEnds, Local, Pattern, Strided

PATTERNS: dict[str, Pattern] = {
    "causal": Causal(),
    "local 128": Local(128),
    "banded 256": Banded(256),
    "strided 128": Banded(128) | Strided(128),
    "fixed 128/8": Chunk(128) | ChunkEnds(128, 8),
}


def attention(
    method: str, bias: AttentionBias, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> torch.Tensor:
    if method == "blocks":
        return block_sparse_attention(
            q, k, v, bias.pattern, bias.block_layout, 0.125, is_unmasked=bias.is_unmasked
        )
    if isinstance(bias.pattern, Causal):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=bias.get_score_bias(None)
    )


def measure(
    name: str, method: str, length: int, heads: int, device: str, dtype: str
) -> dict[str, float]:
    """Return the time of the best of a few runs in seconds, and the peak memory without the inputs."""
    torch.manual_seed(0)
    torch_dtype = getattr(torch, dtype)
    q, k, v = (
        torch.randn(1, heads, length, 64, device=device, dtype=torch_dtype, requires_grad=True)
        for _ in range(3)
    )
    gpu = device == "cuda"
    bytes_before = (
        torch.cuda.memory_allocated()
        if gpu
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    )
    positions, best = torch.arange(length, device=device)[None], float("inf")
    bias = AttentionBias(
        pattern=PATTERNS[name],
        q_positions=positions,
        k_positions=positions,
        has_no_padding=True,
        supports_pattern_kernels=True,
        dtype=torch_dtype,
    )
    for _ in range(6 if gpu else 2):
        if gpu:
            torch.cuda.synchronize()
        start = time.perf_counter()
        attention(method, bias, q, k, v).sum().backward()
        if gpu:
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    peak_bytes = (
        torch.cuda.max_memory_allocated()
        if gpu
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    )
    return {"seconds": best, "bytes": peak_bytes - bytes_before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=16384)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument(
        "--one", nargs=2, metavar=("PATTERN", "METHOD"), help="measure one case in this process"
    )
    options = parser.parse_args()
    settings = (options.length, options.heads, options.device, options.dtype)
    if options.one:
        print(json.dumps(measure(*options.one, *settings)))
        return
    print(f"T {options.length}, {options.heads} heads of 64, {options.dtype} on {options.device}")
    titles = ("blocks s", "dense s", "ratio", "blocks MB", "dense MB", "ratio")
    print(f"{'pattern':<14}" + "".join(f"{title:>10}" for title in titles))
    for name in PATTERNS:
        measured = {}
        for method in ("blocks", "dense"):
            if name == "causal" and method == "blocks":
                continue
            command = [
                sys.executable,
                __file__,
                "--one",
                name,
                method,
                "--length",
                str(options.length),
            ]
            command += [
                "--heads",
                str(options.heads),
                "--device",
                options.device,
                "--dtype",
                options.dtype,
            ]
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            measured[method] = json.loads(run.stdout) if run.returncode == 0 else None
            if run.returncode:
                print(f"{name} {method}: {run.stderr.strip().splitlines()[-1]}")
        dense, blocks = measured.get("dense"), measured.get("blocks")
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
