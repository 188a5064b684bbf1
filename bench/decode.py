"""Compare the decoding speed with transformers: new tokens per second, and the number of equal outputs.

    python bench/decode.py [--cases gpt2 gpt2-long translate] [--device cuda] [--precision half] [--small]

    gpt2       GPT-2 124M, batch size 1, greedy: a prompt of 32 tokens, then 64 (256 on a GPU)
    gpt2-long  the same after a prompt of 512 tokens
    translate  Transformer-base (6 + 6 layers, 32,000 tokens), 4 beams: 32 sources (256 on a GPU) of 16 to
               48 tokens, then 32 new tokens

Weights are random, and no row ends early. Both libraries load the same weights, in fp32 on a CPU
and in bf16 on a GPU, where transformers is compiled with a static cache (gpt2) and qkv replays one
CUDA graph per step. Runs of the two alternate, and the fastest of each is reported. `--precision
half` stores the linear weights of qkv in fp16 (CPU; FBGEMM)."""

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
from qkv.decode import Engine, GenerationConfig, generate, optimize_model
from qkv.nn.network import Network

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
TokenIds = list[list[int]]


def build_gpt2(small: bool) -> Any:
    sizes = dict(n_embd=64, n_layer=2, n_head=2, vocab_size=500) if small else {}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))


def build_marian(small: bool) -> Any:
    width, depth, words = (64, 2, 500) if small else (512, 6, 32_000)
    return transformers.MarianMTModel(
        transformers.MarianConfig(
            vocab_size=words, d_model=width, encoder_layers=depth, decoder_layers=depth,
            encoder_attention_heads=8, decoder_attention_heads=8, encoder_ffn_dim=4 * width,
            decoder_ffn_dim=4 * width, max_position_embeddings=512, pad_token_id=0, eos_token_id=1,
            decoder_start_token_id=0, forced_eos_token_id=None,
        )
    )  # fmt: skip


def sample_prompts(count: int, low: int, high: int, words: int) -> TokenIds:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(low, high + 1, (count,), generator=generator).tolist()
    return [torch.randint(2, words, (length,), generator=generator).tolist() for length in lengths]


def generate_transformers(
    model: Any, prompts: TokenIds, new: int, beams: int, static: bool
) -> TokenIds:
    """Generate with transformers; rows are padded on the right."""
    longest = max(map(len, prompts))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in prompts], device=model.device)
    mask = torch.tensor(
        [[1] * len(row) + [0] * (longest - len(row)) for row in prompts], device=model.device
    )
    more = {"cache_implementation": "static"} if static else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = model.generate(
            ids, attention_mask=mask, max_new_tokens=new, min_new_tokens=new, num_beams=beams,
            do_sample=False, eos_token_id=None, pad_token_id=0, **more,
        )  # fmt: skip
    start = 1 if model.config.is_encoder_decoder else longest
    return out[:, start:].tolist()


def generate_qkv(engine: Engine, prompts: TokenIds, new: int, beams: int) -> TokenIds:
    config = GenerationConfig(max_new_tokens=new, num_beams=beams, decoder_start_token_id=0)
    inputs = {"sources": prompts} if engine.is_encoder_decoder else {"prompts": prompts}
    return [row[0].token_ids for row in generate(engine, **inputs, generation_config=config)]  # type: ignore[arg-type]


def timed(call: Callable[[], TokenIds], device: str) -> tuple[float, TokenIds]:
    start = time.perf_counter()
    token_ids = call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, token_ids


def compare(name: str, options: argparse.Namespace) -> None:
    gpu = options.device == "cuda"
    torch.manual_seed(0)
    model = (build_marian if name == "translate" else build_gpt2)(options.small).eval()
    words = model.config.vocab_size
    if name != "translate":
        length = 512 if name == "gpt2-long" else 32
        prompts, new, beams = sample_prompts(1, length, length, words), 256 if gpu else 64, 1
    else:
        prompts, new, beams = sample_prompts(256 if gpu else 32, 16, 48, words), 32, 4
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        dtype = torch.bfloat16 if gpu else torch.float32
        net = qkv.load(folder, device=options.device, dtype=dtype).net
    assert isinstance(net, Network)
    engine = Engine(optimize_model(net, precision=options.precision), static_shapes=gpu)
    model = model.to(device=options.device, dtype=dtype)
    calls = {
        "qkv": lambda: generate_qkv(engine, prompts, new, beams),
        "transformers": lambda: generate_transformers(
            model, prompts, new, beams, gpu and name != "translate"
        ),
    }
    best: dict[str, float] = {}
    outputs: dict[str, TokenIds] = {}
    for turn in range(options.repeats + 1):  # the first run is warmup
        for library, call in calls.items():
            seconds, outputs[library] = timed(call, options.device)
            best[library] = min(best.get(library, seconds), seconds) if turn else float("inf")
    num_tokens = len(prompts) * new
    num_equal = sum(a == b for a, b in zip(outputs["qkv"], outputs["transformers"], strict=True))
    speeds = {
        library: f"{library} {num_tokens / seconds:10,.1f} tokens/s"
        for library, seconds in best.items()
    }
    print(
        f"{name:<10} {speeds['qkv']}   {speeds['transformers']}   "
        f"{best['transformers'] / best['qkv']:5.2f} x   {best['qkv'] / new * 1e3:7.2f} ms a step   "
        f"{num_equal} of {len(prompts)} rows equal",
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
    parser.add_argument("--small", action="store_true", help="tiny sizes: check that it runs")
    options = parser.parse_args()
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    print(f"{versions}, {torch.get_num_threads()} threads")
    for name in options.cases:
        compare(name, options)


if __name__ == "__main__":
    main()
