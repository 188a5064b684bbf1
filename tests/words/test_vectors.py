"""Nearest words, similarity and analogies against plain loops."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from qkv.words import WordVectors
from tests.support.errors import assert_error


@pytest.fixture
def random_vectors() -> WordVectors:
    torch.manual_seed(1)
    return WordVectors([f"w{i}" for i in range(50)], torch.randn(50, 8))


def test_most_similar_equals_a_loop(random_vectors: WordVectors) -> None:
    query = sum(F.normalize(random_vectors[word], dim=0) for word in ("w3", "w7"))
    query = query - F.normalize(random_vectors["w9"], dim=0)
    scores = {
        word: float(F.cosine_similarity(query, random_vectors[word], dim=0))
        for word in random_vectors.words
        if word not in ("w3", "w7", "w9")
    }
    expected = sorted(scores, key=lambda word: -scores[word])[:5]
    result = random_vectors.most_similar(["w3", "w7"], ["w9"], topn=5)
    assert [word for word, _ in result] == expected
    assert [score for _, score in result] == pytest.approx([scores[word] for word in expected])
    assert random_vectors.analogy("w3", "w9", "w7", topn=5) == result
    assert random_vectors.most_similar("w3") == random_vectors.most_similar(["w3"])


def test_similarity(random_vectors: WordVectors) -> None:
    a, b = random_vectors["w1"], random_vectors["w2"]
    expected = float(F.cosine_similarity(a, b, dim=0))
    assert random_vectors.similarity("w1", "w2") == pytest.approx(expected, abs=1e-6)
    assert random_vectors.similarity("w1", "w1") == pytest.approx(1)


def test_all_words_are_at_most_returned(random_vectors: WordVectors) -> None:
    assert len(random_vectors.most_similar("w1", topn=1000)) == 49
    assert len(random_vectors.analogy("w1", "w1", "w2", topn=1000)) == 48


def test_a_container_of_words(random_vectors: WordVectors) -> None:
    assert len(random_vectors) == 50
    assert "w1" in random_vectors
    assert "x" not in random_vectors
    assert random_vectors.vector_size == 8
    assert "50 words, 8 dimensions" in repr(random_vectors)
    assert torch.equal(random_vectors["w4"], random_vectors.vectors[4])


def test_unknown_words_have_suggestions() -> None:
    words = ["rabbit", "rabbits", "Paris", "house", "the"]
    vectors = WordVectors(words, torch.eye(5))
    assert_error(lambda: vectors.most_similar("rabit"), "'rabit'", "5 words", "did you mean rabbit")
    assert_error(lambda: vectors["paris"], "did you mean Paris?")
    message = assert_error(lambda: vectors.similarity("the", "xyzzy"), "'xyzzy'")
    assert "did you mean" not in message
    assert vectors.find_index("THE") == 4
    assert vectors.find_index("paris") is None


def test_arguments_are_checked(random_vectors: WordVectors) -> None:
    assert_error(lambda: random_vectors.most_similar("w1", topn=0), "topn")
    assert_error(lambda: random_vectors.most_similar([]), "no words")
    assert_error(lambda: WordVectors(["a", "b"], torch.ones(1, 2)), "2 words", "(1, 2)")
    assert_error(lambda: WordVectors([], torch.ones(0, 2)), "at least one")
    assert_error(lambda: WordVectors(["a", "b", "a"], torch.ones(3, 2)), "'a' occurs twice")
