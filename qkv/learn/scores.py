"""Scores: how well answers agree with what was wanted, as the usual judges count it. Knows no model.

Every score is a share, from 0 to 1, but BLEU and chrF: sacrebleu gives these, from 0 to 100."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from importlib import import_module
from itertools import chain
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


def macro_f1(predicted: Sequence[Hashable], wanted: Sequence[Hashable]) -> float:
    """The mean of each label's F1, over the labels that occur on either side."""
    pairs = list(zip(predicted, wanted, strict=True))
    right = Counter(one for one, other in pairs if one == other)
    given, asked = Counter(predicted), Counter(wanted)
    every = given.keys() | asked.keys()
    return sum(agreement(right[each], given[each], asked[each]).f1 for each in every) / max(len(every), 1)


# --- tags ---


def entities(tags: Iterable[str]) -> set[Entity]:
    """What is named by tags such as B-PER I-PER O, in IOB1, IOB2 or IOBES, read as conlleval reads them."""
    found: set[Entity] = set()
    mark, kind, start = "O", "", 0
    for place, tag in enumerate(chain(tags, ["O"])):
        new, _, named = tag.partition("-")
        if mark in "OES" or new in "OBS" or named != kind:  # a border
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


def bleu(predicted: Sequence[str], wanted: Sequence[str]) -> Score:
    return _sacrebleu("BLEU", predicted, wanted)


def chrf(predicted: Sequence[str], wanted: Sequence[str]) -> Score:
    return _sacrebleu("CHRF", predicted, wanted)


def _sacrebleu(name: str, predicted: Sequence[str], wanted: Sequence[str]) -> Score:
    if len(predicted) != len(wanted):
        raise ValueError(f"{len(predicted)} texts, expected {len(wanted)}: one for each that is wanted")
    try:
        kind: Callable[[], Any] = getattr(import_module("sacrebleu.metrics"), name)
    except ImportError:
        raise ValueError(f"{name}: counting it takes sacrebleu; run pip install 'qkv[eval]'") from None
    metric = kind()
    value = metric.corpus_score(list(predicted), [list(wanted)]).score
    return Score(float(value), str(metric.get_signature()))
