"""The largest scores, however many there are, are those of a plain topk."""

from __future__ import annotations

import pytest
import torch

from qkv.decode.logits.top_k import CHUNK, best


@pytest.mark.parametrize("words", [50, 3 * CHUNK, 40 * CHUNK, 40 * CHUNK + 17])
def test_as_a_plain_topk(words: int) -> None:
    draw = torch.Generator().manual_seed(words)
    scores, base = torch.randn(5, 4, words, generator=draw), torch.randn(5, 4, generator=draw)
    scores[:, :, -3:] += 2  # beyond the last whole chunk too
    found = best(scores, base, 8)
    plain = (scores + base[..., None]).flatten(1).topk(8, dim=1)
    assert torch.equal(found[0], plain.values)
    assert torch.equal(found[1], plain.indices)
