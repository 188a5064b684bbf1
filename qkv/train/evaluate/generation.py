"""Written: what a seq2seq model writes, and how near it comes to what was wanted. Is given what decodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import NamedTuple, Protocol

import numpy as np

from qkv.data.encode.encoder import Pairs
from qkv.data.read.record import Record
from qkv.model.model import Model
from qkv.train.evaluate.metrics import bleu, chrf, exact, overlap, rouge
from qkv.train.evaluate.validation import ALONE, Tell, silent
from qkv.train.sharding import Spread

AT_ONCE = 64  # sources


class Writer(Protocol):
    """Decodes: ids of sources to ids of what a model writes. `how` says by what search."""

    @property
    def how(self) -> Mapping[str, float]: ...

    def __call__(self, model: Model, sources: list[list[int]], /) -> list[list[int]]: ...


class Papers(NamedTuple):
    """Sources to be written about, and the texts that are right for each."""

    sources: list[list[int]]
    wanted: list[list[str]]
    answers: bool  # they are answers to questions

    @staticmethod
    def of(encoder: Pairs, sources: list[list[int]], records: Sequence[Record]) -> Papers:
        answers = answers_questions(encoder)
        wanted = [
            [answer.text for answer in record.answers()] if answers else encoder.sides([record], "target")
            for record in records
        ]
        return Papers(sources, wanted, answers)

    def written(
        self, model: Model, writer: Writer, *, spread: Spread = ALONE, tell: Tell = silent
    ) -> list[str]:  # fmt: skip
        """What the model writes; processes share the sources out, those of like length together."""
        assert model.tokenizer is not None
        order = sorted(range(len(self.sources)), key=lambda i: len(self.sources[i]))
        blocks = [order[i : i + AT_ONCE] for i in range(0, len(order), AT_ONCE)]
        own, texts = blocks[spread.rank :: spread.world], dict[int, str]()
        total = sum(map(len, own))
        for block in own:
            ids = writer(model, [self.sources[i] for i in block])
            texts |= zip(block, map(model.tokenizer.decode, ids), strict=True)
            tell(f"wrote {len(texts):,} of {total:,} texts", len(texts), total)
        every = spread.team.each(texts) if spread.world > 1 else [texts]
        texts = {number: text for each in every for number, text in each.items()}
        return [texts[i] for i in range(len(self.sources))]

    def scores(self, texts: Sequence[str], *, lower: bool = False) -> tuple[dict[str, float], dict[str, str]]:
        """Exact match and F1 of answers; of other texts BLEU, chrF and ROUGE. And how they were counted.

        `lower`: BLEU in small letters beside it."""
        if self.answers:
            pairs = list(zip(texts, self.wanted, strict=True))
            return {name: mean([judge(*pair) for pair in pairs]) for name, judge in ANSWERED.items()}, {}
        wanted = [one for (one,) in self.wanted]
        each = [rouge(*both) for both in zip(texts, wanted, strict=True)]
        values = {name: mean([one[name] for one in each]) for name in each[0]}
        if find_spec("sacrebleu") is None:
            return values, {"bleu": "not counted: pip install 'qkv[eval]'"}
        found = {"bleu": bleu(texts, wanted), "chrf": chrf(texts, wanted)}
        found |= {"bleu_lower": bleu(texts, wanted, lower=True)} if lower else {}
        signatures = {name: score.signature for name, score in found.items()}
        return {name: score.value for name, score in found.items()} | values, signatures


ANSWERED = {"exact": exact, "f1": overlap}


def answers_questions(encoder: Pairs) -> bool:
    """Whether its targets are answers, of which a question may have several that are right, or none."""
    return encoder.target.strip() == "{answers}"


def names_of(encoder: Pairs) -> tuple[str, ...]:
    """The scores of what is written to its sources."""
    if answers_questions(encoder):
        return tuple(ANSWERED)
    return (*(("bleu", "chrf") if find_spec("sacrebleu") else ()), "rouge1", "rouge2", "rougeL")


def mean(values: Sequence[float]) -> float:
    return sum(values) / max(len(values), 1)


def spaced(count: int, most: int) -> list[int]:
    """At most so many numbers below `count`, evenly from the first to the last."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(int)).tolist()
