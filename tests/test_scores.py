"""Scores against values that are known, and against the judges themselves where they are installed."""

from __future__ import annotations

import random
import sys
import warnings
from importlib import import_module
from typing import Any

import pytest

from qkv.learn import scores
from qkv.learn.scores import entities, entity_f1, exact, macro_f1, overlap, rouge


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
    value, signature = scores.bleu(texts, texts)
    assert value == pytest.approx(100)
    assert signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    value, signature = scores.chrf(["the cat sat on a mat today", "a dog was here"], texts)
    assert 60 < value < 100
    assert "nc:6|nw:0" in signature
    with pytest.raises(ValueError, match="1 texts, expected 2"):
        scores.bleu(texts[:1], texts)


def test_bleu_without_sacrebleu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    with pytest.raises(ValueError, match=r"BLEU: counting it takes sacrebleu; run pip install 'qkv\[eval\]'"):
        scores.bleu(["a"], ["a"])
