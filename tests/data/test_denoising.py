"""The noise of BART and mBART: infilling, permuted sentences, deletion, rotation."""

import math
from collections import Counter
from functools import partial

import numpy as np
import pytest

from qkv.data.noise import denoising
from tests.support.noise import MASK_ID, SENTENCE_END_ID, build_noise_functions, make_rng


@pytest.mark.parametrize(
    ("mask_prob", "mean_span_length"),
    [(0.3, 3.0), (0.35, 3.5), (0.0, 3.0), (1.0, 3.0), (0.3, 40.0)],
)
def test_infilling_masks_its_share_and_keeps_the_rest_in_order(
    mask_prob: float, mean_span_length: float
) -> None:
    for length in [*range(40), 300]:
        ids = np.arange(1000, 1000 + length)
        infilled = denoising.infill_text(
            ids,
            make_rng(length),
            mask_token_id=MASK_ID,
            mask_prob=mask_prob,
            mean_span_length=mean_span_length,
        )
        rest = infilled[infilled != MASK_ID]
        assert len(rest) == length - math.ceil(mask_prob * length)
        assert (np.diff(rest) > 0).all()
        assert set(rest.tolist()) <= set(ids.tolist())
        gaps = np.flatnonzero(np.diff(rest) > 1)
        assert all(
            infilled[np.flatnonzero(infilled == rest[gap])[0] + 1] == MASK_ID for gap in gaps
        )


def test_infilled_span_lengths_have_a_poisson_distribution() -> None:
    ids = np.arange(1000, 601_000)
    infilled = denoising.infill_text(ids, make_rng(), mask_token_id=MASK_ID)
    masks = np.flatnonzero(infilled == MASK_ID)
    assert 180_000 / len(masks) == pytest.approx(3.0, rel=0.01)
    isolated = masks[(masks > 0) & (masks < len(infilled) - 1)]
    isolated = isolated[(infilled[isolated - 1] != MASK_ID) & (infilled[isolated + 1] != MASK_ID)]
    sizes = infilled[isolated + 1] - infilled[isolated - 1] - 1  # of spans that touch no other span
    for n in range(9):
        assert (sizes == n).mean() == pytest.approx(
            math.exp(-3) * 3**n / math.factorial(n), abs=0.006
        )


def test_every_token_is_as_likely_to_be_infilled() -> None:
    rng = make_rng()
    keep_probs = np.zeros(60)
    for _ in range(8000):
        infilled = denoising.infill_text(np.arange(60), rng, mask_token_id=99)
        keep_probs[infilled[infilled != 99]] += 1 / 8000
    inner = keep_probs[8:-8]  # near the ends fewer spans cover a token
    assert np.abs(inner - inner.mean()).max() < 0.022  # four standard deviations
    assert np.abs(keep_probs - keep_probs[::-1]).max() < 0.03
    assert keep_probs.max() < 0.9


def test_infilling_rejects_a_mean_length_of_zero() -> None:
    with pytest.raises(ValueError, match="mean_span_length 0, expected more than 0"):
        denoising.infill_text(np.arange(9), make_rng(), mask_token_id=MASK_ID, mean_span_length=0)


def test_sentences_are_permuted_as_units() -> None:
    ids = np.array([10, 11, SENTENCE_END_ID, 20, SENTENCE_END_ID, 30, 31, 32, SENTENCE_END_ID, 40])
    sentences = (
        (10, 11, SENTENCE_END_ID),
        (20, SENTENCE_END_ID),
        (30, 31, 32, SENTENCE_END_ID),
        (40,),
    )
    counts: Counter[tuple[tuple[int, ...], ...]] = Counter()
    for seed in range(2400):
        permuted = denoising.permute_sentences(
            ids, make_rng(seed), sentence_end_ids=[SENTENCE_END_ID]
        ).tolist()
        order = []
        while permuted:
            order.append(next(sentence for sentence in sentences if sentence[0] == permuted[0]))
            assert tuple(permuted[: len(order[-1])]) == order[-1]
            del permuted[: len(order[-1])]
        counts[tuple(order)] += 1
    assert len(counts) == 24
    assert all(60 < count < 145 for count in counts.values())  # 100 each, four standard deviations
    assert denoising.permute_sentences(
        np.array([1, 2]), make_rng(), sentence_end_ids=[]
    ).tolist() == [1, 2]
    assert (
        denoising.permute_sentences(
            np.empty(0, np.uint16), make_rng(), sentence_end_ids=[SENTENCE_END_ID]
        ).tolist()
        == []
    )


def test_several_ids_may_end_a_sentence() -> None:
    orders = {
        tuple(
            denoising.permute_sentences(
                np.array([1, 8, 2, 9]), make_rng(s), sentence_end_ids=[8, 9]
            ).tolist()
        )
        for s in range(20)
    }
    assert orders == {(1, 8, 2, 9), (2, 9, 1, 8)}


def test_deletion_removes_its_share() -> None:
    for length in range(30):
        rest = denoising.delete_tokens(np.arange(length), make_rng(length), delete_prob=0.3)
        assert len(rest) == length - round(0.3 * length)
        assert (np.diff(rest) > 0).all()


def test_rotation_begins_anywhere() -> None:
    starts: Counter[int] = Counter()
    for seed in range(700):
        rotated = denoising.rotate_document(np.arange(7), make_rng(seed))
        assert ((rotated - rotated[0]) % 7 == np.arange(7)).all()
        starts[int(rotated[0])] += 1
    assert len(starts) == 7
    assert min(starts.values()) > 60
    assert denoising.rotate_document(np.empty(0, np.int64), make_rng()).tolist() == []
    assert denoising.rotate_document(np.array([4]), make_rng()).tolist() == [4]


def test_noise_functions_are_applied_in_order() -> None:
    ids = np.array([*range(20, 50), SENTENCE_END_ID, *range(50, 80), SENTENCE_END_ID])
    rng = make_rng(2)
    permuted = denoising.permute_sentences(ids, rng, sentence_end_ids=[SENTENCE_END_ID])
    infilled = denoising.infill_text(permuted, rng, mask_token_id=MASK_ID)
    bart = build_noise_functions(0.3, 3.0)
    assert np.array_equal(denoising.apply_noise(ids, make_rng(2), bart), infilled)
    noisy = denoising.apply_noise(ids, make_rng(2), build_noise_functions(0.35, 3.5))
    assert (noisy != MASK_ID).sum() == len(ids) - math.ceil(0.35 * len(ids))
    delete = partial(denoising.delete_tokens, delete_prob=0.1)
    noisy = denoising.apply_noise(ids, make_rng(2), (*bart, delete, denoising.rotate_document))
    assert len(noisy) == len(infilled) - round(0.1 * len(infilled))
    assert denoising.apply_noise(ids, make_rng(), ()).tolist() == ids.tolist()
