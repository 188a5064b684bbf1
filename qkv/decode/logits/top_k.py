"""The top candidates of all beams, without sorting all scores.

P prompts, k beams per prompt, V vocabulary size, n chunks."""

from __future__ import annotations

import torch
from torch import Tensor

TOP_K_CHUNK_SIZE = 128


def select_top_k(scores: Tensor, beam_scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` largest of scores (P, k, V) + beam_scores (P, k) and their indices in k*V.

    They are in the `count` chunks with the largest maxima, so only these chunks are searched."""
    k, vocab_size = scores.shape[1:]
    if k * vocab_size < 4 * TOP_K_CHUNK_SIZE * count:
        top = (scores + beam_scores[..., None]).flatten(1).topk(count, dim=1)
        return top.values, top.indices
    device = scores.device
    num_chunks = vocab_size // TOP_K_CHUNK_SIZE
    num_chunked = num_chunks * TOP_K_CHUNK_SIZE
    chunks = scores[..., :num_chunked].unflatten(2, (num_chunks, TOP_K_CHUNK_SIZE))
    maxima = chunks.amax(3) + beam_scores[..., None]  # (P, k, n)
    top_chunks = maxima.flatten(1).topk(count, dim=1).indices  # (P, count)
    start = top_chunks // num_chunks * vocab_size + top_chunks % num_chunks * TOP_K_CHUNK_SIZE
    index = (start[..., None] + torch.arange(TOP_K_CHUNK_SIZE, device=device)).flatten(1)
    if vocab_size % TOP_K_CHUNK_SIZE:  # the tokens after the last chunk, of every beam
        beam_starts = torch.arange(0, k * vocab_size, vocab_size, device=device)
        remainder = torch.arange(num_chunked, vocab_size, device=device) + beam_starts[:, None]
        index = torch.cat([index, remainder.flatten().expand(len(scores), -1)], dim=1)
    values = scores.flatten(1).gather(1, index) + beam_scores.gather(1, index // vocab_size)
    top = values.topk(count, dim=1)
    return top.values, index.gather(1, top.indices)
