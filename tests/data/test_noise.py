"""All noise depends only on the seed and keeps its input."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from qkv.data.noise import denoising, masking, permutation, sentence_pairs, span_corruption
from tests.support.noise import (
    EOS_ID,
    FIRST_SENTINEL_ID,
    MASK_ID,
    REGULAR_IDS,
    SENTENCE_END_ID,
    Array,
    build_empty_mask,
    build_noise_functions,
    make_rng,
)


def apply_masking(ids: Array, rng: np.random.Generator) -> Array:
    return masking.mask_tokens(
        ids,
        masking.choose_mask_positions(build_empty_mask(len(ids)), rng, max_ngram=3),
        rng,
        mask_token_id=MASK_ID,
        regular_token_ids=REGULAR_IDS,
    )


def apply_span_corruption(ids: Array, rng: np.random.Generator) -> Array:
    return np.concatenate(
        span_corruption.corrupt_spans(
            ids, rng, first_sentinel_id=FIRST_SENTINEL_ID, eos_token_id=EOS_ID
        )
    )


def concatenate_pairs(pairs: list[sentence_pairs.SegmentPair]) -> Array:
    return np.concatenate(
        [np.concatenate([pair.segment_a, pair.segment_b, [pair.label]]) for pair in pairs]
    )


def sample_order_pairs(ids: Array, rng: np.random.Generator) -> Array:
    return concatenate_pairs(
        sentence_pairs.sample_sentence_order_pairs(np.split(ids, 8), rng, max_length=32)
    )


def sample_next_pairs(ids: Array, rng: np.random.Generator) -> Array:
    documents = [np.split(ids, 8), np.split(ids, 4)]
    return concatenate_pairs(
        sentence_pairs.sample_next_sentence_pairs(documents, 0, rng, max_length=32)
    )


def sample_perm_mask(ids: Array, rng: np.random.Generator) -> Array:
    return permutation.sample_factorization_order(
        ids == SENTENCE_END_ID, rng, num_targets=9
    ).perm_mask


NOISES: dict[str, Callable[[Array, np.random.Generator], Array]] = {
    "masking": apply_masking,
    "span corruption": apply_span_corruption,
    "sentence order": sample_order_pairs,
    "next sentence": sample_next_pairs,
    "permutation": sample_perm_mask,
    "delete": partial(denoising.delete_tokens, delete_prob=0.2),
    "rotate": denoising.rotate_document,
    "bart": partial(denoising.apply_noise, noise_functions=build_noise_functions(0.3, 3.0)),
    "mbart": partial(denoising.apply_noise, noise_functions=build_noise_functions(0.35, 3.5)),
}


@pytest.mark.parametrize("name", NOISES)
def test_noise_depends_on_the_seed_and_keeps_its_input(name: str) -> None:
    ids = make_rng(9).integers(5, 400, 64).astype(np.uint16)
    ids.flags.writeable = False  # as a memory-mapped file is
    first, second, other = (NOISES[name](ids, make_rng(seed)) for seed in (3, 3, 4))
    assert first.dtype == (np.bool_ if name == "permutation" else np.int64)
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)
