"""Scores: how well answers agree with what was wanted, as the usual judges count it. Knows no model.

Every score is a share, from 0 to 1, but correlations (Matthews', Pearson's, Spearman's), from -1 to 1, and
BLEU and chrF: sacrebleu gives these, from 0 to 100. More of each is better."""

from __future__ import annotations

import math
import re
import statistics
import string
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence, Set
from importlib import import_module
from itertools import chain, groupby
from typing import Any, NamedTuple

Entity = tuple[str, int, int]  # its kind, its first word, and the one after its last


class Agreement(NamedTuple):
    precision: float
    recall: float
    f1: float


class Score(NamedTuple):
    """A score, and the way it was counted, for whoever compares it."""

    value: float
    signature: str


def agreement(common: int, predicted: int, wanted: int) -> Agreement:
    """Of so many predicted and so many wanted, that many are the same."""
    precision, recall = common / max(predicted, 1), common / max(wanted, 1)
    return Agreement(precision, recall, 2 * common / max(predicted + wanted, 1))


class Means(NamedTuple):
    """F1 over all labels at once, and the mean of each label's."""

    micro: float
    macro: float


def labels_f1(predicted: Sequence[Set[Hashable]], wanted: Sequence[Set[Hashable]]) -> Means:
    """Of several labels a text; the mean is over the labels that occur on either side."""
    right = Counter(chain.from_iterable(one & other for one, other in zip(predicted, wanted, strict=True)))
    given, asked = (Counter(chain.from_iterable(side)) for side in (predicted, wanted))
    every = given.keys() | asked.keys()
    each = [agreement(right[label], given[label], asked[label]).f1 for label in every]
    return Means(agreement(*map(Counter.total, (right, given, asked))).f1, sum(each) / max(len(each), 1))


def macro_f1(
    predicted: Sequence[Hashable], wanted: Sequence[Hashable], among: Collection[Hashable] = ()
) -> float:  # fmt: skip
    """Of one label a text; `among`: what is no label of these is wrong, and no label of its own."""
    known = [({label} if not among or label in among else set()) for label in predicted]
    return labels_f1(known, [{label} for label in wanted]).macro


def label_f1(predicted: Sequence[Hashable], wanted: Sequence[Hashable], label: Hashable) -> float:
    """The F1 of one label, as GLUE counts that of two."""
    pairs = zip(predicted, wanted, strict=True)
    common = sum(one == other == label for one, other in pairs)
    return agreement(common, predicted.count(label), wanted.count(label)).f1


def matthews(predicted: Sequence[Hashable], wanted: Sequence[Hashable]) -> float:
    """Matthews' correlation, of any number of labels (Gorodkin 2004); 0 where one side is all the same."""
    given, asked, total = Counter(predicted), Counter(wanted), len(wanted)
    right = sum(one == other for one, other in zip(predicted, wanted, strict=True))
    both = right * total - sum(given[label] * asked[label] for label in given)
    apart = [total**2 - sum(count**2 for count in side.values()) for side in (given, asked)]
    return both / math.sqrt(math.prod(apart)) if all(apart) else 0.0


def share(flags: Iterable[bool]) -> float:
    """Of all, so many are true."""
    held = list(flags)
    return sum(held) / max(len(held), 1)


# --- numbers ---


def pearson(predicted: Sequence[float], wanted: Sequence[float]) -> float:
    """Pearson's correlation; 0 where one side is all the same."""
    try:
        return statistics.correlation(predicted, wanted)
    except statistics.StatisticsError:
        return 0.0


def spearman(predicted: Sequence[float], wanted: Sequence[float]) -> float:
    """The correlation of the ranks."""
    return pearson(ranks(predicted), ranks(wanted))


def ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value; values that are the same share the mean of theirs."""
    found, before = [0.0] * len(values), 0
    for _, same in groupby(sorted(range(len(values)), key=lambda i: values[i]), key=lambda i: values[i]):
        places = list(same)
        for place in places:
            found[place] = before + (len(places) + 1) / 2
        before += len(places)
    return found


# --- tags ---

TAG = re.compile(r"O|[BIESLU]-.+")


def entities(tags: Iterable[str]) -> set[Entity]:
    """What is named by tags such as B-PER I-PER O, in IOB1, IOB2, IOBES or BILOU, read as conlleval does."""
    found: set[Entity] = set()
    mark, kind, start = "O", "", 0
    for place, tag in enumerate(chain(tags, ["O"])):
        new, _, named = tag.partition("-")
        if mark in "OESLU" or new in "OBSU" or named != kind:  # a border
            if mark != "O":
                found.add((kind, start, place))
            start = place
        mark, kind = new, named
    return found


def entity_f1(predicted: Sequence[Sequence[str]], wanted: Sequence[Sequence[str]]) -> Agreement:
    """Over all sentences: an entity is right where its kind and both of its ends are."""
    common = given = asked = 0
    for tags, gold in zip(predicted, wanted, strict=True):
        found, true = entities(tags), entities(gold)
        common, given, asked = common + len(found & true), given + len(found), asked + len(true)
    return agreement(common, given, asked)


# --- answers ---


def normal(answer: str) -> str:
    """SQuAD's: small letters; no punctuation, articles or extra blanks."""
    bare = answer.lower().translate(str.maketrans("", "", string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def exact(predicted: str, wanted: Sequence[str]) -> float:
    """SQuAD's exact match; `wanted` are answers that are all right, none of them: there is no answer."""
    return max(float(normal(predicted) == normal(answer)) for answer in wanted or [""])


def overlap(predicted: str, wanted: Sequence[str]) -> float:
    """SQuAD's F1: words in common, with the answer that fits best."""
    return max(_words_f1(normal(predicted).split(), normal(answer).split()) for answer in wanted or [""])


def _words_f1(one: list[str], other: list[str]) -> float:
    if not one or not other:
        return float(one == other)
    return agreement((Counter(one) & Counter(other)).total(), len(one), len(other)).f1


# --- texts ---


def rouge(predicted: str, wanted: str) -> dict[str, float]:
    """ROUGE-1, ROUGE-2 and ROUGE-L (F1), as rouge_score counts them without stemming: a-z and digits only."""
    one, other = (re.findall(r"[a-z0-9]+", text.lower()) for text in (predicted, wanted))
    found = {}
    for size in (1, 2):
        a, b = (Counter(zip(*(words[i:] for i in range(size)), strict=False)) for words in (one, other))
        found[f"rouge{size}"] = agreement((a & b).total(), a.total(), b.total()).f1
    return found | {"rougeL": agreement(_common(one, other), len(one), len(other)).f1}


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """The length of the longest common subsequence."""
    before = [0] * (len(other) + 1)
    for word in one:
        row = [0]
        for place, each in enumerate(other):
            row.append(before[place] + 1 if word == each else max(row[-1], before[place + 1]))
        before = row
    return before[-1]


def bleu(predicted: Sequence[str], wanted: Sequence[str], *, lower: bool = False) -> Score:
    return _sacrebleu("BLEU", predicted, wanted, lowercase=lower)


def chrf(predicted: Sequence[str], wanted: Sequence[str]) -> Score:
    return _sacrebleu("CHRF", predicted, wanted)


def _sacrebleu(name: str, predicted: Sequence[str], wanted: Sequence[str], **how: bool) -> Score:
    if len(predicted) != len(wanted):
        raise ValueError(f"{len(predicted)} texts, expected {len(wanted)}: one for each that is wanted")
    try:
        kind: Callable[..., Any] = getattr(import_module("sacrebleu.metrics"), name)
    except ImportError:
        raise ValueError(f"{name}: counting it takes sacrebleu; run pip install 'qkv[eval]'") from None
    metric = kind(**how)
    value = metric.corpus_score(list(predicted), [list(wanted)]).score
    return Score(float(value), str(metric.get_signature()))
