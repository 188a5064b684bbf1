"""Training speed beside transformers', in one run: real tokens a second, pads not counted.

    python bench/train.py [--cases gpt2 bert translate char] [--device cuda] [--steps 150] [--rounds 9]

    gpt2       GPT-2 124M, full rows of 1,024
    bert       BERT-base masked lm on texts of mixed lengths: ours packs rows, theirs pads in arrival order,
               to multiples of 64
    translate  Transformer-base on sentence pairs of real lengths: ours gathers by length, theirs pads
    char       a character GPT of 4 x 128, rows of 64

Ours is `qkv.train.loop.trainer.Trainer` as recipes run it; theirs the usual loop, compiled, with fused AdamW,
autocast and the same sizes. Both have no dropout. The first third of the steps warms up. In several rounds
ours and theirs take turns: the one in the middle is told, and between which times all lie."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import qkv
from qkv.data.batches.packing import buckets, pack
from qkv.data.batches.sampler import Feed, by_rows
from qkv.train.config import Learn
from qkv.train.loop.trainer import Trainer
from qkv.train.objectives import Words, objective

Rng = np.random.Generator


def lengths(rng: Rng, count: int, mean: float, low: int, high: int) -> np.ndarray[Any, Any]:
    """Lengths as texts have them: many short, few long."""
    return rng.lognormal(np.log(mean), 0.7, count).astype(int).clip(low, high)


def ours(
    model: qkv.Model, feed: Feed, name: str, words: Words, options: argparse.Namespace, **more: Any
) -> float:
    """Tokens a second of the loop after its warm-up."""
    seen: list[float] = []
    gpu = options.device == "cuda"
    learn = Learn(
        steps=options.steps, log=max(options.steps // 3, 1), compile=options.compile,
        precision="bf16" if gpu else "fp32",
    )  # fmt: skip
    model.net.to(options.device)
    Trainer(
        net=model.net, feed=feed, objective=objective(name, words, **more), learn=learn,
        callbacks=[lambda report: seen.append(report.tokens_per_second)],
    ).run()  # fmt: skip
    speed = sum(seen[1:]) / len(seen[1:])
    print(f"ours, of {model.family.name}: {speed:,.0f}", file=sys.stderr, flush=True)
    return speed


def theirs(
    model: Any,
    batches: Callable[[], Iterator[tuple[dict[str, torch.Tensor], int]]],
    options: argparse.Namespace,
    varied: bool = False,
) -> float:
    """The same of a transformers model; `varied`: batches of many lengths, compiled once, by kernels that
    plan nothing for each (ours does without cuDNN's of itself). Of few lengths, each is compiled before the
    clock starts."""
    gpu = options.device == "cuda"
    model = model.to(options.device).train()
    step = torch.compile(model, dynamic=varied) if options.compile else model
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    start, tokens = 0.0, 0
    torch.backends.cuda.enable_cudnn_sdp(not varied)
    held = list(islice(batches(), options.steps))
    shapes = {each[0]["input_ids"].shape: each for each in held}
    first = [] if varied else [*shapes.values()] * 2
    warm = len(first) + options.steps // 3
    for number, (batch, count) in enumerate(first + held):
        if number == warm:
            torch.cuda.synchronize() if gpu else None
            start, tokens = time.perf_counter(), 0
        batch = {name: x.to(options.device, non_blocking=True) for name, x in batch.items()}
        with torch.autocast(options.device, torch.bfloat16, enabled=gpu):
            loss = step(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        tokens += count
    torch.cuda.synchronize() if gpu else None
    return tokens / (time.perf_counter() - start)


def causal(
    options: argparse.Namespace, width: int, depth: int, heads: int, vocab: int, size: int, rows: int
) -> tuple[float, float]:
    from transformers import GPT2Config, GPT2LMHeadModel

    rng = np.random.default_rng(0)
    texts = [{"tokens": rng.integers(0, vocab, size + 1)} for _ in range(rows * 4)]
    model = qkv.build(
        "gpt2", vocab=vocab, width=width, depth=depth, heads=heads, length=size, drop=0.0, embed_drop=0.0,
        attend_drop=0.0,
    )  # fmt: skip
    mine = ours(model, Feed(texts, by_rows(len(texts), rows)), "causal-lm", Words(size=vocab), options)
    del model

    def batches() -> Iterator[tuple[dict[str, torch.Tensor], int]]:
        while True:
            ids = torch.from_numpy(
                np.stack([texts[i]["tokens"][:-1] for i in rng.integers(0, len(texts), rows)])
            )
            yield {"input_ids": ids, "labels": ids}, ids.numel()

    config = GPT2Config(
        vocab_size=vocab, n_embd=width, n_layer=depth, n_head=heads, n_positions=size, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    return mine, theirs(GPT2LMHeadModel(config), batches, options)


def gpt2(options: argparse.Namespace) -> tuple[float, float]:
    return (
        causal(options, 96, 2, 4, 1000, 128, 4)
        if options.small
        else causal(options, 768, 12, 12, 50257, 1024, 32)
    )


def char(options: argparse.Namespace) -> tuple[float, float]:
    return causal(options, 128, 4, 4, 65, 64, 12)


def bert(options: argparse.Namespace) -> tuple[float, float]:
    from transformers import BertConfig, BertForMaskedLM

    size, rows, vocab = (128, 4, 1000) if options.small else (512, 64, 30522)
    shape = dict(width=64, depth=2, heads=2, feed=128) if options.small else {}
    rng = np.random.default_rng(0)
    found = lengths(rng, rows * 40, size / 4, 8, size)
    texts = [rng.integers(5, vocab, length) for length in found]
    packed = [
        {
            "tokens": np.concatenate([texts[d][a:b] for d, a, b in row.tolist()]),
            "document": np.concatenate([np.full(b - a, i) for i, (_, a, b) in enumerate(row.tolist())]),
        }
        for row in pack(found, size)
    ]
    del packed[len(packed) // rows * rows :]  # a batch of another shape is another graph
    model = qkv.build(
        "bert", "base", vocab=vocab, head="masked-lm", length=size, drop=0.0, attend_drop=0.0, **shape
    )
    words = Words(size=vocab, mask=4, special=(0, 1, 2, 3, 4))
    mine = ours(model, Feed(packed, by_rows(len(packed), rows)), "masked-lm", words, options)
    del model

    def batches() -> Iterator[tuple[dict[str, torch.Tensor], int]]:
        at = 0
        while True:
            held = [texts[i % len(texts)] for i in range(at, at + rows)]
            at += rows
            longest = -(-max(map(len, held)) // 64) * 64  # a graph for each length: few lengths
            ids = torch.zeros(rows, longest, dtype=torch.long)
            for i, row in enumerate(held):
                ids[i, : len(row)] = torch.from_numpy(row)
            mask = ids > 0
            labels = ids.masked_fill((torch.rand(ids.shape) > 0.15) | ~mask, -100)
            yield {"input_ids": ids, "attention_mask": mask.long(), "labels": labels}, int(mask.sum())

    less = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128)
    config = BertConfig(
        vocab_size=vocab, max_position_embeddings=size, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, **(less if options.small else {}),
    )  # fmt: skip
    return mine, theirs(BertForMaskedLM(config), batches, options)


def translate(options: argparse.Namespace) -> tuple[float, float]:
    from transformers import MarianConfig, MarianMTModel

    vocab, budget, rows = (1000, 512, 8) if options.small else (32000, 25000, 256)
    width, depth, heads, feed = (64, 2, 2, 128) if options.small else (512, 6, 8, 2048)
    rng = np.random.default_rng(0)
    source = lengths(rng, rows * 40, 22, 3, 120)
    target = (source * rng.uniform(0.8, 1.25, len(source))).astype(int).clip(3, 140)
    pairs = [
        {"source": rng.integers(2, vocab, a), "target": rng.integers(2, vocab, b)}
        for a, b in zip(source, target, strict=True)
    ]
    model = qkv.build(
        "transformer", vocab=vocab, width=width, depth=depth, decoder_depth=depth, heads=heads,
        decoder_heads=heads, feed=feed, decoder_feed=feed, drop=0.0,
    )  # fmt: skip
    both = np.stack([source, target], axis=1)
    mine = ours(
        model, Feed(pairs, lambda rng: buckets(both, budget, rng), lengths=both.max(axis=1)), "seq2seq",
        Words(size=vocab), options,
    )  # fmt: skip
    del model

    def batches() -> Iterator[tuple[dict[str, torch.Tensor], int]]:
        at = 0
        while True:
            held = [pairs[i % len(pairs)] for i in range(at, at + rows)]
            at += rows
            sides = []
            for side in ("source", "target"):
                ids = torch.zeros(rows, max(len(p[side]) for p in held), dtype=torch.long)
                for i, pair in enumerate(held):
                    ids[i, : len(pair[side])] = torch.from_numpy(pair[side])
                sides.append(ids)
            a, b = sides
            batch = {
                "input_ids": a, "attention_mask": (a > 0).long(), "decoder_input_ids": b,
                "decoder_attention_mask": (b > 0).long(), "labels": b.masked_fill(b == 0, -100),
            }  # fmt: skip
            yield batch, int((a > 0).sum() + (b > 0).sum())

    config = MarianConfig(
        vocab_size=vocab, d_model=width, encoder_layers=depth, decoder_layers=depth,
        encoder_attention_heads=heads, decoder_attention_heads=heads, encoder_ffn_dim=feed,
        decoder_ffn_dim=feed, dropout=0.0, pad_token_id=0, max_position_embeddings=256,
        decoder_start_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return mine, theirs(MarianMTModel(config), batches, options, varied=True)


CASES = dict(gpt2=gpt2, bert=bert, translate=translate, char=char)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", default=None, choices=CASES)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument(
        "--rounds", type=int, default=1, help="so many times, for machines that are not quiet"
    )
    parser.add_argument("--small", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=None)
    options = parser.parse_args()
    options.compile = options.device == "cuda" if options.compile is None else options.compile
    cases = options.cases or (["gpt2", "bert", "translate"] if options.device == "cuda" else ["char"])
    print(f"{options.device}, {options.steps} steps, {'compiled' if options.compile else 'eager'}")
    print(f"{'case':<12}{'ours, tokens/s':>16}{'theirs':>12}{'times':>8}")
    for case in cases:
        rounds = sorted(
            (CASES[case](options) for _ in range(options.rounds)), key=lambda both: both[0] / both[1]
        )
        mine, other = rounds[len(rounds) // 2]
        print(f"{case:<12}{mine:>16,.0f}{other:>12,.0f}{mine / other:>8.2f}", end="", flush=True)
        least, most = (one / two for one, two in (rounds[0], rounds[-1]))
        print(f"  {least:.2f} to {most:.2f}" if len(rounds) > 1 else "", flush=True)
        if options.device == "cuda":
            torch.cuda.empty_cache()
            torch._dynamo.reset()


if __name__ == "__main__":
    main()
