"""Span corruption has the counts and lengths of T5, and loses no token."""

import math
from collections import Counter

import numpy as np
import pytest

from qkv.data.noise import span_corruption
from tests.support.noise import EOS_ID, FIRST_SENTINEL_ID, Array, compute_run_lengths, make_rng


def restore_text(source: Array, target: Array) -> list[int]:
    """Return the text of a source and a target whose sentinels are the ids from 32,000 on."""
    assert source[-1] == target[-1] == EOS_ID
    spans: dict[int, list[int]] = {}
    for token in target[:-1].tolist():
        if token >= 32_000:
            span = spans[token] = []
        else:
            span.append(token)
    sentinels = [token for token in source.tolist() if token >= 32_000]
    assert list(spans) == sentinels == [FIRST_SENTINEL_ID - n for n in range(len(sentinels))]
    return [i for token in source[:-1].tolist() for i in spans.get(token, [token])]


def test_source_and_target_together_are_the_text() -> None:
    rng = make_rng()
    for length in [*range(2, 60), 200, 568, 1900]:
        ids = rng.integers(2, 30_000, length)
        source, target = span_corruption.corrupt_spans(
            ids, rng, first_sentinel_id=FIRST_SENTINEL_ID, eos_token_id=EOS_ID
        )
        assert restore_text(source, target) == ids.tolist()


@pytest.mark.parametrize("length", [2, 3, 5, 10, 11, 30, 31, 128, 568, 2000])
def test_the_noise_has_the_counts_of_t5(length: int) -> None:
    for seed in range(20):
        noise_mask = span_corruption.sample_span_noise_mask(length, make_rng(seed))
        num_noise = min(max(round(length * 0.15), 1), length - 1)
        assert noise_mask.sum() == num_noise
        assert len(compute_run_lengths(noise_mask)) == max(round(num_noise / 3.0), 1)
        assert not noise_mask[0]
        assert noise_mask[-1]


def test_all_noise_masks_have_the_same_probability() -> None:
    rng = make_rng()
    counts = Counter(
        span_corruption.sample_span_noise_mask(
            12, rng, noise_density=0.5, mean_span_length=2.0
        ).tobytes()
        for _ in range(20_000)
    )
    num_masks = math.comb(5, 2) ** 2  # 6 tokens in 3 spans, twice
    assert len(counts) == num_masks
    expected = 20_000 / num_masks
    chi_square = sum((n - expected) ** 2 / expected for n in counts.values())
    assert chi_square < 150  # with 99 degrees of freedom: p = 0.0007


def test_lengths_are_those_of_t5() -> None:
    assert span_corruption.compute_input_and_target_lengths(512) == (568, 114)

    def compute_expected(source: int) -> tuple[int, int]:
        def compute_lengths(text: int) -> tuple[int, int]:
            num_noise = round(text * 0.15)
            num_spans = round(num_noise / 3.0)
            return text - num_noise + num_spans + 1, num_noise + num_spans + 1

        text = source - 1
        while compute_lengths(text + 1)[0] <= source:
            text += 1
        return text, compute_lengths(text)[1]

    for source in range(12, 1100, 7):
        assert span_corruption.compute_input_and_target_lengths(source) == compute_expected(source)
    for source in range(3, 200):
        text, target = span_corruption.compute_input_and_target_lengths(source)
        example = span_corruption.corrupt_spans(
            np.arange(2, 2 + text),
            make_rng(),
            first_sentinel_id=FIRST_SENTINEL_ID,
            eos_token_id=EOS_ID,
        )
        assert (len(example.source), len(example.target)) == (source, target)
        longer = span_corruption.corrupt_spans(
            np.arange(text + 1),
            make_rng(),
            first_sentinel_id=FIRST_SENTINEL_ID,
            eos_token_id=EOS_ID,
        )
        assert len(longer.source) > source
    with pytest.raises(ValueError, match="source_length 2, expected at least 3"):
        span_corruption.compute_input_and_target_lengths(2)


def test_short_texts_are_corrupted() -> None:
    def corrupt(ids: list[int]) -> list[list[int]]:
        example = span_corruption.corrupt_spans(
            np.array(ids, np.uint16), make_rng(), first_sentinel_id=70_000, eos_token_id=EOS_ID
        )
        return [part.tolist() for part in example]

    assert corrupt([]) == [[EOS_ID], [EOS_ID]]
    assert corrupt([8]) == [[8, EOS_ID], [70_000, EOS_ID]]
    assert corrupt([8, 9]) == [[8, 70_000, EOS_ID], [70_000, 9, EOS_ID]]


def test_spans_may_be_long_or_dense() -> None:
    assert (
        span_corruption.sample_span_noise_mask(
            10, make_rng(), noise_density=0.5, mean_span_length=50.0
        ).tolist()
        == [False] * 5 + [True] * 5
    )
    for density in (0.8, 1.0):
        noise_mask = span_corruption.sample_span_noise_mask(
            20, make_rng(), noise_density=density, mean_span_length=1.0
        )
        assert noise_mask.sum() == min(round(20 * density), 19)


def test_more_spans_than_sentinels_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"20 spans in 400 tokens, but only 19 sentinels"):
        span_corruption.corrupt_spans(
            np.arange(400),
            make_rng(),
            first_sentinel_id=FIRST_SENTINEL_ID,
            eos_token_id=EOS_ID,
            num_sentinels=19,
        )
