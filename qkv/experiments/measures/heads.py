"""Attention heads of a translation model: what they look at, and what the model loses without them.

B rows, H heads, T queries, S keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from qkv.data.batches.collate import Example
from qkv.experiments.corpus import Ids, SentencePair, draw_test_rows, load_corpus
from qkv.experiments.measures import CellContext
from qkv.experiments.table import Measurement
from qkv.experiments.translation import Translator, train_translator
from qkv.experiments.word_alignment import WordAligner
from qkv.nn.attention import Attention
from qkv.pictures.attention import render_attention_svg
from qkv.pictures.models.tree import count_parameters
from qkv.staging import write_file
from qkv.text import Tokenizer

LOOKS_AT = 0.5  # share of the queries from which on a head is said to look at something
ALIGNER_PAIRS = 40_000  # training pairs of the word aligner
WORD_START = "▁"
PREVIOUS, SAME, ALIGNED = PATTERNS = ("previous token", "same word", "aligned word")
MAX_NEW_TOKENS = 60


class ExamplePair(TypedDict):
    """The pair of texts of the pictures, in the settings."""

    source: str
    target: str


class HeadPatterns(NamedTuple):
    """One head: the share of its queries whose largest weight is on each pattern."""

    path: str
    head: int
    shares: dict[str, float]


def measure_heads(
    context: CellContext,
    *,
    text: str,
    model: Mapping[str, Any],
    train: Mapping[str, Any],
    vocab_size: int,
    max_pairs: int,
    batch_tokens: int,
    rows: int,
    example: ExamplePair,
    max_words: int = 20,
    test_fraction: float = 0.03,
) -> Measurement:
    """Train a translation model and examine every head on unseen sentences.

    A head looks at the previous token or at the same word (the query's own token, or another token of
    its word) if at least half of its queries have their largest weight there; these are the patterns
    of self-attention. The pattern of cross-attention is the source token that a word aligner links to
    the token to predict. `removal_loss` is the increase of the loss without the output of the head."""
    corpus = load_corpus(
        context.find_data(text), vocab_size=vocab_size, test_fraction=test_fraction
    )
    (pairs,) = draw_test_rows(corpus.test, max_pairs=1, edges=[max_words], rows=rows).values()
    translator = train_translator(
        context,
        corpus,
        model=model,
        train=train,
        objective={},
        max_pairs=max_pairs,
        batch_tokens=batch_tokens,
    )
    aligner = WordAligner(corpus.train[:: max(1, len(corpus.train) // ALIGNER_PAIRS)], vocab_size)
    heads = examine_heads(translator, pairs, aligner)
    batches = translator.build_batches(pairs, batch_tokens)
    loss = translator.compute_loss(batches)
    points: list[dict[str, Any]] = []
    for head in heads:
        with remove_head(translator.net, head.path, head.head):
            removal_loss = translator.compute_loss(batches) - loss
        points.append(
            {
                "part": name_part(head.path),
                "layer": int(head.path.split(".")[2]),
                "head": head.head,
                "removal_loss": removal_loss,
                **head.shares,
            }
        )
    if context.seed == 0:
        write_pictures(
            context, translator, SentencePair(example["source"], example["target"]), heads
        )
    return Measurement(
        metrics={
            "num_heads": len(heads) // len({head.path for head in heads}),
            "loss": loss,
            "bleu": translator.compute_bleu(pairs, MAX_NEW_TOKENS),
            "train_loss": translator.result.loss,
            "num_parameters": count_parameters(translator.net),
            "max_removal_loss": max(point["removal_loss"] for point in points),
            "mean_removal_loss": sum(point["removal_loss"] for point in points) / len(points),
            "useless_heads": sum(point["removal_loss"] <= 0 for point in points) / len(points),
        },
        points=(*points, *summarize_patterns(heads)),
    )


def summarize_patterns(heads: Sequence[HeadPatterns]) -> list[dict[str, Any]]:
    """Return a point per pattern: the share of the heads that look at it."""
    points = []
    for pattern in PATTERNS:
        shares = [head.shares[pattern] for head in heads if pattern in head.shares]
        share = sum(value >= LOOKS_AT for value in shares) / len(shares)
        points.append({"pattern": pattern, "head_share": share, "best_head": max(shares)})
    return points


def name_part(path: str) -> str:
    """Return the name of an attention layer without its number."""
    stack, *_, attention = path.split(".")
    return "cross-attention" if attention == "cross_attention" else f"{stack} self-attention"


def examine_heads(
    translator: Translator, pairs: Sequence[SentencePair], aligner: WordAligner
) -> list[HeadPatterns]:
    """Return the patterns of every head, measured on pairs of texts."""
    examples = translator.corpus.encode_pairs(pairs)
    weights = translator.look(examples, ".*")
    masks = build_pattern_masks(translator, examples, aligner)
    heads = []
    for path, layer in weights.items():
        best = layer.argmax(-1).cpu()  # (B, H, T)
        shares = {
            pattern: compute_hit_shares(best, mask)
            for pattern, mask in masks[name_part(path)].items()
        }
        heads += [
            HeadPatterns(path, head, {pattern: float(x[head]) for pattern, x in shares.items()})
            for head in range(layer.shape[1])
        ]
    return heads


def compute_hit_shares(best: Tensor, mask: Tensor) -> Tensor:
    """Return the share of the queries of each head (H,) whose best key (B, H, T) is in the mask
    (B, T, S), among those with a key in it."""
    hits = mask[:, None].expand(-1, best.shape[1], -1, -1).gather(3, best[..., None])[..., 0]
    return hits.sum((0, 2)) / mask.any(-1).sum().clamp(min=1)


def build_pattern_masks(
    translator: Translator, examples: Sequence[Example], aligner: WordAligner
) -> dict[str, dict[str, Tensor]]:
    """Return where the keys of each pattern are (B, T, S), by the name of the attention."""
    tokenizer = translator.corpus.tokenizer
    start = translator.model.args["decoder_start_token_id"]
    decoder_ids = [np.concatenate([[start], example["target"][:-1]]) for example in examples]
    texts = {
        "encoder self-attention": [example["source"] for example in examples],
        "decoder self-attention": decoder_ids,
    }
    masks = {
        name: {
            PREVIOUS: stack_masks([np.eye(len(ids), k=-1, dtype=bool) for ids in rows]),
            SAME: stack_masks([build_word_mask(tokenizer, ids) for ids in rows]),
        }
        for name, rows in texts.items()
    }
    aligned = []
    for example in examples:
        links = aligner.align(example["source"][:-1], example["target"][:-1])
        links = np.concatenate([links, [-1]])  # the end token
        aligned.append(links[:, None] == np.arange(len(example["source"])))
    return masks | {"cross-attention": {ALIGNED: stack_masks(aligned)}}


def build_word_mask(tokenizer: Tokenizer, ids: Ids) -> NDArray[np.bool_]:
    """Return which tokens belong to the same word (T, T)."""
    special_ids = {*tokenizer.all_special_ids}
    starts = [
        token_id in special_ids or token.startswith(WORD_START)
        for token_id, token in zip(ids, tokenizer.convert_ids_to_tokens(ids.tolist()), strict=True)
    ]
    words = np.cumsum(starts)
    mask: NDArray[np.bool_] = words[:, None] == words
    return mask


def stack_masks(masks: Sequence[NDArray[np.bool_]]) -> Tensor:
    """Return masks of different sizes as one tensor (B, T, S), false in the padding."""
    queries, keys = (max(mask.shape[axis] for mask in masks) for axis in (0, 1))
    stacked = torch.zeros(len(masks), queries, keys, dtype=torch.bool)
    for row, mask in zip(stacked, masks, strict=True):
        row[: mask.shape[0], : mask.shape[1]] = torch.from_numpy(mask)
    return stacked


@contextmanager
def remove_head(net: nn.Module, path: str, head: int) -> Iterator[None]:
    """Replace the output of one head by zeros in the block."""
    attention = net.get_submodule(path)
    assert isinstance(attention, Attention)
    columns = slice(head * attention.head_dim, (head + 1) * attention.head_dim)

    def zero_head(module: nn.Module, inputs: tuple[Tensor]) -> Tensor:
        (x,) = inputs
        x = x.clone()
        x[..., columns] = 0
        return x

    handle = attention.o.register_forward_pre_hook(zero_head)
    try:
        yield
    finally:
        handle.remove()


def write_pictures(
    context: CellContext,
    translator: Translator,
    pair: SentencePair,
    heads: Sequence[HeadPatterns],
) -> None:
    """Write a picture of the clearest head of each pattern, on one pair of texts."""
    tokenizer = translator.corpus.tokenizer
    (example,) = translator.corpus.encode_pairs([pair])
    weights = translator.look([example], ".*")
    source, target = (
        [
            token.replace(WORD_START, "") or WORD_START
            for token in tokenizer.convert_ids_to_tokens(ids)
        ]
        for ids in (example["source"].tolist(), example["target"].tolist())
    )
    context.results.mkdir(parents=True, exist_ok=True)
    for pattern in PATTERNS:
        head = max(heads, key=lambda head: head.shares.get(pattern, -1.0))
        part = name_part(head.path)
        keys = ["<s>", *target[:-1]] if part == "decoder self-attention" else source
        # The rows of cross-attention are named by the token that they predict.
        queries = target if part == "cross-attention" else keys
        title = f"{pattern.capitalize()}: {head.shares[pattern]:.0%} of the queries"
        matrix = weights[head.path][0, head.head].tolist()
        num_heads = weights[head.path].shape[1]
        name = f"{num_heads}-heads-{pattern.replace(' ', '-')}.svg"
        with write_file(context.results / name) as path:
            svg = render_attention_svg(title, matrix, queries, keys, head.path, head.head)
            path.write_text(svg, encoding="utf-8")
