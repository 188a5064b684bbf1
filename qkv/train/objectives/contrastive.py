"""Matching: of all pairs in a batch, those that belong together shall be the nearest.

The others are what they are told from: the losses read the vectors of a whole batch."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.batch import Batch, Rows
from qkv.data.batches.collate import Example, as_rows
from qkv.data.encode.images import pixels
from qkv.train.objectives.objective import Objective, Out, precise
from qkv.train.objectives.vocabulary import Words
from qkv.validate import number


def per_pair(batch: Batch) -> dict[str, int]:
    return {"loss": int(batch.labels["pairs"])}


def texts(words: Words, *, temperature: float = 0.05) -> Objective:
    """Pairs of texts; the vector of the first one looks for that of the second among all in the batch."""
    number("objective.temperature", temperature, more_than=0)

    def parts(out: Out) -> dict[str, Tensor]:
        if "vector" not in out:
            raise ValueError(
                'objective contrastive: the model gives no vector; model.vector = "mean" adds one'
            )
        a, b = F.normalize(precise(out["vector"]), dim=-1).unflatten(0, (-1, 2)).unbind(1)  # (B, W) each
        scores = a @ b.T / temperature
        return {"loss": F.cross_entropy(scores, torch.arange(len(a), device=a.device))}

    def collate(examples: Sequence[Example]) -> Batch:
        both = [{"tokens": example[side]} for example in examples for side in ("source", "target")]
        rows = as_rows(both, pad=words.pad, left=words.left)
        return Batch(rows=rows, labels={"pairs": torch.tensor(len(examples))})

    return Objective(name="contrastive", parts=parts, counts=per_pair, collate=collate, together=("vector",))


def images(words: Words) -> Objective:
    """Images and their texts, each looking for the other (CLIP)."""

    def parts(out: Out) -> dict[str, Tensor]:
        scores = precise(out["scaled"]) @ precise(out["text"]).T  # (B, B): images, texts
        right = torch.arange(len(scores), device=scores.device)
        return {"loss": (F.cross_entropy(scores, right) + F.cross_entropy(scores.T, right)) / 2}

    def noise(example: Example, rng: np.random.Generator) -> Example:
        path = os.fsdecode(example["image"].astype(np.uint8).tobytes())
        return {**example, "pixels": pixels(path, words.side)}

    def collate(examples: Sequence[Example]) -> Batch:
        images = torch.from_numpy(np.stack([example["pixels"] for example in examples]))
        return Batch(
            rows=as_rows(examples, pad=words.pad, left=words.left),
            image=Rows.of(images=images, cells=words.cells), labels={"pairs": torch.tensor(len(examples))},
        )  # fmt: skip

    return Objective(
        name="image-text", parts=parts, counts=per_pair, noise=noise, collate=collate,
        together=("scaled", "text"),
    )  # fmt: skip
