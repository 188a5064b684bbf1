"""Token ids, masks and documents for the tests of noise."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.data.noise import denoising, masking

Array = NDArray[Any]
MASK_ID, SENTENCE_END_ID, EOS_ID, FIRST_SENTINEL_ID = 103, 7, 1, 32099
REGULAR_IDS = masking.list_regular_token_ids(500, range(200))


def make_rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def build_empty_mask(length: int) -> NDArray[np.bool_]:
    return np.zeros(length, np.bool_)


def build_special_mask(length: int) -> NDArray[np.bool_]:
    """Return a special tokens mask with [CLS] and [SEP] at the ends and a [SEP] in the middle."""
    special = build_empty_mask(length)
    special[[0, length // 2, -1]] = True
    return special


def compute_run_lengths(mask: NDArray[np.bool_]) -> list[int]:
    """Return the lengths of the runs of true values."""
    edges = np.flatnonzero(np.diff(mask.astype(np.int8), prepend=0, append=0))
    return (edges[1::2] - edges[::2]).tolist()


def is_consecutive(ids: Array) -> bool:
    return bool((np.diff(ids) == 1).all())


def make_documents(num_documents: int, num_sentences: int, length: int) -> list[list[Array]]:
    """Return documents of sentences of `length` tokens; all tokens are different."""
    ids = np.arange(num_documents * num_sentences * length)
    return [list(document) for document in ids.reshape(num_documents, num_sentences, length)]


def build_noise_functions(
    mask_prob: float, mean_span_length: float
) -> tuple[denoising.NoiseFunction, ...]:
    """Return the noise of BART (0.3, 3.0) or mBART (0.35, 3.5)."""
    return (
        partial(denoising.permute_sentences, sentence_end_ids=[SENTENCE_END_ID]),
        partial(
            denoising.infill_text,
            mask_token_id=MASK_ID,
            mask_prob=mask_prob,
            mean_span_length=mean_span_length,
        ),
    )
