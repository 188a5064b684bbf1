"""The largest of very many scores: most of them are looked at once, by their chunk.

P prompts, k beams of each, V words."""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK = 128  # words whose largest score stands for them at first sight


def best(scores: Tensor, base: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest `count` of each prompt's scores (P, k, V), raised by beam, and where they are in k * V.

    They lie in those chunks whose largest are the largest: the others are looked at once."""
    k, words = scores.shape[1:]
    if k * words < 4 * CHUNK * count:
        found = (scores + base[..., None]).flatten(1).topk(count, dim=1)
        return found.values, found.indices
    chunks = words // CHUNK
    heads = scores[..., : chunks * CHUNK].unflatten(2, (chunks, CHUNK)).amax(3) + base[..., None]  # (P, k, n)
    top = heads.flatten(1).topk(count, dim=1).indices  # (P, count)
    start = top // chunks * words + top % chunks * CHUNK
    index = (start[..., None] + torch.arange(CHUNK, device=scores.device)).flatten(1)
    if words % CHUNK:
        rest = torch.arange(chunks * CHUNK, words, device=scores.device)
        rest = (rest + torch.arange(0, k * words, words, device=scores.device)[:, None]).flatten()
        index = torch.cat([index, rest.expand(len(scores), -1)], dim=1)
    found = (scores.flatten(1).gather(1, index) + base.gather(1, index // words)).topk(count, dim=1)
    return found.values, index.gather(1, found.indices)
