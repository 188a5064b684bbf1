"""Compare the time of a training step of the Sparse Transformer with that of a dense one, on rows of pixels.

    python bench/pixels.py [--device cuda] [--precision bf16] [--compile] [--sides 28 56 112] [--json FILE]

A row is a square image of 256 gray levels, one token per pixel. Both networks have the same sizes; the sparse
one attends to the last `side` pixels and to those above the pixel (pattern "strided"), in alternating layers
or in every layer. A step is the forward pass, the cross-entropy and the backward pass of the same number of
pixels; the optimizer is the same for both and is left out. On a CPU, the time is that of the processor in one
thread, which other processes do not change."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import qkv
from qkv.batch import Batch, Inputs

MODELS: dict[str, dict[str, str]] = {
    "dense": {},
    "sparse, layers": {"split": "layers"},
    "sparse, merged": {"split": "merged"},
}


def measure(name: str, side: int, options: argparse.Namespace) -> float:
    """Return the seconds of the fastest step of a few."""
    torch.manual_seed(0)
    length = side * side
    sizes: dict[str, Any] = dict(
        vocab_size=257, width=options.width, depth=options.depth, heads=options.heads,
        dropout=0.0, embedding_dropout=0.0, attention_dropout=0.0, max_positions=length,
    )  # fmt: skip
    if name != "dense":
        sizes |= dict(pattern="strided", stride=side, **MODELS[name])
    family = "gpt2" if name == "dense" else "sparse"
    model = qkv.build(family, device=options.device, **sizes).train()
    net = model.net
    if options.compile:
        net.compile()
    rows = max(options.pixels // length, 1)
    ids = torch.randint(257, (rows, length + 1), device=options.device)
    batch = Batch(decoder=Inputs.create(ids[:, :-1]))
    is_gpu = options.device == "cuda"
    clock = time.perf_counter if is_gpu else time.process_time
    best = float("inf")
    for _ in range(options.repeats + 2):
        if is_gpu:
            torch.cuda.synchronize()
        start = clock()
        with torch.autocast(options.device, torch.bfloat16, enabled=options.precision == "bf16"):
            logits = net(batch)["logits"]
        torch.nn.functional.cross_entropy(
            logits.float().flatten(0, 1), ids[:, 1:].flatten()
        ).backward()
        net.zero_grad()
        if is_gpu:
            torch.cuda.synchronize()
        best = min(best, clock() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sides", type=int, nargs="+", default=[28, 56, 112])
    parser.add_argument("--pixels", type=int, default=0, help="of a batch; default: one row")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--json", type=Path, help="write the times to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"width {options.width}, depth {options.depth}, {options.precision} on {options.device}")
    print(f"{'side':>6}{'tokens':>8}" + "".join(f"{f'{name} ms':>20}" for name in MODELS))
    rows = []
    for side in options.sides:
        seconds = {name: measure(name, side, options) for name in MODELS}
        rows.append({"side": side, "tokens": side * side, **seconds})
        times = "".join(f"{1000 * value:>20.1f}" for value in seconds.values())
        print(f"{side:>6}{side * side:>8}{times}", flush=True)
    if options.json:
        settings = {name: str(value) for name, value in vars(options).items()}
        options.json.write_text(json.dumps({"settings": settings, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
