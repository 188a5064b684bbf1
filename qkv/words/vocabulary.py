"""The vocabulary of a corpus: words by frequency, and the probabilities that training draws with.

Mikolov et al. 2013, arXiv:1310.4546, section 2.2 (negative sampling) and 2.3 (subsampling)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

NOISE_EXPONENT = 0.75  # of the unigram distribution that noise words are drawn from


@dataclass(frozen=True)
class WordVocabulary:
    """Words with their counts, the most frequent first."""

    words: Sequence[str]
    counts: Sequence[int]

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def frequencies(self) -> Tensor:
        """The share of each word in the corpus, (V,) in fp64."""
        counts = torch.tensor(self.counts, dtype=torch.float64)
        return counts / counts.sum()

    def compute_keep_probabilities(self, sample: float) -> Tensor:
        """Return the probability that subsampling keeps an occurrence of a word, (V,) in fp64.

        It is √(t/f) + t/f for a word of frequency f and the threshold t, as in the program word2vec;
        the paper has √(t/f)."""
        if not sample:
            return torch.ones_like(self.frequencies)
        ratios = sample / self.frequencies
        return (ratios.sqrt() + ratios).clamp_(max=1)

    def compute_noise_distribution(self) -> Tensor:
        """Return the probability of each word to be drawn as noise, (V,) in fp64: unigram^0.75."""
        weights = self.frequencies**NOISE_EXPONENT
        return weights / weights.sum()
