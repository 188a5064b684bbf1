"""Similarity and analogy files in their published formats, and their scores."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from qkv.words import WordVectors
from qkv.words.evaluate import (
    evaluate_analogies,
    evaluate_similarity,
    is_analogy_file,
    read_analogy_file,
    read_similarity_file,
)
from tests.support.errors import assert_error

PAIRS = [("love", "sex", 6.77), ("tiger", "cat", 7.35)]


@pytest.mark.parametrize(
    "text",
    [
        "# WordSimilarity-353\n# Word 1\tWord 2\tHuman (mean)\nlove\tsex\t6.77\ntiger\tcat\t7.35\n",
        "Word 1,Word 2,Human (mean)\nlove,sex,6.77\ntiger,cat,7.35\n",
        "Word 1\tWord 2\tHuman (mean)\r\nlove\tsex\t6.77\r\ntiger\tcat\t7.35\r\n",
        "word1\tword2\tPOS\tSimLex999\tconc(w1)\nlove\tsex\tN\t6.77\t2.7\ntiger\tcat\tN\t7.35\t4.9\n",
        "love sex 6.77\n\ntiger cat 7.35\n",
        "love;sex;6.77".replace(";", "   ") + "\ntiger cat 7.35",
    ],
    ids="gensim wordsim-csv wordsim-tab simlex rg65 spaces".split(),
)
def test_similarity_files(text: str, tmp_path: Path) -> None:
    path = tmp_path / "pairs.txt"
    path.write_bytes(text.encode())
    assert read_similarity_file(path) == PAIRS
    assert not is_analogy_file(path)


def test_damaged_similarity_files(tmp_path: Path) -> None:
    path = tmp_path / "pairs.txt"
    path.write_text("a b 1\nb c 2\nc d much\n")
    assert_error(lambda: read_similarity_file(path), "line 3", "two words and a score")
    path.write_text("a b\nc d\n")
    assert_error(lambda: read_similarity_file(path), "0 pairs")


def test_analogy_files(tmp_path: Path) -> None:
    path = tmp_path / "questions.txt"
    path.write_text(": capitals\nAthens Greece Oslo Norway\n: gram1\na b c d\ne f g h\n")
    assert is_analogy_file(path)
    sections = read_analogy_file(path)
    assert {name: len(questions) for name, questions in sections.items()} == {
        "capitals": 1,
        "gram1": 2,
    }
    path.write_text("a b c d\n")
    assert is_analogy_file(path)
    assert read_analogy_file(path) == {"all": [("a", "b", "c", "d")]}
    path.write_text(": x\na b c\n")
    assert_error(lambda: read_analogy_file(path), "line 2", "four words")
    path.write_text(": x\n")
    assert_error(lambda: read_analogy_file(path), "no questions")


def test_similarity_counts_unknown_words() -> None:
    vectors = WordVectors(["a", "b", "c"], torch.tensor([[1.0, 0.0], [1.0, 1.0], [-1.0, 0.1]]))
    pairs = [("a", "B", 9.0), ("b", "c", 5.0), ("a", "c", 1.0), ("a", "zebra", 1.0)]
    result = evaluate_similarity(vectors, pairs)
    assert result.spearman == pytest.approx(1)
    assert (result.num_pairs, result.num_unknown, result.num_all) == (3, 1, 4)
    assert evaluate_similarity(vectors, [("a", "b", 1), ("a", "c", 9)]).spearman == pytest.approx(
        -1
    )
    assert_error(lambda: evaluate_similarity(vectors, [("x", "y", 1.0)] * 3), "0 of 3 pairs")


def test_analogies_equal_a_loop_over_questions() -> None:
    torch.manual_seed(0)
    words = [f"w{i}" for i in range(30)]
    base = torch.randn(15, 6)
    shift = torch.randn(6) * 2
    rows = torch.stack([base, base + shift + 0.3 * torch.randn(15, 6)], 1).reshape(30, 6)
    vectors = WordVectors(words, rows)
    questions = [
        (f"w{2 * i}", f"w{2 * i + 1}", f"w{2 * j}", f"w{2 * j + 1}")
        for i in range(15)
        for j in range(15)
        if i != j
    ]
    expected = sum(vectors.analogy(b, a, c, topn=1)[0][0] == d for a, b, c, d in questions)
    sections = {"first": questions[:100], "rest": [*questions[100:], ("w0", "w1", "w2", "unknown")]}
    first, rest = evaluate_analogies(vectors, sections)
    assert first.num_correct + rest.num_correct == expected
    assert 0 < expected < len(questions)
    assert (first.num_unknown, rest.num_unknown) == (0, 1)
    assert first.num_questions + rest.num_questions == len(questions)
    assert first.accuracy == first.num_correct / 100
    (few,) = evaluate_analogies(vectors, {"first": questions}, restrict_vocab=4)
    assert few.num_questions == 2  # all four words must be among the first ones
    (none,) = evaluate_analogies(vectors, {"x": [("q", "q", "q", "q")]})
    assert (none.accuracy, none.num_questions) == (0, 0)


def test_published_files(shared: Path) -> None:
    folder = shared / "data" / "wordsim"
    if not folder.is_dir():
        pytest.skip(f"test files {folder} not found")
    assert len(read_similarity_file(folder / "wordsim353.tsv.xz")) == 353
    assert len(read_similarity_file(folder / "simlex999.txt.xz")) == 999
    assert is_analogy_file(folder / "questions-words.txt.xz")
    sections = read_analogy_file(folder / "questions-words.txt.xz")
    assert sum(map(len, sections.values())) == 19544
    assert len(sections) == 14
