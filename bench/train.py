"""Compare the training speed with transformers: tokens per second, not counting padding.

    python bench/train.py [--cases gpt2 bert translate char] [--device cuda] [--steps 150] [--rounds 9]

    gpt2       GPT-2 124M, full rows of 1,024 tokens
    bert       BERT-base masked LM on texts of mixed lengths: qkv packs rows, transformers pads in arrival
               order, to multiples of 64
    translate  Transformer-base on sentence pairs of real lengths: qkv buckets by length, transformers pads
    char       a character GPT of 4 layers of width 128, rows of 64 tokens

qkv is trained by `qkv.train.loop.trainer.Trainer`, as in recipes; transformers by the usual loop, compiled,
with fused AdamW, autocast and the same sizes. Both have no dropout. The first third of the steps is warmup.
With several rounds, the two alternate, and the median ratio and the range are printed."""

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
from qkv.data.batches.packing import bucket_by_length, pack_sequences
from qkv.data.batches.sampler import BatchSampler, build_fixed_size_plan
from qkv.train.config import TrainConfig
from qkv.train.loop.trainer import Trainer
from qkv.train.objectives import VocabularyInfo, build_objective

Rng = np.random.Generator
Batches = Iterator[tuple[dict[str, torch.Tensor], int]]  # a batch and its number of tokens


def sample_lengths(rng: Rng, count: int, mean: float, low: int, high: int) -> np.ndarray[Any, Any]:
    """Return lengths distributed like those of texts: many short, few long."""
    return rng.lognormal(np.log(mean), 0.7, count).astype(int).clip(low, high)


def measure_qkv(
    model: qkv.Model,
    sampler: BatchSampler,
    objective_name: str,
    vocab: VocabularyInfo,
    options: argparse.Namespace,
) -> float:
    """Return the tokens per second after the warmup."""
    speeds: list[float] = []
    gpu = options.device == "cuda"
    train_config = TrainConfig(
        steps=options.steps, log_every=max(options.steps // 3, 1), compile=options.compile,
        precision="bf16" if gpu else "fp32",
    )  # fmt: skip
    model.net.to(options.device)
    Trainer(
        net=model.net,
        sampler=sampler,
        objective=build_objective(objective_name, vocab),
        train_config=train_config,
        callbacks=[lambda report: speeds.append(report.tokens_per_second)],
    ).train()
    speed = sum(speeds[1:]) / len(speeds[1:])
    print(f"qkv, {model.family.name}: {speed:,.0f}", file=sys.stderr, flush=True)
    return speed


def measure_transformers(
    model: Any,
    batches: Callable[[], Batches],
    options: argparse.Namespace,
    dynamic: bool = False,
) -> float:
    """Return the tokens per second of a transformers model.

    `dynamic`: batches of many lengths, compiled once, without cuDNN's attention kernel, which plans each
    length (qkv never uses it). Of few lengths, each is compiled before the measurement."""
    gpu = options.device == "cuda"
    model = model.to(options.device).train()
    step = torch.compile(model, dynamic=dynamic) if options.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    start = 0.0
    tokens = 0
    torch.backends.cuda.enable_cudnn_sdp(not dynamic)
    measured = list(islice(batches(), options.steps))
    by_shape = {batch["input_ids"].shape: (batch, count) for batch, count in measured}
    first = [] if dynamic else [*by_shape.values()] * 2
    num_warmup = len(first) + options.steps // 3
    for number, (batch, count) in enumerate(first + measured):
        if number == num_warmup:
            torch.cuda.synchronize() if gpu else None
            start = time.perf_counter()
            tokens = 0
        batch = {name: x.to(options.device, non_blocking=True) for name, x in batch.items()}
        with torch.autocast(options.device, torch.bfloat16, enabled=gpu):
            loss = step(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        tokens += count
    torch.cuda.synchronize() if gpu else None
    return tokens / (time.perf_counter() - start)


def causal(
    options: argparse.Namespace,
    width: int,
    depth: int,
    heads: int,
    vocab: int,
    size: int,
    rows: int,
) -> tuple[float, float]:
    from transformers import GPT2Config, GPT2LMHeadModel

    rng = np.random.default_rng(0)
    texts = [{"tokens": rng.integers(0, vocab, size + 1)} for _ in range(rows * 4)]
    model = qkv.build(
        "gpt2", vocab_size=vocab, width=width, depth=depth, heads=heads, max_positions=size,
        dropout=0.0, embedding_dropout=0.0, attention_dropout=0.0,
    )  # fmt: skip
    speed = measure_qkv(
        model,
        BatchSampler(texts, build_fixed_size_plan(len(texts), rows)),
        "causal-lm",
        VocabularyInfo(vocab_size=vocab),
        options,
    )
    del model

    def batches() -> Batches:
        while True:
            ids = torch.from_numpy(
                np.stack([texts[i]["tokens"][:-1] for i in rng.integers(0, len(texts), rows)])
            )
            yield {"input_ids": ids, "labels": ids}, ids.numel()

    config = GPT2Config(
        vocab_size=vocab, n_embd=width, n_layer=depth, n_head=heads, n_positions=size, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    return speed, measure_transformers(GPT2LMHeadModel(config), batches, options)


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
    shape: dict[str, Any] = {}
    if options.small:
        shape = dict(width=64, depth=2, heads=2, ffn_width=128)
    rng = np.random.default_rng(0)
    text_lengths = sample_lengths(rng, rows * 40, size / 4, 8, size)
    texts = [rng.integers(5, vocab, length) for length in text_lengths]
    packed = [
        {
            "tokens": np.concatenate([texts[d][a:b] for d, a, b in row.tolist()]),
            "document_ids": np.concatenate(
                [np.full(b - a, i) for i, (_, a, b) in enumerate(row.tolist())]
            ),
        }
        for row in pack_sequences(text_lengths, size)
    ]
    del packed[len(packed) // rows * rows :]  # a smaller last batch would need another graph
    model = qkv.build(
        "bert",
        "base",
        vocab_size=vocab,
        head="masked-lm",
        max_positions=size,
        dropout=0.0,
        attention_dropout=0.0,
        **shape,
    )
    vocabulary = VocabularyInfo(
        vocab_size=vocab, mask_token_id=4, special_token_ids=(0, 1, 2, 3, 4)
    )
    speed = measure_qkv(
        model,
        BatchSampler(packed, build_fixed_size_plan(len(packed), rows)),
        "masked-lm",
        vocabulary,
        options,
    )
    del model

    def batches() -> Batches:
        at = 0
        while True:
            rows_of_batch = [texts[i % len(texts)] for i in range(at, at + rows)]
            at += rows
            longest = (
                -(-max(map(len, rows_of_batch)) // 64) * 64
            )  # one graph is compiled per length, so there are few lengths
            ids = torch.zeros(rows, longest, dtype=torch.long)
            for i, row in enumerate(rows_of_batch):
                ids[i, : len(row)] = torch.from_numpy(row)
            mask = ids > 0
            labels = ids.masked_fill((torch.rand(ids.shape) > 0.15) | ~mask, -100)
            yield (
                {"input_ids": ids, "attention_mask": mask.long(), "labels": labels},
                int(mask.sum()),
            )

    small_sizes = dict(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128
    )
    config = BertConfig(
        vocab_size=vocab, max_position_embeddings=size, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, **(small_sizes if options.small else {}),
    )  # fmt: skip
    return speed, measure_transformers(BertForMaskedLM(config), batches, options)


def translate(options: argparse.Namespace) -> tuple[float, float]:
    from transformers import MarianConfig, MarianMTModel

    vocab, budget, rows = (1000, 512, 8) if options.small else (32000, 25000, 256)
    width, depth, heads, feed = (64, 2, 2, 128) if options.small else (512, 6, 8, 2048)
    rng = np.random.default_rng(0)
    source = sample_lengths(rng, rows * 40, 22, 3, 120)
    target = (source * rng.uniform(0.8, 1.25, len(source))).astype(int).clip(3, 140)
    pairs = [
        {"source": rng.integers(2, vocab, a), "target": rng.integers(2, vocab, b)}
        for a, b in zip(source, target, strict=True)
    ]
    model = qkv.build(
        "transformer", vocab_size=vocab, width=width, depth=depth, decoder_depth=depth, heads=heads,
        decoder_heads=heads, ffn_width=feed, decoder_ffn_width=feed, dropout=0.0,
    )  # fmt: skip
    both = np.stack([source, target], axis=1)
    speed = measure_qkv(
        model,
        BatchSampler(
            pairs, lambda rng: bucket_by_length(both, budget, rng), lengths=both.max(axis=1)
        ),
        "seq2seq",
        VocabularyInfo(vocab_size=vocab),
        options,
    )
    del model

    def batches() -> Batches:
        at = 0
        while True:
            batch_pairs = [pairs[i % len(pairs)] for i in range(at, at + rows)]
            at += rows
            sides = []
            for side in ("source", "target"):
                ids = torch.zeros(rows, max(len(p[side]) for p in batch_pairs), dtype=torch.long)
                for i, pair in enumerate(batch_pairs):
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
    return speed, measure_transformers(MarianMTModel(config), batches, options, dynamic=True)


CASES = dict(gpt2=gpt2, bert=bert, translate=translate, char=char)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", default=None, choices=CASES)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=1, help="number of rounds")
    parser.add_argument("--small", action="store_true", help="tiny sizes: check that it runs")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=None)
    options = parser.parse_args()
    options.compile = options.device == "cuda" if options.compile is None else options.compile
    cases = options.cases or (
        ["gpt2", "bert", "translate"] if options.device == "cuda" else ["char"]
    )
    print(f"{options.device}, {options.steps} steps, {'compiled' if options.compile else 'eager'}")
    print(f"{'case':<12}{'qkv, tokens/s':>16}{'transformers':>14}{'ratio':>8}")
    for case in cases:
        rounds = sorted(
            (CASES[case](options) for _ in range(options.rounds)),
            key=lambda speeds: speeds[0] / speeds[1],
        )
        ratios = [qkv_speed / other_speed for qkv_speed, other_speed in rounds]
        middle = len(rounds) // 2
        qkv_speed, other_speed = rounds[middle]
        print(f"{case:<12}{qkv_speed:>16,.0f}{other_speed:>14,.0f}{ratios[middle]:>8.2f}", end="")
        print(f"  {ratios[0]:.2f} to {ratios[-1]:.2f}" if len(rounds) > 1 else "", flush=True)
        if options.device == "cuda":
            torch.cuda.empty_cache()
            torch._dynamo.reset()


if __name__ == "__main__":
    main()
