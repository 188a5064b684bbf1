"""WordAligner: IBM model 1 in both directions, and the links that both agree on.

Brown et al. 1993. Works on token ids; does not depend on networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qkv.experiments.corpus import Ids

Floats = NDArray[np.float64]
DIAGONAL_WEIGHT = 0.5  # a link from the first to the last token counts half: repeated words
NULL_ID = -1  # the empty word, from which tokens without a counterpart come


class TranslationTable(NamedTuple):
    """The probability of a target token given a source token, for pairs that occur together."""

    keys: Ids  # sorted; of a source and a target id
    probs: Floats
    vocab_size: int

    def lookup(self, source: Ids, target: Ids) -> Floats:
        """Return the probabilities (T, S) of all pairs; zero for those that never occurred."""
        keys = build_keys(source[None, :], target[:, None], self.vocab_size)
        places = np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)
        return np.where(self.keys[places] == keys, self.probs[places], 0.0)


def build_keys(source: Ids, target: Ids, vocab_size: int) -> Ids:
    """Return one number for each pair of a source id, or NULL_ID, and a target id."""
    return (source + 1) * vocab_size + target


def train_translation_table(
    pairs: Sequence[tuple[Ids, Ids]], vocab_size: int, iterations: int
) -> TranslationTable:
    """Estimate IBM model 1 by expectation maximization."""
    sources, targets, tokens = [], [], []
    num_tokens = 0
    for source, target in pairs:
        padded = np.concatenate([[NULL_ID], source])
        sources.append(np.tile(padded, len(target)))
        targets.append(np.repeat(target, len(padded)))
        tokens.append(np.repeat(np.arange(len(target)) + num_tokens, len(padded)))
        num_tokens += len(target)
    links = build_keys(np.concatenate(sources), np.concatenate(targets), vocab_size)
    token = np.concatenate(tokens)  # the target token of each link
    keys, place = np.unique(links, return_inverse=True)
    source_of_key = keys // vocab_size
    probs = np.ones(len(keys))
    for _ in range(iterations):
        link_probs = probs[place]
        link_probs /= np.bincount(token, link_probs, minlength=num_tokens)[token]
        counts = np.bincount(place, link_probs, minlength=len(keys))
        probs = counts / np.bincount(source_of_key, counts)[source_of_key]
    return TranslationTable(keys, probs, vocab_size)


class WordAligner:
    """Aligns the tokens of a pair: a link is kept if it is the best one in both directions."""

    def __init__(
        self, pairs: Sequence[tuple[Ids, Ids]], vocab_size: int, iterations: int = 5
    ) -> None:
        reverse = [(target, source) for source, target in pairs]
        self.forward = train_translation_table(pairs, vocab_size, iterations)
        self.backward = train_translation_table(reverse, vocab_size, iterations)

    def align(self, source: Ids, target: Ids) -> Ids:
        """Return the source position of each target token, -1 without one."""
        near = build_diagonal(len(source), len(target))
        forward = self.forward.lookup(source, target) * near  # (T, S)
        backward = self.backward.lookup(target, source).T * near
        links = forward.argmax(1)
        rows = np.arange(len(target))
        is_kept = (backward.argmax(0)[links] == rows) & (forward[rows, links] > 0)
        return np.where(is_kept & (backward[rows, links] > 0), links, -1)


def build_diagonal(source_length: int, target_length: int) -> Floats:
    """Return factors (T, S) that decrease with the distance from the diagonal."""
    s = (np.arange(source_length) + 0.5) / max(source_length, 1)
    t = (np.arange(target_length) + 0.5) / max(target_length, 1)
    factors: Floats = 1 - DIAGONAL_WEIGHT * np.abs(t[:, None] - s[None, :])
    return factors
