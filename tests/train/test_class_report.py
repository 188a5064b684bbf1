"""Scores of classes and confusion matrices, as numbers, text and SVG."""

from __future__ import annotations

import random
import xml.etree.ElementTree as ET

import pytest

from qkv.train.evaluate.class_report import (
    ClassScores,
    ConfusionMatrix,
    build_entity_report,
    build_label_report,
    build_multi_label_report,
)
from qkv.train.evaluate.metrics import entity_f1_score, macro_f1_score
from qkv.train.report.confusion_plot import render_confusion_svg, render_report_svg
from qkv.train.report.tables import format_class_scores, format_confusion_matrix

SVG = "{http://www.w3.org/2000/svg}"
PREDICTIONS = ["cat", "cat", "dog", "cat", "dog"]
REFERENCES = ["cat", "dog", "dog", "cat", "cat"]


def test_labels() -> None:
    report = build_label_report(["cat", "dog", "owl"], PREDICTIONS, REFERENCES)
    assert report.confusion_matrix == ConfusionMatrix(
        label_names=("cat", "dog", "owl"), counts=((2, 1, 0), (1, 1, 0), (0, 0, 0))
    )
    assert report.class_scores == {
        "cat": ClassScores(2 / 3, 2 / 3, 2 / 3, support=3),
        "dog": ClassScores(1 / 2, 1 / 2, 1 / 2, support=2),
        "owl": ClassScores(0.0, 0.0, 0.0, support=0),
    }


def test_the_mean_of_the_classes_is_macro_f1() -> None:
    rng = random.Random(0)
    predictions, references = (rng.choices("abcd", k=50) for _ in range(2))
    scores = build_label_report("abcd", predictions, references).class_scores
    mean = sum(score.f1 for score in scores.values()) / 4
    assert mean == pytest.approx(macro_f1_score(predictions, references))


def test_several_labels() -> None:
    predictions = [{"cat"}, {"cat", "dog"}, set()]
    references = [{"cat", "dog"}, {"dog"}, {"cat"}]
    report = build_multi_label_report(["cat", "dog"], predictions, references)
    assert report.confusion_matrix is None
    assert report.class_scores == {
        "cat": ClassScores(1 / 2, 1 / 2, 1 / 2, support=2),
        "dog": ClassScores(1.0, 1 / 2, 2 / 3, support=2),
    }


def test_entities() -> None:
    references = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-LOC", "O"]]
    predictions = [["B-PER", "I-PER", "O", "B-PER"], ["B-LOC", "O", "O"]]
    report = build_entity_report(predictions, references)
    assert report.confusion_matrix == ConfusionMatrix(
        label_names=("LOC", "PER", "O"), counts=((0, 1, 1), (0, 1, 0), (1, 0, 0))
    )
    assert report.class_scores == {
        "LOC": ClassScores(0.0, 0.0, 0.0, support=2),
        "PER": ClassScores(1 / 2, 1.0, 2 / 3, support=1),
    }


def test_entities_of_all_types_together_give_the_f1_of_conlleval() -> None:
    rng = random.Random(1)
    tags = ["O", "B-A", "I-A", "B-B", "I-B"]
    predictions, references = ([rng.choices(tags, k=9) for _ in range(20)] for _ in range(2))
    matrix = build_entity_report(predictions, references).confusion_matrix
    assert matrix is not None
    correct = sum(matrix.counts[i][i] for i in range(2))
    predicted = sum(sum(row[:2]) for row in matrix.counts)
    expected = sum(sum(row) for row in matrix.counts[:2])
    scores = entity_f1_score(predictions, references)
    assert (correct / predicted, correct / expected) == pytest.approx(scores[:2])


def test_tables() -> None:
    report = build_label_report(["cat", "dog"], PREDICTIONS, REFERENCES)
    assert report.confusion_matrix is not None
    assert format_class_scores(report.class_scores).splitlines() == [
        "class  precision  recall      f1  support",
        "cat       0.6667  0.6667  0.6667        3",
        "dog       0.5000  0.5000  0.5000        2",
    ]
    assert format_confusion_matrix(report.confusion_matrix).splitlines() == [
        "reference ↓  prediction →  cat  dog",
        "cat                          2    1",
        "dog                          1    1",
    ]


def test_a_wide_matrix_is_a_list_of_errors() -> None:
    names = [f"a long class name {n}" for n in range(9)]
    pairs = [(names[0], names[1])] * 7 + [(names[2], names[3])] * 2 + [(names[4], names[4])]
    table = format_confusion_matrix(ConfusionMatrix.from_pairs(names, pairs)).splitlines()
    assert table[0].split("  ")[-1].strip() == "errors, 2 of 2 kinds"
    assert table[1].split() == f"{names[1]} {names[0]} 7".split()
    assert len(table) == 3


def test_svg() -> None:
    report = build_label_report(["cat & co", "dog"], ["dog"], ["cat & co"])
    assert report.confusion_matrix is not None
    root = ET.fromstring(render_confusion_svg(report.confusion_matrix))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert texts.count("cat & co") == texts.count("dog") == 2  # a row and a column
    assert {"confusion matrix", "prediction", "reference"} <= {*texts}
    assert texts[-4:] == ["0", "1", "0", "0"]
    hints = [title.text for group in root.iter(f"{SVG}g") for title in group.iter(f"{SVG}title")]
    assert hints[1] == "cat & co, predicted dog: 1"
    wrong = [rect for rect in root.iter(f"{SVG}rect") if rect.get("class") == "wrong"]
    assert [rect.get("fill-opacity") for rect in wrong] == ["1.00"]


def test_cells_of_many_classes_fit_the_page() -> None:
    names = [str(n) for n in range(40)]
    matrix = ConfusionMatrix.from_pairs(names, [(name, name) for name in names])
    root = ET.fromstring(render_confusion_svg(matrix))
    width = float(root.get("width") or 0)
    rects = [rect for rect in root.iter(f"{SVG}rect") if rect.get("class") == "correct"]
    assert len(rects) == 40
    assert all(float(r.get("x") or 0) + float(r.get("width") or 0) < width for r in rects)


def test_error_without_anything_to_plot() -> None:
    with pytest.raises(ValueError, match="neither reports of training nor a confusion matrix"):
        render_report_svg("x", None, None)
