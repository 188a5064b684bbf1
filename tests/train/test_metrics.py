"""Scores against values that are known, and against the judges themselves where they are installed."""

from __future__ import annotations

import random
import sys
import warnings
from importlib import import_module
from itertools import pairwise
from typing import Any

import pytest

from qkv.train.evaluate import metrics
from qkv.train.evaluate.metrics import (
    entities,
    entity_f1,
    exact,
    label_f1,
    labels_f1,
    macro_f1,
    matthews,
    overlap,
    pearson,
    ranks,
    rouge,
    spearman,
)


def judge(name: str) -> Any:
    pytest.importorskip(name.partition(".")[0])
    return import_module(name)


# --- labels ---


def test_macro_f1() -> None:
    assert macro_f1([0, 1, 2, 0, 1, 2], [0, 2, 1, 0, 0, 1]) == pytest.approx(
        0.8 / 3
    )  # scikit-learn's example
    assert macro_f1(["a", "b"], ["a", "b"]) == 1
    assert macro_f1(["a", "a"], ["a", "b"]) == pytest.approx((2 / 3 + 0) / 2)
    assert macro_f1(["c"], ["a"]) == 0
    assert macro_f1([], []) == 0


def test_label_f1() -> None:
    assert label_f1([1, 1, 0, 0, 1], [1, 0, 1, 0, 1], 1) == pytest.approx(2 / 3)
    assert label_f1([0, 0], [0, 0], 1) == 0


def test_labels_f1() -> None:
    predicted, wanted = [{"a", "b"}, {"c"}, set()], [{"a"}, {"c", "a"}, {"b"}]
    assert labels_f1(predicted, wanted) == pytest.approx((2 * 2 / (3 + 4), (2 / 3 + 0 + 1) / 3))
    assert labels_f1([], []) == (0, 0)


def test_matthews() -> None:
    # scikit-learn's example of matthews_corrcoef: one of each kind of error
    assert matthews([+1, -1, +1, +1], [+1, +1, +1, -1]) == pytest.approx(-1 / 3)
    counts = {(1, 1): 6, (0, 0): 3, (1, 0): 1, (0, 1): 2}  # said, wanted
    pairs = [pair for pair, count in counts.items() for _ in range(count)]
    assert matthews(*zip(*pairs, strict=True)) == pytest.approx((6 * 3 - 1 * 2) / (7 * 8 * 4 * 5) ** 0.5)
    assert matthews([1, 1, 1], [1, 0, 1]) == matthews([], []) == 0
    assert matthews("abc", "abc") == 1
    # three labels, by the sums over all triples of a 3 x 3 table (Gorodkin 2004, eq. 8)
    rng = random.Random(0)
    one, other = (rng.choices(range(3), k=50) for _ in range(2))
    table = [
        [sum(a == i and b == j for a, b in zip(one, other, strict=True)) for j in range(3)] for i in range(3)
    ]
    triples = [(k, a, b) for k in range(3) for a in range(3) for b in range(3)]
    top = sum(table[k][k] * table[a][b] - table[k][a] * table[b][k] for k, a, b in triples)
    rows = [sum(row) for row in table]
    columns = [sum(column) for column in zip(*table, strict=True)]
    below = [sum(side[k] * (50 - side[k]) for k in range(3)) for side in (rows, columns)]
    assert matthews(one, other) == pytest.approx(top / (below[0] * below[1]) ** 0.5)


# --- numbers ---


def test_pearson_and_spearman() -> None:
    x, y = [1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 1.0, 4.0, 3.0, 50.0]
    assert pearson(x, y) == pytest.approx(98 / (10 * 1810) ** 0.5)
    assert spearman(x, y) == pytest.approx(1 - 6 * 4 / (5 * 24))
    assert ranks([7.0, 1.0, 7.0, 3.0]) == [3.5, 1, 3.5, 2]
    assert spearman([1, 1, 2], [1, 2, 3]) == pytest.approx(3**0.5 / 2)  # two share a rank
    assert pearson([1.0, 1.0], [1.0, 2.0]) == spearman([1.0], [2.0]) == 0


# --- tags ---


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("O O", []),
        ("B-PER I-PER O B-LOC", [("PER", 0, 2), ("LOC", 3, 4)]),
        ("B-PER B-PER", [("PER", 0, 1), ("PER", 1, 2)]),
        ("I-PER I-PER", [("PER", 0, 2)]),  # IOB1: inside without a beginning
        ("B-PER I-LOC", [("PER", 0, 1), ("LOC", 1, 2)]),
        ("O I-LOC O", [("LOC", 1, 2)]),
        ("S-PER B-LOC I-LOC E-LOC S-PER", [("PER", 0, 1), ("LOC", 1, 4), ("PER", 4, 5)]),
        ("E-LOC I-LOC", [("LOC", 0, 1), ("LOC", 1, 2)]),
        ("B-creative-work I-creative-work", [("creative-work", 0, 2)]),
        ("U-PER U-PER B-LOC I-LOC L-LOC I-LOC", [("PER", 0, 1), ("PER", 1, 2), ("LOC", 2, 5), ("LOC", 5, 6)]),
        ("", []),
    ],
)
def test_entities(tags: str, found: list[tuple[str, int, int]]) -> None:
    assert entities(tags.split()) == set(found)


def test_entity_f1() -> None:
    # The example of seqeval: MISC begins a word too early, PER is right.
    wanted = [["O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    predicted = [["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    assert entity_f1(predicted, wanted) == (0.5, 0.5, 0.5)
    assert entity_f1([["O"]], [["B-PER"]]) == (0, 0, 0)
    assert entity_f1([], []) == (0, 0, 0)


def test_entity_f1_by_hand() -> None:
    """Over all sentences at once: 2 of 5 that are found are right, of 6 that there are."""
    wanted = ["B-PER I-PER O B-LOC", "B-ORG I-ORG I-ORG O", "B-PER O B-LOC I-LOC B-LOC"]
    predicted = ["B-PER I-PER O B-LOC", "B-ORG I-ORG O O", "B-LOC O B-LOC I-LOC I-LOC"]
    # right: PER, LOC; too short: ORG; of another kind: PER; one of two LOCs, joined with the other: none
    found = entity_f1([each.split() for each in predicted], [each.split() for each in wanted])
    assert found == pytest.approx((2 / 5, 2 / 6, 2 * 2 / 11))


SCHEMES = {"IOB2": ("B", "B", "I", "I"), "IOBES": ("S", "B", "I", "E"), "BILOU": ("U", "B", "I", "L")}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_entities_that_were_written_are_read(scheme: str) -> None:
    """Random entities become tags, and the tags the same entities."""
    alone, first, inner, last = SCHEMES[scheme]
    rng = random.Random(0)
    for _ in range(200):
        tags, named = list[str](), set()
        while len(tags) < 20:
            kind, size = rng.choice("XY"), rng.choice([0, 0, 1, 2, 3])
            if size:
                named.add((kind, len(tags), len(tags) + size))
                marks = [alone] if size == 1 else [first, *[inner] * (size - 2), last]
                tags += [f"{mark}-{kind}" for mark in marks]
            else:
                tags.append("O")
        assert entities(tags) == named


def slow_entities(tags: list[str]) -> set[tuple[str, int, int]]:
    """conlleval's two questions, asked between every two words: does one end here, does one begin?"""
    found, begun = set(), 0
    for place, (old, new) in enumerate(pairwise(["O", *tags, "O"])):
        (mark, kind), (next_mark, next_kind) = (
            tag.split("-") if tag != "O" else ("O", "") for tag in (old, new)
        )
        ends = mark in ("E", "S") or (mark in ("B", "I") and next_mark in ("B", "S", "O"))
        starts = next_mark in ("B", "S") or (next_mark in ("E", "I") and mark in ("E", "S", "O"))
        other = kind != next_kind
        if mark != "O" and (ends or other):
            found.add((kind, begun, place))
        if next_mark != "O" and (starts or other):
            begun = place
    return found


def test_any_tags_are_read_as_conlleval_does() -> None:
    rng = random.Random(1)
    marks = [f"{mark}-{kind}" for mark in "BIES" for kind in "XY"] + ["O"] * 3
    for _ in range(2000):
        tags = rng.choices(marks, k=rng.randrange(1, 9))
        assert entities(tags) == slow_entities(tags)


def mixed(rng: random.Random, one: list[str], other: list[str]) -> list[str]:
    return [tag if rng.random() < 0.7 else new for tag, new in zip(one, other, strict=True)]


def test_entity_f1_as_seqeval() -> None:
    seqeval = judge("seqeval.metrics")
    rng = random.Random(0)
    marks = [f"{mark}-{kind}" for mark in "BIES" for kind in ("PER", "LOC")] + ["O"] * 4
    for _ in range(300):
        sizes = [rng.randrange(1, 9) for _ in range(3)]
        one, other = ([rng.choices(marks, k=size) for size in sizes] for _ in range(2))
        other = [mixed(rng, *both) for both in zip(one, other, strict=True)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says where a score is 0 for want of entities
            names = ("precision_score", "recall_score", "f1_score")
            theirs = [getattr(seqeval, name)(other, one) for name in names]
        assert list(entity_f1(one, other)) == pytest.approx(theirs)


# --- answers ---


@pytest.mark.parametrize(
    ("predicted", "wanted", "same", "share"),
    [
        ("The  Eiffel Tower!", ["eiffel tower"], 1, 1),
        ("in Paris", ["Paris", "the city of Paris"], 0, 2 / 3),
        ("a cat", ["dog"], 0, 0),
        ("", [], 1, 1),
        ("something", [], 0, 0),
        ("the", [""], 1, 1),
        ("", ["cat"], 0, 0),
        ("cat cat cat", ["cat dog"], 0, 2 / 5),
    ],
)
def test_answers(predicted: str, wanted: list[str], same: float, share: float) -> None:
    assert exact(predicted, wanted) == same
    assert overlap(predicted, wanted) == pytest.approx(share)


# --- texts ---


def test_rouge() -> None:
    # "police killed the gunman" of Lin (2004), section 3.1
    found = rouge("police kill the gunman", "police killed the gunman")
    assert found == pytest.approx({"rouge1": 0.75, "rouge2": 1 / 3, "rougeL": 0.75})
    assert rouge("the gunman kill police", "police killed the gunman")["rougeL"] == pytest.approx(0.5)
    assert rouge("", "a b") == rouge("...", "...") == {"rouge1": 0, "rouge2": 0, "rougeL": 0}


def test_rouge_as_rouge_score() -> None:
    scorer = judge("rouge_score.rouge_scorer").RougeScorer(["rouge1", "rouge2", "rougeL"])
    rng = random.Random(0)
    words = "the cat, sat on. a MAT and it's 7 big-red dogs Über".split()
    for _ in range(200):
        one, other = (" ".join(rng.choices(words, k=rng.randrange(1, 12))) for _ in range(2))
        theirs = {name: score.fmeasure for name, score in scorer.score(other, one).items()}
        assert rouge(one, other) == pytest.approx(theirs)


def test_bleu_and_chrf() -> None:
    judge("sacrebleu")
    texts = ["the cat sat on the mat today", "a dog is here"]
    value, signature = metrics.bleu(texts, texts)
    assert value == pytest.approx(100)
    assert signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    value, signature = metrics.chrf(["the cat sat on a mat today", "a dog was here"], texts)
    assert 60 < value < 100
    assert "nc:6|nw:0" in signature
    shouted = [text.upper() for text in texts]
    assert metrics.bleu(shouted, texts).value < 1
    value, signature = metrics.bleu(shouted, texts, lower=True)
    assert value == pytest.approx(100)
    assert signature.startswith("nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:")
    with pytest.raises(ValueError, match="1 texts, expected 2"):
        metrics.bleu(texts[:1], texts)


def test_bleu_without_sacrebleu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    with pytest.raises(ValueError, match=r"BLEU: counting it takes sacrebleu; run pip install 'qkv\[eval\]'"):
        metrics.bleu(["a"], ["a"])
