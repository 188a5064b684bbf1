"""The time of attention with a selection other than softmax."""

from __future__ import annotations

import statistics

import torch

from qkv.experiments.measures import CellContext
from qkv.experiments.measures.cost import time_call
from qkv.experiments.table import Measurement
from qkv.nn.scores import build_score
from qkv.nn.selections import Hard, build_selection

WARMUPS = 3


def measure_selection_speed(
    context: CellContext,
    *,
    selection: str,
    num_keys: int,
    num_queries: int,
    rows: int,
    width: int,
    repeats: int = 10,
) -> Measurement:
    """Time the forward and the backward pass of attention with a scaled dot product; of hard attention
    with the terms of REINFORCE, by which its scores have a gradient.

    `milliseconds` is the median; `support` the mean number of keys with a weight above zero."""
    torch.manual_seed(context.seed)
    device = torch.device(context.device)
    sizes = {"query": num_queries, "key": num_keys, "value": num_keys}
    query, key, value = (
        torch.randn(rows, size, width, device=device, requires_grad=True) for size in sizes.values()
    )
    score = build_score("scaled-dot", query_width=width, key_width=width).to(device)
    select = build_selection(selection, query_width=width).to(device).train()

    def compute_weights() -> tuple[torch.Tensor, torch.Tensor]:
        scores = score(query, score.prepare_keys(key))
        return scores, select(scores, None, query)

    def run() -> None:
        scores, weights = compute_weights()
        loss = (weights @ value).sum()
        if isinstance(select, Hard):
            sample = select.statistics(scores, None, weights)
            loss = loss + sample.log_probs.sum() + sample.entropy.sum()
        loss.backward()

    for _ in range(WARMUPS):
        run()
    seconds = [time_call(run, device) for _ in range(repeats)]
    support = (compute_weights()[1].detach() > 0).sum(-1).float().mean()
    return Measurement(
        metrics={
            "milliseconds": statistics.median(seconds) * 1000,
            "support": float(support),
        }
    )
