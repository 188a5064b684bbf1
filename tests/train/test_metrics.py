"""Metrics against known values, and against the reference scorers where they are installed."""

from __future__ import annotations

import random
import sys
import warnings
from collections import Counter
from importlib import import_module
from itertools import pairwise
from typing import Any

import pytest

from qkv.train.evaluate import metrics
from qkv.train.evaluate.metrics import (
    entity_f1_score,
    exact_match_score,
    get_entities,
    label_f1_score,
    macro_f1_score,
    matthews_corrcoef,
    multilabel_f1_score,
    rouge_scores,
    squad_f1_score,
)


def import_scorer(name: str) -> Any:
    """Import a module of a scorer; skip the test if it is not installed."""
    pytest.importorskip(name.partition(".")[0])
    return import_module(name)


# --- labels ---


def test_macro_f1() -> None:
    # scikit-learn's example
    assert macro_f1_score([0, 1, 2, 0, 1, 2], [0, 2, 1, 0, 0, 1]) == pytest.approx(0.8 / 3)
    assert macro_f1_score(["a", "b"], ["a", "b"]) == 1
    assert macro_f1_score(["a", "a"], ["a", "b"]) == pytest.approx((2 / 3 + 0) / 2)
    assert macro_f1_score(["c"], ["a"]) == 0
    assert macro_f1_score([], []) == 0


def test_label_f1() -> None:
    assert label_f1_score([1, 1, 0, 0, 1], [1, 0, 1, 0, 1], 1) == pytest.approx(2 / 3)
    assert label_f1_score([0, 0], [0, 0], 1) == 0


def test_multilabel_f1() -> None:
    predictions = [{"a", "b"}, {"c"}, set()]
    references = [{"a"}, {"c", "a"}, {"b"}]
    expected = (2 * 2 / (3 + 4), (2 / 3 + 0 + 1) / 3)
    assert multilabel_f1_score(predictions, references) == pytest.approx(expected)
    assert multilabel_f1_score([], []) == (0, 0)


def test_matthews() -> None:
    # scikit-learn's example of matthews_corrcoef: one of each kind of error
    assert matthews_corrcoef([+1, -1, +1, +1], [+1, +1, +1, -1]) == pytest.approx(-1 / 3)
    counts = {(1, 1): 6, (0, 0): 3, (1, 0): 1, (0, 1): 2}  # prediction, reference
    pairs = [pair for pair, count in counts.items() for _ in range(count)]
    expected = (6 * 3 - 1 * 2) / (7 * 8 * 4 * 5) ** 0.5
    assert matthews_corrcoef(*zip(*pairs, strict=True)) == pytest.approx(expected)
    assert matthews_corrcoef([1, 1, 1], [1, 0, 1]) == matthews_corrcoef([], []) == 0
    assert matthews_corrcoef("abc", "abc") == 1
    # three labels, by the sums over all triples of a 3 x 3 table (Gorodkin 2004, eq. 8)
    rng = random.Random(0)
    predictions = rng.choices(range(3), k=50)
    references = rng.choices(range(3), k=50)
    pair_counts = Counter(zip(predictions, references, strict=True))
    table = [[pair_counts[i, j] for j in range(3)] for i in range(3)]
    triples = [(k, a, b) for k in range(3) for a in range(3) for b in range(3)]
    numerator = sum(table[k][k] * table[a][b] - table[k][a] * table[b][k] for k, a, b in triples)
    rows = [sum(row) for row in table]
    columns = [sum(column) for column in zip(*table, strict=True)]
    variances = [sum(side[k] * (50 - side[k]) for k in range(3)) for side in (rows, columns)]
    expected = numerator / (variances[0] * variances[1]) ** 0.5
    assert matthews_corrcoef(predictions, references) == pytest.approx(expected)


# --- tags ---


@pytest.mark.parametrize(
    ("tags", "entities"),
    [
        ("O O", []),
        ("B-PER I-PER O B-LOC", [("PER", 0, 2), ("LOC", 3, 4)]),
        ("B-PER B-PER", [("PER", 0, 1), ("PER", 1, 2)]),
        ("I-PER I-PER", [("PER", 0, 2)]),  # IOB1: I without B
        ("B-PER I-LOC", [("PER", 0, 1), ("LOC", 1, 2)]),
        ("O I-LOC O", [("LOC", 1, 2)]),
        ("S-PER B-LOC I-LOC E-LOC S-PER", [("PER", 0, 1), ("LOC", 1, 4), ("PER", 4, 5)]),
        ("E-LOC I-LOC", [("LOC", 0, 1), ("LOC", 1, 2)]),
        ("B-creative-work I-creative-work", [("creative-work", 0, 2)]),
        (
            "U-PER U-PER B-LOC I-LOC L-LOC I-LOC",
            [("PER", 0, 1), ("PER", 1, 2), ("LOC", 2, 5), ("LOC", 5, 6)],
        ),
        ("", []),
    ],
)
def test_entities(tags: str, entities: list[tuple[str, int, int]]) -> None:
    assert get_entities(tags.split()) == set(entities)


def test_entity_f1() -> None:
    # The example of seqeval: MISC starts a word too early, PER is correct.
    references = [["O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    predictions = [["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    assert entity_f1_score(predictions, references) == (0.5, 0.5, 0.5)
    assert entity_f1_score([["O"]], [["B-PER"]]) == (0, 0, 0)
    assert entity_f1_score([], []) == (0, 0, 0)


def test_entity_f1_by_hand() -> None:
    """Over all sentences at once: 2 of 5 predicted entities are correct, of 6 in the references."""
    references = ["B-PER I-PER O B-LOC", "B-ORG I-ORG I-ORG O", "B-PER O B-LOC I-LOC B-LOC"]
    predictions = ["B-PER I-PER O B-LOC", "B-ORG I-ORG O O", "B-LOC O B-LOC I-LOC I-LOC"]
    # correct: PER, LOC; too short: ORG; wrong type: PER; two LOCs merged into one: wrong
    score = entity_f1_score(
        [tags.split() for tags in predictions], [tags.split() for tags in references]
    )
    assert score == pytest.approx((2 / 5, 2 / 6, 2 * 2 / 11))


SCHEMES = {
    "IOB2": ("B", "B", "I", "I"),
    "IOBES": ("S", "B", "I", "E"),
    "BILOU": ("U", "B", "I", "L"),
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_entities_survive_a_round_trip_through_tags(scheme: str) -> None:
    single, first, inner, last = SCHEMES[scheme]
    rng = random.Random(0)
    for _ in range(200):
        tags: list[str] = []
        entities = set()
        while len(tags) < 20:
            entity_type = rng.choice("XY")
            size = rng.choice([0, 0, 1, 2, 3])
            if size:
                entities.add((entity_type, len(tags), len(tags) + size))
                prefixes = [single] if size == 1 else [first, *[inner] * (size - 2), last]
                tags += [f"{prefix}-{entity_type}" for prefix in prefixes]
            else:
                tags.append("O")
        assert get_entities(tags) == entities


def get_entities_like_conlleval(tags: list[str]) -> set[tuple[str, int, int]]:
    """conlleval's two tests between every two words: does an entity end, does one start?"""
    entities = set()
    start = 0
    for position, (tag, next_tag) in enumerate(pairwise(["O", *tags, "O"])):
        prefix, entity_type = tag.split("-") if tag != "O" else ("O", "")
        next_prefix, next_type = next_tag.split("-") if next_tag != "O" else ("O", "")
        ends = prefix in ("E", "S") or (prefix in ("B", "I") and next_prefix in ("B", "S", "O"))
        starts = next_prefix in ("B", "S") or (
            next_prefix in ("E", "I") and prefix in ("E", "S", "O")
        )
        type_changes = entity_type != next_type
        if prefix != "O" and (ends or type_changes):
            entities.add((entity_type, start, position))
        if next_prefix != "O" and (starts or type_changes):
            start = position
    return entities


def test_entities_of_random_tags_equal_conlleval() -> None:
    rng = random.Random(1)
    choices = [f"{prefix}-{name}" for prefix in "BIES" for name in "XY"] + ["O"] * 3
    for _ in range(2000):
        tags = rng.choices(choices, k=rng.randrange(1, 9))
        assert get_entities(tags) == get_entities_like_conlleval(tags)


def mix_tags(rng: random.Random, tags: list[str], others: list[str]) -> list[str]:
    """Replace about 30% of the tags by the others."""
    return [tag if rng.random() < 0.7 else other for tag, other in zip(tags, others, strict=True)]


def test_entity_f1_equals_seqeval() -> None:
    seqeval = import_scorer("seqeval.metrics")
    rng = random.Random(0)
    choices = [f"{prefix}-{name}" for prefix in "BIES" for name in ("PER", "LOC")] + ["O"] * 4
    for _ in range(300):
        sizes = [rng.randrange(1, 9) for _ in range(3)]
        predictions = [rng.choices(choices, k=size) for size in sizes]
        others = [rng.choices(choices, k=size) for size in sizes]
        references = [mix_tags(rng, *rows) for rows in zip(predictions, others, strict=True)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # seqeval warns where there are no entities
            names = ("precision_score", "recall_score", "f1_score")
            expected = [getattr(seqeval, name)(references, predictions) for name in names]
        assert list(entity_f1_score(predictions, references)) == pytest.approx(expected)


# --- answers ---


@pytest.mark.parametrize(
    ("prediction", "references", "exact", "f1"),
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
def test_answers(prediction: str, references: list[str], exact: float, f1: float) -> None:
    assert exact_match_score(prediction, references) == exact
    assert squad_f1_score(prediction, references) == pytest.approx(f1)


# --- texts ---


def test_rouge() -> None:
    # "police killed the gunman" of Lin (2004), section 3.1
    scores = rouge_scores("police kill the gunman", "police killed the gunman")
    assert scores == pytest.approx({"rouge1": 0.75, "rouge2": 1 / 3, "rougeL": 0.75})
    scores = rouge_scores("the gunman kill police", "police killed the gunman")
    assert scores["rougeL"] == pytest.approx(0.5)
    zero = {"rouge1": 0, "rouge2": 0, "rougeL": 0}
    assert rouge_scores("", "a b") == rouge_scores("...", "...") == zero


def test_rouge_equals_rouge_score() -> None:
    scorer = import_scorer("rouge_score.rouge_scorer").RougeScorer(["rouge1", "rouge2", "rougeL"])
    rng = random.Random(0)
    words = "the cat, sat on. a MAT and it's 7 big-red dogs Über".split()
    for _ in range(200):
        prediction = " ".join(rng.choices(words, k=rng.randrange(1, 12)))
        reference = " ".join(rng.choices(words, k=rng.randrange(1, 12)))
        scores = scorer.score(reference, prediction)
        expected = {name: score.fmeasure for name, score in scores.items()}
        assert rouge_scores(prediction, reference) == pytest.approx(expected)


def test_bleu_and_chrf() -> None:
    import_scorer("sacrebleu")
    texts = ["the cat sat on the mat today", "a dog is here"]
    value, signature = metrics.corpus_bleu(texts, texts)
    assert value == pytest.approx(100)
    assert signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    value, signature = metrics.corpus_chrf(["the cat sat on a mat today", "a dog was here"], texts)
    assert 60 < value < 100
    assert "nc:6|nw:0" in signature
    uppercase = [text.upper() for text in texts]
    assert metrics.corpus_bleu(uppercase, texts).value < 1
    value, signature = metrics.corpus_bleu(uppercase, texts, lowercase=True)
    assert value == pytest.approx(100)
    assert signature.startswith("nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:")
    with pytest.raises(ValueError, match="1 predictions, expected 2"):
        metrics.corpus_bleu(texts[:1], texts)


def test_bleu_without_sacrebleu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    with pytest.raises(ValueError, match=r"BLEU needs sacrebleu; run pip install 'qkv\[eval\]'"):
        metrics.corpus_bleu(["a"], ["a"])
