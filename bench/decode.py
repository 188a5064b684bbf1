"""Decoding speed beside transformers', in one run: new ids a second, and whether both say the same.

    python bench/decode.py [--cases gpt2 gpt2-long translate] [--device cuda] [--precision half] [--small]

    gpt2       GPT-2 124M, one row, greedy: a prompt of 32 ids, then 64 (256 on a GPU)
    gpt2-long  the same after a prompt of 512
    translate  Transformer-base (6 + 6 layers, 32,000 words), a beam of 4: 32 sources (256 on a GPU) of 16 to
               48 ids, then 32 new ones

Weights are random, no row ends early. Both read the same weights, in fp32 on a CPU and in bf16 on a GPU,
where theirs is compiled with a static cache (gpt2), and ours replays one CUDA graph a step. Runs take turns,
the fastest of each counts. `--precision half` gives ours linear layers with weights in fp16 (CPU; FBGEMM)."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import qkv
from qkv.decode import Engine, How, generate, prepare
from qkv.nn.transformer import Transformer

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
Ids = list[list[int]]


def gpt2(small: bool) -> Any:
    sizes = dict(n_embd=64, n_layer=2, n_head=2, vocab_size=500) if small else {}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))


def translate(small: bool) -> Any:
    width, depth, words = (64, 2, 500) if small else (512, 6, 32_000)
    return transformers.MarianMTModel(
        transformers.MarianConfig(
            vocab_size=words, d_model=width, encoder_layers=depth, decoder_layers=depth,
            encoder_attention_heads=8, decoder_attention_heads=8, encoder_ffn_dim=4 * width,
            decoder_ffn_dim=4 * width, max_position_embeddings=512, pad_token_id=0, eos_token_id=1,
            decoder_start_token_id=0, forced_eos_token_id=None,
        )
    )  # fmt: skip


def rows(count: int, low: int, high: int, words: int) -> Ids:
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(low, high + 1, (count,), generator=draw).tolist()
    return [torch.randint(2, words, (length,), generator=draw).tolist() for length in lengths]


def theirs(model: Any, prompts: Ids, new: int, beams: int, static: bool) -> Ids:
    """What transformers says: rows are padded, on the right for an encoder."""
    longest = max(map(len, prompts))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in prompts], device=model.device)
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in prompts], device=model.device)
    more = {"cache_implementation": "static"} if static else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = model.generate(
            ids, attention_mask=mask, max_new_tokens=new, min_new_tokens=new, num_beams=beams,
            do_sample=False, eos_token_id=None, pad_token_id=0, **more,
        )  # fmt: skip
    start = 1 if model.config.is_encoder_decoder else longest
    return out[:, start:].tolist()  # type: ignore[no-any-return]


def ours(engine: Engine, prompts: Ids, new: int, beams: int) -> Ids:
    how = How(max_new=new, beams=beams, start=0)
    side = {"sources": prompts} if engine.pair else {"prompts": prompts}
    return [row[0].ids for row in generate(engine, **side, how=how)]  # type: ignore[arg-type]


def timed(call: Callable[[], Ids], device: str) -> tuple[float, Ids]:
    start = time.perf_counter()
    found = call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, found


def compare(name: str, options: argparse.Namespace) -> None:
    gpu = options.device == "cuda"
    torch.manual_seed(0)
    model = (translate if name == "translate" else gpt2)(options.small).eval()
    words = model.config.vocab_size
    if name != "translate":
        length = 512 if name == "gpt2-long" else 32
        prompts, new, beams = rows(1, length, length, words), 256 if gpu else 64, 1
    else:
        prompts, new, beams = rows(256 if gpu else 32, 16, 48, words), 32, 4
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        dtype = torch.bfloat16 if gpu else torch.float32
        opened = qkv.load(folder, device=options.device, dtype=dtype).net
    assert isinstance(opened, Transformer)
    engine = Engine(prepare(opened, precision=options.precision), static=gpu)
    model = model.to(device=options.device, dtype=dtype)
    calls = {
        "ours": lambda: ours(engine, prompts, new, beams),
        "theirs": lambda: theirs(model, prompts, new, beams, gpu and name != "translate"),
    }
    best: dict[str, float] = {}
    said: dict[str, Ids] = {}
    for turn in range(options.repeats + 1):  # the first warms up
        for who, call in calls.items():
            seconds, said[who] = timed(call, options.device)
            best[who] = min(best.get(who, seconds), seconds) if turn else float("inf")
    ids = len(prompts) * new
    same = sum(a == b for a, b in zip(said["ours"], said["theirs"], strict=True))
    print(
        f"{name:<10} ours {ids / best['ours']:10,.1f} ids/s   theirs {ids / best['theirs']:10,.1f} ids/s   "
        f"{best['theirs'] / best['ours']:5.2f} x   {best['ours'] / new * 1e3:7.2f} ms a step   "
        f"{same} of {len(prompts)} rows the same",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="*", default=["gpt2", "gpt2-long", "translate"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default=None)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="tiny sizes: does it run?")
    options = parser.parse_args()
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    print(f"{versions}, {torch.get_num_threads()} threads")
    for name in options.cases:
        compare(name, options)


if __name__ == "__main__":
    main()
