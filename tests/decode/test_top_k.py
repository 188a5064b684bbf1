"""select_top_k gives the values and indices of torch.topk."""

from __future__ import annotations

import pytest
import torch

from qkv.decode.logits.top_k import TOP_K_CHUNK_SIZE, select_top_k
from tests.support import compare


@pytest.mark.parametrize(
    "vocab_size", [50, 3 * TOP_K_CHUNK_SIZE, 40 * TOP_K_CHUNK_SIZE, 40 * TOP_K_CHUNK_SIZE + 17]
)
def test_same_as_topk(vocab_size: int) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    scores = torch.randn(5, 4, vocab_size, generator=generator)
    beam_scores = torch.randn(5, 4, generator=generator)
    scores[:, :, -3:] += 2  # tokens after the last chunk are among the largest
    values, indices = select_top_k(scores, beam_scores, 8)
    expected = (scores + beam_scores[..., None]).flatten(1).topk(8, dim=1)
    compare.assert_bitwise_equal(
        values, expected.values, because="each value is the same sum of two numbers"
    )
    assert indices.tolist() == expected.indices.tolist()
