"""The objectives by name: what each family's paper taught it, and what is taught after that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from qkv.batch import Batch
from qkv.data.rows import NONE, Example, as_rows, beside, tokens_batch, values
from qkv.learn.objective import Objective, Out, cross_entropy, targets


class Words(NamedTuple):
    """What an objective must know of a vocabulary."""

    size: int
    pad: int = 0
    mask: int | None = None
    start: int | None = None  # what a decoder is given first
    end: int | None = None
    special: tuple[int, ...] = ()
    left: bool = False  # pads stand on the left


def labelled(out: Out, *, smoothing: float = 0.0) -> dict[str, Tensor]:
    return {"loss": cross_entropy(out["logits"], out["labels"], smoothing)}


def counted(batch: Batch) -> dict[str, int]:
    return {"loss": targets(batch)}


def causal(words: Words) -> Objective:
    """Every token from those before it (GPT). The examples have one token more than is read."""

    def shifted(example: Example, rng: np.random.Generator) -> Example:
        tokens = example["tokens"]
        found = {"tokens": tokens[:-1], "labels": tokens[1:]}
        return found | ({"document": example["document"][:-1]} if "document" in example else {})

    def collate(examples: Sequence[Example]) -> Batch:
        rows = as_rows(examples, pad=words.pad)
        return Batch(rows=rows, labels={"labels": beside([e["labels"] for e in examples], NONE)})

    return Objective(name="causal-lm", parts=labelled, counts=counted, noise=shifted, collate=collate)


def seq2seq(words: Words, *, smoothing: float = 0.0) -> Objective:
    """The target from the source; the decoder is given the target one to the right, `start` in front."""
    start = words.start if words.start is not None else words.pad

    def collate(examples: Sequence[Example]) -> Batch:
        shifted = [{"target": np.concatenate([[start], e["target"][:-1]])} for e in examples]
        labels = beside([e["target"] for e in examples], NONE)
        rows = as_rows([{"source": e["source"]} for e in examples], "source", pad=words.pad)
        return Batch(rows=rows, target=as_rows(shifted, "target", pad=words.pad), labels={"labels": labels})

    parts = partial(labelled, smoothing=smoothing)
    return Objective(name="seq2seq", parts=parts, counts=counted, collate=collate)


def label(words: Words, *, kind: str = "single") -> Objective:
    """A label a text: one of several, several of them, or a number."""

    def parts(out: Out) -> dict[str, Tensor]:
        logits, wanted = out["logits"].float(), out["labels"]
        if kind == "single":
            return {"loss": F.cross_entropy(logits, wanted)}
        if kind == "several":
            return {"loss": F.binary_cross_entropy_with_logits(logits, wanted.float())}
        return {"loss": F.mse_loss(logits.squeeze(-1), wanted.float())}

    def collate(examples: Sequence[Example]) -> Batch:
        rows = as_rows(examples, pad=words.pad, left=words.left)
        return Batch(rows=rows, labels={"labels": values(examples, "label")})

    def count(batch: Batch) -> dict[str, int]:
        return {"loss": len(batch.labels["labels"])}

    return Objective(name="label", parts=parts, counts=count, collate=collate)


def tag(words: Words) -> Objective:
    """A label a token; tokens whose label is NONE are not asked."""
    collate = partial(tokens_batch, pad=words.pad, left=words.left)
    return Objective(name="tag", parts=labelled, counts=counted, collate=collate)


def span(words: Words) -> Objective:
    """Where the answer starts and where it ends."""

    def parts(out: Out) -> dict[str, Tensor]:
        return {side: F.cross_entropy(out[side].float(), out[f"{side}s"]) for side in ("start", "end")}

    def collate(examples: Sequence[Example]) -> Batch:
        labels = {f"{side}s": values(examples, side) for side in ("start", "end")}
        return Batch(rows=as_rows(examples, pad=words.pad, left=words.left), labels=labels)

    def count(batch: Batch) -> dict[str, int]:
        return dict.fromkeys(("start", "end"), len(batch.labels["starts"]))

    return Objective(name="span", parts=parts, counts=count, collate=collate)


OBJECTIVES: dict[str, Callable[..., Objective]] = {
    "causal-lm": causal, "seq2seq": seq2seq, "label": label, "tag": tag, "span": span,
}  # fmt: skip


def objective(name: str, words: Words, **settings: Any) -> Objective:
    if name not in OBJECTIVES:
        raise ValueError(f"objective {name!r}, expected one of {', '.join(OBJECTIVES)}")
    try:
        return OBJECTIVES[name](words, **settings)
    except TypeError as error:
        raise ValueError(f"objective {name}: {str(error).rpartition('() ')[2]}") from None
