"""Asking: what a head shall say of a text: its label, a tag a word, a span of it, the best of choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.batch import Batch
from qkv.data.batches.collate import NONE, Example, as_rows, beside, values
from qkv.data.encode.labels import AWAY, from_bits
from qkv.model.inputs import shift_right
from qkv.train.objectives.causal_lm import counted, labelled
from qkv.train.objectives.objective import Objective, Out, cross_entropy, precise
from qkv.train.objectives.vocabulary import Words

KINDS = ("single", "several", "regression")
SIDES = ("start", "end")


def read(examples: Sequence[Example], words: Words, labels: dict[str, Tensor]) -> Batch:
    """The texts as a head is asked about them; a decoder reads the same text, moved by one."""
    rows = as_rows(examples, pad=words.pad, left=words.left)
    if rows.types is not None and words.types:
        rows = replace(rows, types=rows.types.clamp(max=words.types - 1))
    target = None if words.shift is None else shift_right(rows, words.shift)
    return Batch(rows=rows, target=target, labels=labels)


def per_row(batch: Batch) -> dict[str, int]:
    return {"loss": len(batch.labels["labels"])}


def label(words: Words, *, kind: str = "single") -> Objective:
    """A label a text: one of them, several of them, or a number."""
    if kind not in KINDS:
        raise ValueError(f"objective.kind {kind!r}, expected one of {', '.join(KINDS)}")

    def parts(out: Out) -> dict[str, Tensor]:
        logits, wanted = precise(out["logits"]), out["labels"]
        if kind == "single":
            return {"loss": F.cross_entropy(logits, wanted)}
        if kind == "several":
            return {"loss": F.binary_cross_entropy_with_logits(logits, wanted)}
        return {"loss": F.mse_loss(logits.squeeze(-1), wanted)}

    def noise(example: Example, rng: np.random.Generator) -> Example:
        found = example["label"]
        if kind == "single":
            return {**example, "label": found[0]}
        if kind == "regression":
            return {**example, "label": from_bits(found)[0]}
        return {**example, "label": np.isin(np.arange(words.labels), found).astype(np.float32)}

    def collate(examples: Sequence[Example]) -> Batch:
        return read(examples, words, {"labels": values(examples, "label")})

    return Objective(name="label", parts=parts, counts=per_row, noise=noise, collate=collate)


def tag(words: Words) -> Objective:
    """A label a word; other tokens are not asked."""

    def noise(example: Example, rng: np.random.Generator) -> Example:
        stored = example["labels"]
        return {**example, "labels": np.where(stored == AWAY, NONE, stored - 1)}

    def collate(examples: Sequence[Example]) -> Batch:
        labels = beside([example["labels"] for example in examples], NONE, left=words.left)
        return read(examples, words, {"labels": labels})

    return Objective(name="tag", parts=labelled, counts=counted, noise=noise, collate=collate)


def span(words: Words) -> Objective:
    """Where the answer starts and where it ends; each is half of the loss (BERT)."""

    def parts(out: Out) -> dict[str, Tensor]:
        return {side: cross_entropy(out[side], out[f"{side}s"]) / 2 for side in SIDES}

    def collate(examples: Sequence[Example]) -> Batch:
        longest = max(len(example["tokens"]) for example in examples)
        moved = torch.tensor([longest - len(e["tokens"]) if words.left else 0 for e in examples])
        return read(examples, words, {f"{side}s": values(examples, side) + moved for side in SIDES})

    def count(batch: Batch) -> dict[str, int]:
        return dict.fromkeys(SIDES, len(batch.labels["starts"]))

    return Objective(name="span", parts=parts, counts=count, collate=collate)


def choice(words: Words) -> Objective:
    """Which of a row's choices is the right one. All choices are rows, those of an example side by side."""

    def parts(out: Out) -> dict[str, Tensor]:
        scores = out["choice"].flatten().unflatten(0, (len(out["labels"]), -1))  # (B * C, 1) -> (B, C)
        return {"loss": cross_entropy(scores, out["labels"])}

    def collate(examples: Sequence[Example]) -> Batch:
        flat: list[Example] = []
        for example in examples:
            ends = np.cumsum(example["windows"])[:-1]
            tokens, types = np.split(example["tokens"], ends), np.split(example["types"], ends)
            flat += [{"tokens": a, "types": b} for a, b in zip(tokens, types, strict=True)]
        labels = values([{"label": example["label"][0]} for example in examples], "label")
        return read(flat, words, {"labels": labels})

    return Objective(name="choice", parts=parts, counts=per_row, collate=collate)
