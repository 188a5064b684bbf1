"""The gradient through softmax attention to random keys, with and without a scaled dot product."""

from __future__ import annotations

import torch

from qkv.experiments.measures import CellContext
from qkv.experiments.table import Measurement


def measure_attention_gradient(
    context: CellContext,
    *,
    head_dim: int,
    is_scaled: bool,
    num_keys: int = 64,
    num_queries: int = 4096,
) -> Measurement:
    """Measure softmax attention from queries to keys with elements of unit variance.

    `score_std` is the standard deviation of the scores; `max_weight` the mean of the largest weight of
    a query; `gradient` and `median_gradient` the mean and the median over queries of the norm of a
    gradient: that of a random projection of the weights with respect to the scores. It is 0 where one
    weight is 1."""
    generator = torch.Generator().manual_seed(context.seed)
    queries = torch.randn(num_queries, head_dim, generator=generator)
    keys = torch.randn(num_queries, num_keys, head_dim, generator=generator)
    direction = torch.randn(num_queries, num_keys, generator=generator)
    scale = head_dim**-0.5 if is_scaled else 1.0
    scores = (torch.einsum("nd,nkd->nk", queries, keys) * scale).requires_grad_()
    weights = scores.softmax(-1)
    (gradient,) = torch.autograd.grad((weights * direction).sum(), scores)
    metrics = {
        "score_std": float(scores.detach().std()),
        "max_weight": float(weights.detach().amax(-1).mean()),
        "gradient": float(gradient.norm(dim=-1).mean()),
        "median_gradient": float(gradient.norm(dim=-1).median()),
    }
    return Measurement(metrics=metrics)
