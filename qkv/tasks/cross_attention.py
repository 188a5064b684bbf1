"""Looked: what a result was made of, as the decoder's cross-attention has it. Knows no text.

An id's weights are those of the step that said it. A forward on the finished ids tells them, so that decoding
stays as it is. Of the layers, the last but one usually aligns best (Garg et al. 2019, arXiv:1909.02074)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch

from qkv.attention_weights import look
from qkv.batch import Batch, Rows
from qkv.data.batches.collate import beside
from qkv.decode import Engine, Found, How
from qkv.nn.transformer import Transformer
from qkv.tasks.checks import one_of
from qkv.validate import number

Ids: TypeAlias = Sequence[int]


class Looked(Found):
    """A result, and how much each of its ids looked at each id of its source: (ids, source), with pads."""

    weights: list[list[float]]


def check_layer(layer: str | int | None, depth: int) -> None:
    if isinstance(layer, str):
        one_of("alignment", layer, ("penultimate", "mean"))
    elif layer is not None:
        number("alignment", layer, whole=True, at_least=-depth, less_than=depth)


def path_of(layer: str | int, depth: int) -> str:
    """The cross-attention of a layer, or of all of them, as `look` is asked for it."""
    named = {"penultimate": max(depth - 2, 0), "mean": r"\d+"}
    place = named[layer] if isinstance(layer, str) else layer % depth
    return rf"decoder\.layers\.{place}\.cross"


def look_back(
    net: Transformer, sources: Sequence[Ids], said: Sequence[Found], how: How, layer: str | int
) -> list[Looked]:
    """Results with what each looked at in its source, the mean over heads."""
    assert net.decoder is not None
    begun = Engine(net).begun([], sources[0], how)
    read = [[*begun, *one.ids[:-1]] for one in said]
    nowhere = torch.zeros(0, dtype=torch.long)  # no head reads: all logits would not fit
    batch = Batch(rows=filled(sources), target=filled(read), read=nowhere)
    with look(net, path_of(layer, len(net.decoder.order))) as seen:
        net(batch.to(next(net.parameters()).device))
    mean = torch.stack([weights.float().mean(1) for weights in seen.values()]).mean(0)  # (B, T, S)
    found, first = [Looked(*one) for one in said], len(begun) - 1
    for one, weights in zip(found, mean.tolist(), strict=True):
        one.weights = weights[first : first + len(one.ids)]
    return found


def filled(ids: Sequence[Ids]) -> Rows:
    """Ids side by side, with pads on the right that are no tokens."""
    lengths = [np.ones(len(row), np.int64) for row in ids]
    return Rows.of(beside([np.array(row) for row in ids], 0), mask=beside(lengths, 0) > 0)
