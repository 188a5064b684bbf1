"""Running text: the next token (GPT), remembering (Transformer-XL), under a code (CTRL), any one (XLNet)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.batch import Batch
from qkv.data.batches.collate import NONE, Example, as_rows, beside
from qkv.data.noise.permutation import order
from qkv.model.inputs import permutation
from qkv.train.objectives.objective import Objective, Out, cross_entropy, targets
from qkv.train.objectives.vocabulary import Words
from qkv.validate import number


def labelled(out: Out) -> dict[str, Tensor]:
    return {"loss": cross_entropy(out["logits"], out["labels"])}


def counted(batch: Batch) -> dict[str, int]:
    return {"loss": targets(batch)}


def shifted(example: Example, rng: np.random.Generator) -> Example:
    """Every token and the one after it; the examples have one token more than is read."""
    tokens, document = example["tokens"], example.get("document")
    found = {"tokens": tokens[:-1], "labels": tokens[1:]}
    if document is None:
        return found
    after = np.where(document[1:] == document[:-1], tokens[1:], NONE)  # a document does not tell the next
    return {"tokens": tokens[:-1], "labels": after, "document": document[:-1]}


def causal(words: Words) -> Objective:
    """Every token from those before it (GPT)."""

    def collate(examples: Sequence[Example]) -> Batch:
        rows = as_rows(examples, pad=words.pad)
        return Batch(rows=rows, labels={"labels": beside([e["labels"] for e in examples], NONE)})

    return Objective(name="causal-lm", parts=labelled, counts=counted, noise=shifted, collate=collate)


def recurrence(words: Words) -> Objective:
    """The same over segments in a row, each of which sees the states of those before (Transformer-XL).

    An adaptive softmax gives log-probabilities, which a softmax leaves as they are."""
    like = causal(words)
    return Objective(
        name="recurrence", parts=labelled, counts=counted, noise=shifted, collate=like.collate, recurrent=True
    )


def codes(words: Words) -> Objective:
    """The same, a control code in front of every sequence, given and never asked for (CTRL)."""

    def noise(example: Example, rng: np.random.Generator) -> Example:
        return shifted({"tokens": np.concatenate([example["code"], example["tokens"]])}, rng)

    return Objective(
        name="control-codes", parts=labelled, counts=counted, noise=noise, collate=causal(words).collate
    )


def permuted(words: Words, *, window: int = 6, longest: int = 5, memory: bool = False) -> Objective:
    """About one token in `window`, in a random order: each from those before it in that order (XLNet).

    A second stream of queries knows where a token stands, not which it is. Rows of a batch have as many
    targets; where a short row has fewer, the rest asks for nothing. `memory`: a row sees the last one's."""
    number("objective.window", window, at_least=1)
    number("objective.longest", longest, at_least=1)

    def noise(example: Example, rng: np.random.Generator) -> Example:
        tokens = example["tokens"]
        special = np.isin(tokens, words.special)
        count = min(max(1, round(len(tokens) / window)), len(tokens) - int(special.sum()))
        made = order(special, rng, window=window, longest=longest, count=count)
        return {**example, "permute": made.permute, "targets": made.targets, "labels": tokens[made.targets]}

    def collate(examples: Sequence[Example]) -> Batch:
        rows = as_rows(examples, pad=words.pad, left=words.left)
        permute = torch.zeros(rows.size, rows.length, rows.length, dtype=torch.bool)
        places = []
        for i, example in enumerate(examples):
            length = len(example["tokens"])
            begin = rows.length - length if words.left else 0
            here = slice(begin, begin + length)
            permute[i, here, here] = torch.from_numpy(example["permute"])
            places.append(example["targets"] + begin)
        index = beside(places, 0)
        one_hot = F.one_hot(index, rows.length)  # (B, P, T)
        allowed, index_again = permutation(rows, permute, one_hot)
        labels = {"labels": beside([e["labels"] for e in examples], NONE)}
        return Batch(rows=rows, allowed=allowed, targets=index_again, labels=labels)

    return Objective(
        name="permutation-lm", parts=labelled, counts=counted, noise=noise, collate=collate, recurrent=memory
    )
