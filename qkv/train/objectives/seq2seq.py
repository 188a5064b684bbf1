"""Writing: a decoder writes a target (translation), the text that was damaged (BART, mBART), or the spans
that were taken out of it (T5, Switch)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from qkv.batch import Batch
from qkv.data.batches.collate import NONE, Example, as_rows, beside
from qkv.data.noise import denoising as noises
from qkv.data.noise.span_corruption import corrupt
from qkv.nn.feed_forward import balance_loss, z_loss
from qkv.train.objectives.causal_lm import counted
from qkv.train.objectives.objective import Objective, Out, cross_entropy, mean_over, precise, targets
from qkv.train.objectives.vocabulary import Words
from qkv.validate import number

ROUTES = ("encoded_router", "router")  # of the encoder, of the decoder


def written(out: Out, *, smoothing: float = 0.0) -> dict[str, Tensor]:
    return {"loss": cross_entropy(out["logits"], out["labels"], smoothing)}


def lay(examples: Sequence[Example], *, words: Words, keep: tuple[str, ...] = ()) -> Batch:
    """Sources and targets side by side; the decoder reads its target one to the right, a start in front.

    The start is the example's own (a language), the target's last (mBART), or that of the model."""
    usual = words.start if words.start is not None else words.pad
    wraps = words.shift is not None and words.shift.how == "wrap"
    firsts = [example.get("start", example["target"][-1] if wraps else usual) for example in examples]
    shifted = [
        {"target": np.concatenate([[first], example["target"][:-1]])}
        for first, example in zip(firsts, examples, strict=True)
    ]
    labels = beside([example["target"] for example in examples], NONE)
    return Batch(
        rows=as_rows(examples, "source", pad=words.pad), target=as_rows(shifted, "target", pad=words.pad),
        labels={"labels": labels}, keep=keep,
    )  # fmt: skip


def seq2seq(words: Words, *, smoothing: float = 0.0, agree: float = 0.0) -> Objective:
    """The target from the source; `smoothing` of the probability is spread over all words. With `agree`,
    every row is read twice, under dropout of its own each time, and both shall say the same (R-Drop, Liang
    et al. 2021; half of its alpha)."""
    number("objective.smoothing", smoothing, at_least=0, less_than=1)
    number("objective.agree", agree, at_least=0)
    one, collate = partial(written, smoothing=smoothing), partial(lay, words=words)
    if not agree:
        return Objective(name="seq2seq", parts=one, counts=counted, collate=collate)

    def parts(out: Out) -> dict[str, Tensor]:
        return one(out) | {"agree": agree * difference(out["logits"], out["labels"])}

    def tally(batch: Batch) -> dict[str, int]:
        return counted(batch) | {"agree": targets(batch)}

    def twice(examples: Sequence[Example]) -> Batch:
        return collate([*examples, *examples])

    return Objective(name="seq2seq", parts=parts, counts=tally, collate=twice)


def difference(logits: Tensor, labels: Tensor) -> Tensor:
    """How far the second half of the rows (2B, T, V) is from the first: the mean of both divergences."""
    first, second = precise(logits).log_softmax(-1).unflatten(0, (2, -1))
    each = ((first.exp() - second.exp()) * (first - second)).sum(-1) / 2
    asks = labels.unflatten(0, (2, -1))[0] != NONE
    return mean_over(each, asks)


Damage = Callable[[NDArray[np.int64], np.random.Generator], NDArray[np.int64]]


def damager(
    name: str, words: Words, share: float, mean: float, *, shuffled: bool, deleted: float, rotated: bool
) -> Damage:  # fmt: skip
    """Sentences in another order, a text begun in its middle, tokens gone, spans hidden, in this order."""
    if words.mask is None:
        raise ValueError(
            f'objective {name}: the tokenizer has no mask token; text.purpose = "roberta" has one'
        )
    number("objective.share", share, at_least=0, less_than=1)
    number("objective.mean", mean, more_than=0)
    number("objective.deleted", deleted, at_least=0, less_than=1)
    chosen: tuple[tuple[object, noises.Noise], ...] = (
        (shuffled, partial(noises.shuffle, stops=words.stops)),
        (rotated, noises.rotate),
        (deleted, partial(noises.delete, share=deleted)),
        (share, partial(noises.infill, mask=words.mask, share=share, mean=mean)),
    )
    return partial(noises.damage, noises=[noise for asked, noise in chosen if asked])


def room(words: Words, around: int) -> int | None:
    """Tokens that a damaged text may have: spans of length 0 can make it longer than it was."""
    return words.length - around if words.length else None


def denoising(
    words: Words, *, share: float = 0.3, mean: float = 3.0, shuffled: bool = True, deleted: float = 0.0,
    rotated: bool = False,
) -> Objective:  # fmt: skip
    """The text from what is left of it (BART): sentences in random order (`shuffled`), spans hidden behind
    one mask (`share` of all tokens); its other noises are tokens without a trace (`deleted`, a share), and a
    text that begins in its middle (`rotated`)."""
    damage = damager(
        "denoising", words, share, mean, shuffled=shuffled, deleted=deleted, rotated=rotated
    )  # fmt: skip

    def noise(example: Example, rng: np.random.Generator) -> Example:
        text = example["tokens"]
        read = damage(text, rng)[: room(words, words.frame.size)]
        return {"source": words.frame.tokens(read), "target": words.frame.tokens(text)}

    return Objective(
        name="denoising", parts=written, counts=counted, noise=noise, collate=partial(lay, words=words)
    )


def multilingual(
    words: Words, *, share: float = 0.35, mean: float = 3.5, shuffled: bool = True, deleted: float = 0.0,
    rotated: bool = False,
) -> Objective:  # fmt: skip
    """The same in many languages: a text ends with its language, and the decoder starts with it (mBART)."""
    damage = damager(
        "multilingual-denoising", words, share, mean, shuffled=shuffled, deleted=deleted, rotated=rotated
    )  # fmt: skip
    end = [] if words.end is None else [words.end]

    def noise(example: Example, rng: np.random.Generator) -> Example:
        text, tail = example["tokens"], np.array([*end, *example["code"]], np.int64)
        source = np.concatenate([damage(text, rng)[: room(words, len(tail))], tail])
        return {"source": source, "target": np.concatenate([text, tail]), "start": int(tail[-1])}

    return Objective(
        name="multilingual-denoising", parts=written, counts=counted, noise=noise,
        collate=partial(lay, words=words),
    )  # fmt: skip


def spans(
    words: Words, *, density: float = 0.15, mean: float = 3.0, balance: float = 0.0, z: float = 0.0
) -> Objective:
    """The spans that were taken out, a sentinel before each (T5). Experts are asked to share the tokens
    (`balance`, 0.01 in Switch) and their router to keep its numbers small (`z`, 0.001 in ST-MoE)."""
    if not words.sentinels or words.end is None:
        raise ValueError(
            "objective span-corruption: the tokenizer has no sentinels or no end token; "
            'text.purpose = "t5" with text.sentinels makes them'
        )
    number("objective.density", density, more_than=0, less_than=1)
    number("objective.mean", mean, at_least=1)
    first, count, end = words.sentinels[0], len(words.sentinels), words.end
    weights = {name: weight for name, weight in (("balance", balance), ("z", z)) if weight}

    def noise(example: Example, rng: np.random.Generator) -> Example:
        made = corrupt(
            example["tokens"], rng, sentinel=first, end=end, sentinels=count, density=density, mean=mean
        )
        return {"source": made.source, "target": made.target}

    def parts(out: Out) -> dict[str, Tensor]:
        found, routes = written(out), [out[name] for name in ROUTES if name in out]
        if weights and not routes:
            raise ValueError("objective.balance and objective.z are for a model with experts, such as switch")
        losses = {"balance": balance_loss, "z": z_loss}
        for name, weight in weights.items():
            layers = [losses[name](precise(layer)) for route in routes for layer in route]
            found[name] = weight * sum(layers[1:], layers[0])
        return found

    def tally(batch: Batch) -> dict[str, int]:
        """Rows of a batch are of one length: each has the same share in what is said of the router."""
        return counted(batch) | dict.fromkeys(weights, len(batch.labels["labels"]))

    collate = partial(lay, words=words, keep=("router",) if weights else ())
    return Objective(name="span-corruption", parts=parts, counts=tally, noise=noise, collate=collate)
