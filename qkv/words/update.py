"""One step of stochastic gradient descent for skip-gram and CBOW with negative sampling. Knows neither
words nor files.

The noise words of a chunk are shared by its pairs (Ji et al. 2016, arXiv:1604.04661), so that the scores
of a chunk are matrix products. Each of its N noise words counts `negative` / N times, such that the
expected loss of a pair is that of `negative` noise words of its own:

    -log σ(center · context) - Σ_noise negative / N · log σ(-noise · context)

Letters: G chunks, C centers, W window, J = C + 2W inputs, N noise words, D vector size."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class VectorTables:
    """The two vectors of each word: as input, which is the result of training, and as output."""

    inputs: Tensor  # (V, D)
    outputs: Tensor  # (V, D)


def create_tables(num_words: int, vector_size: int, seed: int) -> VectorTables:
    """Return the initial tables: small uniform inputs, and zeros."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.rand(num_words, vector_size, generator=generator).sub_(0.5).div_(vector_size)
    return VectorTables(inputs, torch.zeros(num_words, vector_size))


def get_band(matrices: Tensor, width: int) -> Tensor:
    """Return a view of the band of matrices (G, C, J) that begins at their diagonal: (G, C, width)."""
    step, row, column = matrices.stride()
    return matrices.as_strided((*matrices.shape[:2], width), (step, row + column, column))


def expand_contexts(contexts: Tensor) -> Tensor:
    """Return the contexts (G, C, 2W + 1) of the centers in the inputs of the chunk, (G, C, J)."""
    num_chunks, num_centers, width = contexts.shape
    expanded = contexts.new_zeros(num_chunks, num_centers, num_centers + width - 1)
    get_band(expanded, width).copy_(contexts)
    return expanded


def update_skip_gram(
    tables: VectorTables,
    inputs: Tensor,
    contexts: Tensor,
    noise: Tensor,
    *,
    negative: int,
    lr: float,
) -> None:
    """Update the tables: every context word, as input, predicts its center word.

    `inputs` (G, J) and `noise` (G, N) are ids, `contexts` is (G, C, 2W + 1)."""
    window = contexts.shape[2] // 2
    centers = inputs[:, window : inputs.shape[1] - window]  # (G, C)
    pairs = expand_contexts(contexts)  # (G, C, J)
    x = gather_vectors(tables.inputs, inputs)  # (G, J, D)
    y = gather_vectors(tables.outputs, centers)  # (G, C, D)
    z = gather_vectors(tables.outputs, noise)  # (G, N, D)
    # Steps along the gradients of log σ(yx) and log σ(-zx), without the factor x, y or z.
    center_steps = torch.bmm(y, x.mT).neg_().sigmoid_().mul_(pairs).mul_(lr)  # (G, C, J)
    noise_weights = pairs.sum(1).mul_(-lr * negative / noise.shape[1])  # (G, J)
    noise_steps = torch.bmm(x, z.mT).sigmoid_().mul_(noise_weights[:, :, None])  # (G, J, N)
    x_steps = torch.bmm(center_steps.mT, y).baddbmm_(noise_steps, z)
    add_vectors(tables.inputs, inputs, x_steps)
    add_vectors(tables.outputs, centers, torch.bmm(center_steps, x))
    add_vectors(tables.outputs, noise, torch.bmm(noise_steps.mT, x))


def update_cbow(
    tables: VectorTables,
    inputs: Tensor,
    contexts: Tensor,
    noise: Tensor,
    *,
    negative: int,
    lr: float,
) -> None:
    """Update the tables: the mean of the context words, as inputs, predicts the center word.

    As in word2vec and gensim, every context word receives the whole step of the mean, which is not
    divided by their number. The arguments are those of `update_skip_gram`."""
    window = contexts.shape[2] // 2
    centers = inputs[:, window : inputs.shape[1] - window]  # (G, C)
    pairs = expand_contexts(contexts)  # (G, C, J)
    num_contexts = pairs.sum(2, keepdim=True)  # (G, C, 1)
    y = gather_vectors(tables.outputs, centers)  # (G, C, D)
    z = gather_vectors(tables.outputs, noise)  # (G, N, D)
    mean = torch.bmm(pairs, gather_vectors(tables.inputs, inputs)).div_(num_contexts.clamp(min=1))
    step_sizes = num_contexts.clamp_(max=1).mul_(lr)  # 0 for a center without context
    center_steps = (mean * y).sum(2, keepdim=True).neg_().sigmoid_().mul_(step_sizes)  # (G, C, 1)
    noise_steps = torch.bmm(mean, z.mT).sigmoid_().mul_(step_sizes * (-negative / noise.shape[1]))
    mean_steps = (center_steps * y).baddbmm_(noise_steps, z)  # (G, C, D)
    add_vectors(tables.inputs, inputs, torch.bmm(pairs.mT, mean_steps))
    add_vectors(tables.outputs, centers, center_steps * mean)
    add_vectors(tables.outputs, noise, torch.bmm(noise_steps.mT, mean))


UPDATES = {"skip-gram": update_skip_gram, "cbow": update_cbow}


def gather_vectors(table: Tensor, ids: Tensor) -> Tensor:
    """Return the rows of a table (V, D) for ids (G, J), as (G, J, D)."""
    return table.index_select(0, ids.reshape(-1)).view(*ids.shape, table.shape[1])


def add_vectors(table: Tensor, ids: Tensor, steps: Tensor) -> None:
    """Add steps (G, J, D) to the rows of a table (V, D); a repeated id receives their sum."""
    table.index_add_(0, ids.reshape(-1), steps.reshape(-1, table.shape[1]))
