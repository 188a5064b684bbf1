"""Masking follows the rules of BERT, ALBERT and ELECTRA."""

from collections import Counter

import numpy as np
import pytest

from qkv.data.noise import masking
from tests.support.noise import (
    MASK_ID,
    REGULAR_IDS,
    build_empty_mask,
    build_special_mask,
    compute_run_lengths,
    make_rng,
)


def test_regular_ids_are_not_special() -> None:
    assert masking.list_regular_token_ids(6, [0, 4]).tolist() == [1, 2, 3, 5]


@pytest.mark.parametrize("length", [3, 4, 10, 13, 37, 128, 512])
def test_as_many_tokens_are_chosen_as_bert_chooses(length: int) -> None:
    special = build_special_mask(length)
    total = int((~special).sum())
    for seed in range(20):
        chosen = masking.choose_mask_positions(special, make_rng(seed))
        assert chosen.sum() == min(max(1, round(0.15 * total)), total)
        assert not (chosen & special).any()


def test_every_token_has_the_same_probability() -> None:
    rng = make_rng()
    counts = np.sum(
        [masking.choose_mask_positions(build_empty_mask(40), rng) for _ in range(8000)], axis=0
    )
    assert np.abs(counts / 8000 - 0.15).max() < 0.016  # four standard deviations


@pytest.mark.parametrize("max_ngram", [1, 3])
def test_short_texts_are_masked(max_ngram: int) -> None:
    assert (
        masking.choose_mask_positions(build_empty_mask(0), make_rng(), max_ngram=max_ngram).tolist()
        == []
    )
    assert masking.choose_mask_positions(
        build_empty_mask(1), make_rng(), max_ngram=max_ngram
    ).tolist() == [True]
    assert not masking.choose_mask_positions(
        np.ones(9, np.bool_), make_rng(), max_ngram=max_ngram
    ).any()


def test_whole_words_are_chosen() -> None:
    rng = make_rng()
    for _ in range(300):
        special = rng.random(80) < 0.05
        starts = rng.random(80) < 0.6
        chosen = masking.choose_mask_positions(special, rng, word_starts=starts)
        assert chosen.sum() <= max(1, round(0.15 * int((~special).sum())))
        assert not (chosen & special).any()
        # A token inside a word is chosen if the token before it is.
        within = np.flatnonzero(~starts[1:] & ~special[1:] & ~special[:-1]) + 1
        assert np.array_equal(chosen[within], chosen[within - 1])


def test_a_word_longer_than_the_count_is_skipped() -> None:
    starts = np.array([True] + [False] * 8 + [True])
    for seed in range(10):
        assert np.flatnonzero(
            masking.choose_mask_positions(build_empty_mask(10), make_rng(seed), word_starts=starts)
        ).tolist() == [9]
    assert not masking.choose_mask_positions(
        build_empty_mask(9), make_rng(), word_starts=starts[:9]
    ).any()


def test_a_word_begins_with_the_text_and_after_a_special_token() -> None:
    special = np.array([False, False, True, False, False])
    assert np.array_equal(
        masking.choose_mask_positions(
            special, make_rng(), word_starts=build_empty_mask(5), mask_prob=1.0
        ),
        ~special,
    )


def test_ngrams_have_the_probabilities_of_albert() -> None:
    mask = masking.choose_mask_positions(
        build_empty_mask(2_000_000), make_rng(), mask_prob=0.01, max_ngram=3
    )
    assert mask.sum() == 20_000
    counts = Counter(compute_run_lengths(mask))
    total = sum(counts[n] for n in (1, 2, 3))
    for n in (1, 2, 3):  # 6/11, 3/11, 2/11
        assert counts[n] / total == pytest.approx(1 / n / (1 + 1 / 2 + 1 / 3), abs=0.015)


def test_ngrams_fill_the_count_and_do_not_cross_special_tokens() -> None:
    rng = make_rng()
    for _ in range(200):
        special = build_special_mask(101)
        chosen = masking.choose_mask_positions(special, rng, max_ngram=3)
        assert chosen.sum() == round(0.15 * 98)
        assert not (chosen & special).any()
        starts = rng.random(101) < 0.5
        within = np.flatnonzero(~starts[1:] & ~special[1:] & ~special[:-1]) + 1
        chosen = masking.choose_mask_positions(special, rng, word_starts=starts, max_ngram=3)
        assert not (chosen & special).any()
        assert np.array_equal(chosen[within], chosen[within - 1])
        assert 0 < chosen.sum() <= round(0.15 * 98)


def test_chosen_tokens_are_masked_replaced_or_unchanged() -> None:
    rng = make_rng()
    ids = rng.integers(200, 500, 200_000)
    chosen = masking.choose_mask_positions(build_empty_mask(len(ids)), rng)
    masked = masking.mask_tokens(
        ids, chosen, rng, mask_token_id=MASK_ID, regular_token_ids=REGULAR_IDS
    )
    assert np.array_equal(masked[~chosen], ids[~chosen])
    is_masked = masked[chosen] == MASK_ID
    is_unchanged = masked[chosen] == ids[chosen]
    assert is_masked.mean() == pytest.approx(0.8, abs=0.01)
    assert is_unchanged.mean() == pytest.approx(0.1 + 0.1 / len(REGULAR_IDS), abs=0.01)
    replaced = masked[chosen][~is_masked & ~is_unchanged]
    assert len(replaced) / chosen.sum() == pytest.approx(0.1, abs=0.01)
    assert set(replaced.tolist()) == set(REGULAR_IDS.tolist())


def test_electras_generator_has_no_random_tokens() -> None:
    ids = np.arange(200, 500)
    chosen = masking.choose_mask_positions(build_empty_mask(300), make_rng(), mask_prob=0.5)
    masked = masking.mask_tokens(
        ids,
        chosen,
        make_rng(),
        mask_token_id=MASK_ID,
        regular_token_ids=REGULAR_IDS,
        mask_token_prob=0.85,
        random_token_prob=0.0,
    )
    assert set(masked[masked != ids].tolist()) == {MASK_ID}
    assert (masked[chosen] == MASK_ID).mean() == pytest.approx(0.85, abs=0.08)
