"""Evaluators of contrastive objectives: whether the nearest embedding is that of the same pair.

Legend: N pairs, W width."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from qkv.data.batches.sampler import Indices
from qkv.data.encode.encoder import Encoder
from qkv.train.evaluate.evaluator import Evaluator
from qkv.train.evaluate.evaluators import RecordSource
from qkv.train.objectives.context import SetupContext
from qkv.train.objectives.objective import ForwardOutputs

MAX_CANDIDATES = 10_000  # pairs among which a target is searched; more are searched in parts
RANK_CHUNK_SIZE = 1024  # rows of scores that are computed at once
TIE_TOLERANCE = 1e-6  # equal texts have nearly equal embeddings
RECALL_SIZES = (1, 5)

Embeddings = NDArray[np.float32]
Ranks = NDArray[np.int64]


def build_sentence_retrieval_evaluator(
    context: SetupContext, encoder: Encoder, read_records: RecordSource
) -> Evaluator:
    """Return the evaluator of sentence pairs: recall at 1 and 5 of the target of a source, and its mean
    reciprocal rank."""

    def collect(outputs: ForwardOutputs, indices: Indices) -> list[Any]:
        sources, targets = outputs["sentence_embedding"].unflatten(0, (-1, 2)).unbind(1)
        return collect_pairs(sources, targets)

    def compute_metrics(collected: list[Any]) -> dict[str, float]:
        ranks = rank_targets(collected)
        return compute_recalls(ranks) | {"mrr": float((1 / ranks).mean())}

    names = (*(f"recall_{size}" for size in RECALL_SIZES), "mrr")
    return Evaluator(names, collect, compute_metrics)


def build_image_retrieval_evaluator(
    context: SetupContext, encoder: Encoder, read_records: RecordSource
) -> Evaluator:
    """Return the evaluator of images and texts: recall at 1 and 5 of the text of an image among the
    different texts, and of an image of a text among all images."""

    def collect(outputs: ForwardOutputs, indices: Indices) -> list[Any]:
        pairs = collect_pairs(outputs["scaled_image_embeds"], outputs["text_embeds"])
        return list(zip(*zip(*pairs, strict=True), outputs["text_hashes"].tolist(), strict=True))

    def compute_metrics(collected: list[Any]) -> dict[str, float]:
        text_ranks: list[Ranks] = []
        image_ranks: list[Ranks] = []
        for start in range(0, len(collected), MAX_CANDIDATES):
            images, texts, hashes = zip(*collected[start : start + MAX_CANDIDATES], strict=True)
            _, first, group = np.unique(hashes, return_index=True, return_inverse=True)
            image_embeds = np.stack(images)
            text_embeds = np.stack(texts)[first]
            text_groups = np.arange(len(first))
            text_ranks.append(rank_groups(image_embeds, group, text_embeds, text_groups))
            image_ranks.append(rank_groups(text_embeds, text_groups, image_embeds, group))
        return compute_recalls(np.concatenate(text_ranks), "text_") | compute_recalls(
            np.concatenate(image_ranks), "image_"
        )

    names = tuple(f"{kind}_recall_{size}" for kind in ("text", "image") for size in RECALL_SIZES)
    return Evaluator(names, collect, compute_metrics)


def collect_pairs(sources: Tensor, targets: Tensor) -> list[Any]:
    """Return the normalized embeddings (N, W) of every pair as arrays."""
    return list(
        zip(
            *(F.normalize(x.float(), dim=-1).cpu().numpy() for x in (sources, targets)), strict=True
        )
    )


def rank_targets(pairs: list[tuple[Embeddings, Embeddings]]) -> Ranks:
    """Return the rank of the target of every source among all targets: 1 plus the number of nearer
    ones."""
    ranks = []
    for start in range(0, len(pairs), MAX_CANDIDATES):
        sources, targets = map(np.stack, zip(*pairs[start : start + MAX_CANDIDATES], strict=True))
        for first in range(0, len(sources), RANK_CHUNK_SIZE):
            chunk = slice(first, first + RANK_CHUNK_SIZE)
            scores = sources[chunk] @ targets.T  # (chunk, N)
            target_scores = (sources[chunk] * targets[chunk]).sum(1, keepdims=True)
            ranks.append(1 + (scores > target_scores + TIE_TOLERANCE).sum(1))
    return np.concatenate(ranks)


def rank_groups(
    sources: Embeddings, source_groups: Ranks, targets: Embeddings, target_groups: Ranks
) -> Ranks:
    """Return the rank of the nearest target of the same group for every source: 1 plus the number of
    nearer targets of other groups."""
    ranks = []
    for first in range(0, len(sources), RANK_CHUNK_SIZE):
        chunk = slice(first, first + RANK_CHUNK_SIZE)
        scores = sources[chunk] @ targets.T  # (chunk, N)
        is_match = source_groups[chunk, None] == target_groups[None, :]
        best = np.where(is_match, scores, -np.inf).max(1, keepdims=True)
        ranks.append(1 + (scores > best + TIE_TOLERANCE).sum(1))
    return np.concatenate(ranks)


def compute_recalls(ranks: Ranks, prefix: str = "") -> dict[str, float]:
    """Return the fraction of targets that are among the nearest 1 and 5."""
    return {f"{prefix}recall_{size}": float((ranks <= size).mean()) for size in RECALL_SIZES}
