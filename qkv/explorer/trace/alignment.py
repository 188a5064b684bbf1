"""Word alignment from cross-attention: rows that predict target tokens, pieces merged into words.

T queries, S keys."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from qkv.explorer.inputs.labels import TokenSequence
from qkv.explorer.trace.trace import AttentionInfo, Trace


class WordAlignment(NamedTuple):
    """Weights (target words, source words)."""

    target: list[str]
    source: list[str]
    weights: Tensor


def align_words(trace: Trace, info: AttentionInfo, weights: Tensor) -> WordAlignment:
    """Merge weights (T, S) into words: the sum over the pieces of a source word, the mean over those of
    a target word. The row of a target token is the one that predicts it."""
    target = trace.sequences[info.queries]
    shift = 1 if trace.inputs.predicts == info.queries else 0
    target_words, rows = group_tokens(target, shift)
    source_words, columns = [], []
    start = 0
    for name in info.keys:
        sequence = trace.sequences[name]
        names, places = group_tokens(sequence, 0)
        source_words += names
        columns += [[start + place for place in group] for group in places]
        start += len(sequence)
    merged = torch.zeros(len(rows), len(columns))
    for i, row_places in enumerate(rows):
        row = weights[[place - shift for place in row_places]].mean(0)
        for j, column_places in enumerate(columns):
            merged[i, j] = row[column_places].sum()
    return WordAlignment(target_words, source_words, merged)


def group_tokens(sequence: TokenSequence, first: int) -> tuple[list[str], list[list[int]]]:
    """Return the words of a sequence and the places of their tokens from `first` on; a token that is
    no part of a word is left out."""
    places: dict[int, list[int]] = {}
    for place, token in enumerate(sequence.tokens):
        if token.word is not None and place >= first:
            places.setdefault(token.word, []).append(place)
    return [sequence.words[word] for word in places], [*places.values()]
