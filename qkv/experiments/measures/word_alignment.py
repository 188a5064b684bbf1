"""IBM model 1 (Brown et al. 1993): which source token a target token is most likely translated from."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

NUM_ITERATIONS = 8


class AlignmentModel:
    """Translation probabilities of token ids, estimated from pairs of id sequences by EM."""

    def __init__(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> None:
        self.num_targets = 1 + max(max(target) for _, target in pairs)
        keys, groups = [], []
        num_groups = 0
        for source, target in pairs:
            for token in target:
                keys += [token_id * self.num_targets + token for token_id in source]
                groups += [num_groups] * len(source)
                num_groups += 1
        self.keys, cooccurrence = torch.tensor(keys).unique(return_inverse=True)
        group = torch.tensor(groups)
        sources = self.keys // self.num_targets
        probs = torch.ones(len(self.keys))
        for _ in range(NUM_ITERATIONS):
            share = probs[cooccurrence]
            total = torch.zeros(num_groups).index_add_(0, group, share)
            counts = torch.zeros_like(probs).index_add_(0, cooccurrence, share / total[group])
            source_totals = torch.zeros(int(sources.max()) + 1).index_add_(0, sources, counts)
            probs = counts / source_totals[sources]
        self.probs = probs

    def align(self, source: Sequence[int], target: Sequence[int]) -> list[int | None]:
        """Return the index of the most likely source token of every target token, if one is known."""
        pairs = torch.tensor(source)[None] * self.num_targets + torch.tensor(target)[:, None]
        probs = self.get_probs(pairs)  # (T, S)
        best = probs.max(-1)
        return [
            int(index) if prob > 0 else None
            for index, prob in zip(best.indices, best.values, strict=True)
        ]

    def get_probs(self, keys: Tensor) -> Tensor:
        """Return the probabilities of pairs; 0 for those that never occurred together."""
        places = torch.searchsorted(self.keys, keys).clamp(max=len(self.keys) - 1)
        return self.probs[places] * (self.keys[places] == keys)
