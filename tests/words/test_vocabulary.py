"""The probabilities of subsampling and of noise words."""

from __future__ import annotations

import math

import pytest

from qkv.words.vocabulary import WordVocabulary

VOCABULARY = WordVocabulary(["the", "of", "cat", "rare"], [6000, 3000, 995, 5])


def test_subsampling_keeps_rare_words() -> None:
    keep = VOCABULARY.compute_keep_probabilities(1e-2)
    for probability, count in zip(keep.tolist(), VOCABULARY.counts, strict=True):
        ratio = 1e-2 / (count / 10_000)
        assert probability == pytest.approx(min(1.0, math.sqrt(ratio) + ratio))
    assert keep[3] == 1
    assert keep[0] < keep[1] < keep[2] < 1


def test_a_threshold_of_0_keeps_everything() -> None:
    assert VOCABULARY.compute_keep_probabilities(0).tolist() == [1.0] * 4


def test_noise_words_are_drawn_by_the_unigram_distribution_to_the_power_of_three_quarters() -> None:
    noise = VOCABULARY.compute_noise_distribution()
    weights = [count**0.75 for count in VOCABULARY.counts]
    assert noise.tolist() == pytest.approx([weight / sum(weights) for weight in weights])
    assert float(noise.sum()) == pytest.approx(1)
