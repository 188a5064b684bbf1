"""Sentence pairs: next sentences as BERT's, sentence order as ALBERT's."""

import numpy as np
import pytest

from qkv.data.noise import sentence_pairs
from tests.support.noise import is_consecutive, make_documents, make_rng


def test_half_of_the_pairs_are_from_two_documents() -> None:
    texts = make_documents(60, 150, 5)
    rng = make_rng()
    labels = []
    for number in range(len(texts)):
        for a, b, label in sentence_pairs.sample_next_sentence_pairs(
            texts, number, rng, max_length=60, short_seq_prob=0.0
        ):
            assert min(len(a), len(b)) > 0
            assert len(a) + len(b) <= 60
            assert set(a // 750) == {number}
            assert len(set(b // 750)) == 1
            assert (b[0] // 750 != number) == label
            assert label or b[0] > a[-1]
            assert is_consecutive(a)
            assert is_consecutive(b)
            labels.append(label)
    assert len(labels) > 900
    assert np.mean(labels) == pytest.approx(0.5, abs=0.05)  # three standard deviations


def test_replaced_sentences_are_used_later() -> None:
    texts = make_documents(4, 40, 5)
    for seed in range(20):
        pairs = sentence_pairs.sample_next_sentence_pairs(
            texts, 1, make_rng(seed), max_length=40, short_seq_prob=0.0
        )
        used = [part for a, b, label in pairs for part in ([a] if label else [a, b])]
        assert np.array_equal(np.concatenate(used), np.concatenate(texts[1]))
        assert {len(a) + len(b) for a, b, label in pairs[:-1] if not label} <= {40}


def test_one_document_in_ten_makes_short_pairs() -> None:
    text = [np.array([n]) for n in range(80)]
    rng = make_rng()
    pairs = [
        sentence_pairs.sample_sentence_order_pairs(text, rng, max_length=50)[0] for _ in range(3000)
    ]
    sizes = np.array([len(a) + len(b) for a, b, _ in pairs])
    assert (sizes < 50).mean() == pytest.approx(0.1 * 48 / 49, abs=0.02)
    assert sizes.min() >= 2
    next_pairs = [
        pair
        for _ in range(900)
        for pair in sentence_pairs.sample_next_sentence_pairs([text, text], 0, rng, max_length=50)[
            :1
        ]
    ]
    sizes = np.array([len(a) + len(b) for a, b, label in next_pairs if not label])
    assert (sizes < 50).mean() == pytest.approx(0.1 * 48 / 49, abs=0.04)


def truncate_lengths(x: int, y: int, max_length: int) -> tuple[int, int]:
    """Return the lengths of a pair after BERT's truncation loop."""
    while x + y > max_length:
        x, y = (x - 1, y) if x > y else (x, y - 1)
    return x, y


def test_a_pair_too_long_loses_tokens_at_both_ends_as_berts_does() -> None:
    rng = make_rng()
    front_shares = []
    for x in range(1, 14):
        for y in range(1, 14):
            for size in range(2, 20):
                text = np.arange(x + y)
                a, b, label = sentence_pairs.sample_sentence_order_pairs(
                    [text[:x], text[x:]], rng, max_length=size, short_seq_prob=0.0
                )[0]
                if len(a) + len(b) < x + y:
                    assert len(a) + len(b) == size
                first, second = (b, a) if label else (a, b)
                lengths = (y, x) if label else (x, y)
                if x < size:  # else the first sentence fills a pair and is split
                    assert (len(a), len(b)) == truncate_lengths(*lengths, size)
                    assert set(first) <= set(text[:x])
                    assert set(second) <= set(text[x:])
                    if (num_removed := x - len(first)) > 0:
                        front_shares += [first[0] / num_removed]
                assert is_consecutive(a)
                assert is_consecutive(b)
    assert np.mean(front_shares) == pytest.approx(0.5, abs=0.05)


def test_half_of_the_consecutive_segments_are_swapped() -> None:
    texts = make_documents(40, 150, 5)
    rng = make_rng()
    labels = []
    for text in texts:
        for size in (60, 4):  # a sentence longer than a pair is split
            for a, b, label in sentence_pairs.sample_sentence_order_pairs(
                text, rng, max_length=size
            ):
                first, second = (b, a) if label else (a, b)
                assert min(len(a), len(b)) > 0
                assert first[-1] < second[0]
                labels.append(label)
    assert np.mean(labels) == pytest.approx(0.5, abs=0.03)
    pairs = sentence_pairs.sample_sentence_order_pairs(
        texts[0], rng, max_length=60, short_seq_prob=0.0
    )
    segments = [np.append(b, a) if label else np.append(a, b) for a, b, label in pairs]
    assert np.array_equal(np.concatenate(segments), np.concatenate(texts[0]))


def test_short_texts_make_few_pairs() -> None:
    document = [np.array([5])]
    assert sentence_pairs.sample_sentence_order_pairs(document, make_rng(), max_length=8) == []
    assert sentence_pairs.sample_sentence_order_pairs([], make_rng(), max_length=8) == []
    assert (
        sentence_pairs.sample_next_sentence_pairs([[], document], 0, make_rng(), max_length=8) == []
    )
    (pair,) = sentence_pairs.sample_next_sentence_pairs(
        [document, [np.array([6])]], 0, make_rng(), max_length=2
    )
    assert (pair.segment_a.tolist(), pair.segment_b.tolist(), pair.label) == ([5], [6], 1)


def test_texts_that_cannot_be_paired_are_errors() -> None:
    document = [np.array([5])]
    with pytest.raises(ValueError, match="1 documents, expected at least 2"):
        sentence_pairs.sample_next_sentence_pairs([document], 0, make_rng(), max_length=8)
    with pytest.raises(ValueError, match="without sentences"):
        sentence_pairs.sample_next_sentence_pairs([document, []], 0, make_rng(), max_length=8)
    with pytest.raises(ValueError, match="without tokens"):
        sentence_pairs.sample_sentence_order_pairs(
            [np.array([5]), np.array([], np.int64)], make_rng(), max_length=8
        )
    with pytest.raises(ValueError, match="max_length 1, expected at least 2"):
        sentence_pairs.sample_sentence_order_pairs(document, make_rng(), max_length=1)
