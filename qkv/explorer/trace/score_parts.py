"""The parts of the scores of one query, in the order in which the page shows them.

S keys, D width of queries and keys."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from qkv.nn.attention_record import ScoreTerms

# Sums of products of query and key, else of other terms, such as those of additive attention.
PRODUCTS, CONTRIBUTIONS = "products", "contributions"
POSITION_PREFIX = "position:"
POSITION_NAMES = {"t5": "T5 relative position bias", "alibi": "ALiBi", "xl": "relative positions"}


class ScorePart(NamedTuple):
    """A named array of the answer about one query."""

    name: str
    values: Tensor


def list_score_parts(terms: ScoreTerms, position: str | None) -> list[ScorePart]:
    """Return the vectors, the products, the terms of the score, and the weights (S,).

    The score is NaN for keys that the query may not attend to."""
    query, keys = terms.query, terms.keys
    is_product = query.shape[-1:] == keys.shape[-1:] and torch.equal(terms.products, query * keys)
    dot = terms.products.sum(-1)
    score = dot * terms.scale
    parts = {"query": query, "keys": keys} if query.shape[-1:] == keys.shape[-1:] else {}
    parts[PRODUCTS if is_product else CONTRIBUTIONS] = terms.products
    if is_product:
        parts["dot"] = dot
        if terms.scale != 1:
            parts["scaled"] = score
    for bias in terms.biases.values():
        parts[POSITION_PREFIX + get_position_name(position)] = bias
        score = score + bias
    if terms.mask is not None:
        score = score.masked_fill(~terms.mask, torch.nan)
    parts |= {"score": score, "weight": terms.weights}
    return [ScorePart(name, values.float().cpu()) for name, values in parts.items()]


def get_position_name(position: str | None) -> str:
    """Return the name of the term that positions add to a score."""
    return POSITION_NAMES.get(position or "", "position bias")
