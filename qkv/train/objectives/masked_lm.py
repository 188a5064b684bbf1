"""Masked words: hidden tokens are guessed, alone (BERT, RoBERTa), with a second question (BERT, ALBERT),
against a discriminator (ELECTRA), or as a teacher would (DistilBERT)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from qkv.batch import Batch
from qkv.data.batches.collate import NONE, Example, as_rows, beside, seats, tokens_batch, values
from qkv.data.noise.masking import choose, hide, ordinary
from qkv.data.noise.sentence_pairs import next_sentence, sentence_order
from qkv.train.objectives.causal_lm import counted, labelled
from qkv.train.objectives.objective import Noise, Objective, Out, cross_entropy, mean_over, precise, targets
from qkv.train.objectives.vocabulary import Words
from qkv.validate import number

ORDERS = ("next", "order")


def hider(
    name: str, words: Words, *, share: float, hidden: float = 0.8, random: float = 0.1, whole: bool = False,
    longest: int = 1,
) -> Noise:  # fmt: skip
    """Hides tokens of an example: what is read, and the labels of the chosen."""
    if words.mask is None:
        raise ValueError(f'objective {name}: the tokenizer has no mask token; text.purpose = "bert" has one')
    number("objective.share", share, more_than=0, less_than=1)
    number("objective.longest", longest, whole=True, at_least=1)
    number("objective.hidden", hidden, at_least=0, at_most=1)
    number("objective.random", random, at_least=0, at_most=round(1 - hidden, 9))  # 1 - 0.9 is below 0.1
    usual, mask = ordinary(words.size, words.special), words.mask
    special = np.isin(np.arange(words.size), words.special)

    def noise(example: Example, rng: np.random.Generator) -> Example:
        tokens = example["tokens"]
        starts = example["starts"] > 0 if whole else None
        chosen = choose(special[tokens], rng, share=share, starts=starts, longest=longest)
        read = hide(tokens, chosen, rng, mask=mask, ordinary=usual, hidden=hidden, random=random)
        return {**example, "tokens": read, "labels": np.where(chosen, tokens, NONE)}

    return noise


def asking(words: Words, share: float) -> Callable[[Sequence[Example]], Batch]:
    """Rows of which a head reads the chosen tokens alone; batches of one size have room for as many."""

    def collate(examples: Sequence[Example]) -> Batch:
        longest = max(len(example["tokens"]) for example in examples)
        room = len(examples) * max(1, round(share * longest))
        return tokens_batch(examples, pad=words.pad, left=words.left, room=room)

    return collate


def masked(
    words: Words, *, share: float = 0.15, hidden: float = 0.8, random: float = 0.1, whole: bool = False,
    longest: int = 1,
) -> Objective:  # fmt: skip
    """Of each row `share` tokens, of which 80% are masked, 10% are any other and 10% stay (BERT).

    `whole`: whole words. `longest`: runs of up to so many, 3 in ALBERT."""
    noise = hider(
        "masked-lm", words, share=share, hidden=hidden, random=random, whole=whole, longest=longest
    )  # fmt: skip
    collate = asking(words, share)
    return Objective(name="masked-lm", parts=labelled, counts=counted, noise=noise, collate=collate)


def segments(
    words: Words, *, order: str = "next", short: float = 0.1, share: float = 0.15, whole: bool = False,
    longest: int = 1,
) -> Objective:  # fmt: skip
    """Masked words in two texts, and whether the second comes after the first (BERT), or before (ALBERT).

    `order`: "next", a second text may be of another document; "order", the two may have changed places."""
    if order not in ORDERS:
        raise ValueError(f"objective.order {order!r}, expected one of {', '.join(ORDERS)}")
    size = words.length - words.pair.size
    if size < 2:
        raise ValueError(f"data.length {words.length}, expected the number of tokens that a pair has")
    number("objective.short", short, at_least=0, at_most=1)
    hides = hider("segments", words, share=share, whole=whole, longest=longest)

    def noise(example: Example, rng: np.random.Generator) -> Example:
        documents, number = example["documents"], example["number"]
        if order == "next":
            pairs = next_sentence(documents, number, rng, size=size, short=short)
        else:
            pairs = sentence_order(documents[number], rng, size=size, short=short)
        pair = pairs[example["turn"] % len(pairs)]
        tokens, types = words.pair.tokens(pair.a, pair.b), words.pair.kinds(pair.a, pair.b)
        found = {"tokens": tokens, "types": types, "apart": pair.label}
        if whole:
            a, b = pair.a >> 1, pair.b >> 1  # see data.source.Sentences
            starts = words.pair.tokens(pair.a & 1, pair.b & 1)
            found |= {"tokens": words.pair.tokens(a, b), "starts": starts}
        return hides(found, rng)

    def collate(examples: Sequence[Example]) -> Batch:
        batch = asking(words, share)(examples)
        batch.labels["apart"] = values(examples, "apart")
        return batch

    def parts(out: Out) -> dict[str, Tensor]:
        return {
            "lm": cross_entropy(out["logits"], out["labels"]),
            "pair": cross_entropy(out["pair"], out["apart"]),
        }

    def count(batch: Batch) -> dict[str, int]:
        return {"lm": targets(batch), "pair": len(batch.labels["apart"])}

    return Objective(name="segments", parts=parts, counts=count, noise=noise, collate=collate)


def replaced(words: Words, *, share: float = 0.15, weight: float = 50.0) -> Objective:
    """A generator guesses hidden words; which tokens it got wrong, a discriminator tells (ELECTRA).

    The net is a `twin.Twin`: it gives both. Of the chosen tokens 85% are masked, the others stay."""
    number("objective.weight", weight, at_least=0)

    def parts(out: Out) -> dict[str, Tensor]:
        seat, wrong = out["seat"], out["wrong"]
        each = F.binary_cross_entropy_with_logits(precise(out["replaced"]), precise(wrong), reduction="none")
        told = mean_over(each, seat)
        return {"lm": cross_entropy(out["logits"], out["labels"]), "replaced": weight * told}

    def count(batch: Batch) -> dict[str, int]:
        return {"lm": targets(batch), "replaced": int(batch.labels["seat"].sum())}

    noise = hider("replaced-token", words, share=share, hidden=0.85, random=0.0)
    collate = partial(seated, asking(words, share))
    return Objective(name="replaced-token", parts=parts, counts=count, noise=noise, collate=collate)


def seated(collate: Callable[[Sequence[Example]], Batch], examples: Sequence[Example]) -> Batch:
    """The batch, where its tokens stand among the labels."""
    batch = collate(examples)
    assert batch.rows is not None
    batch.labels["seat"] = seats(batch.rows)
    return batch


def distilled(
    words: Words, *, share: float = 0.15, temperature: float = 2.0, soft: float = 5.0, lm: float = 2.0,
    cosine: float = 1.0,
) -> Objective:  # fmt: skip
    """A teacher's distribution over every token, masked words, and the direction of the last states
    (DistilBERT). The net is a `twin.Taught`: it gives the student's and the teacher's."""

    def rows_of(examples: Sequence[Example]) -> Batch:
        rows = as_rows(examples, pad=words.pad, left=words.left)
        labels = beside([example["labels"] for example in examples], NONE, left=words.left)
        return Batch(rows=rows, labels={"labels": labels})

    def parts(out: Out) -> dict[str, Tensor]:
        own, other = (
            (precise(out[name]) / temperature).log_softmax(-1) for name in ("logits", "taught_logits")
        )
        far = F.kl_div(own, other, reduction="none", log_target=True).sum(-1)
        turn = 1 - F.cosine_similarity(precise(out["hidden"]), precise(out["taught"]), dim=-1)
        return {
            "soft": soft * temperature**2 * mean_over(far, out["seat"]),
            "lm": lm * cross_entropy(out["logits"], out["labels"]),
            "cosine": cosine * mean_over(turn, out["seat"]),
        }

    def count(batch: Batch) -> dict[str, int]:
        seats = int(batch.labels["seat"].sum())
        return {"soft": seats, "lm": targets(batch), "cosine": seats}

    number("objective.temperature", temperature, more_than=0)
    noise = hider("distillation", words, share=share)
    collate = partial(seated, rows_of)
    return Objective(name="distillation", parts=parts, counts=count, noise=noise, collate=collate)
