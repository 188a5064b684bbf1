"""Dense masks of attention patterns, made token by token, for rows with padding and documents."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

Rule = Callable[[int, int], bool]  # whether a query attends to a key, by their positions

LAYOUTS = ("plain", "left", "right", "packed")


def build_layout(layout: str, length: int) -> dict[str, Any]:
    """Return the settings of Inputs.create for two rows of this length."""
    columns = torch.arange(length)
    lengths = torch.tensor([[length], [length - length // 3]])
    if layout == "left":
        return {"attention_mask": columns >= length - lengths}
    if layout == "right":
        return {"attention_mask": columns < lengths}
    if layout == "packed":
        starts = torch.tensor([[length // 4, length // 2], [1, length // 3]])
        return {"document_ids": (columns >= starts[:, :1]).long() + (columns >= starts[:, 1:])}
    return {}


def locate_tokens(layout: str, length: int) -> tuple[Tensor, Tensor]:
    """Return the position and document of every token of two rows, document -1 for padding."""
    settings = build_layout(layout, length)
    mask = settings.get("attention_mask", torch.ones(2, length, dtype=torch.bool))
    document_ids = settings.get("document_ids", torch.zeros(2, length, dtype=torch.long))
    positions = torch.zeros(2, length, dtype=torch.long)
    documents = torch.full((2, length), -1)
    for n in range(2):
        count: dict[int, int] = {}
        for t in range(length):
            if mask[n, t]:
                document = int(document_ids[n, t])
                positions[n, t] = count.get(document, 0)
                documents[n, t] = document
                count[document] = count.get(document, 0) + 1
    return positions, documents


@cache
def build_square_mask(rule: Rule, length: int) -> Tensor:
    return torch.tensor([[bool(rule(i, j)) for j in range(length)] for i in range(length)])


def build_dense_mask(rule: Rule, layout: str, length: int) -> Tensor:
    """Return the dense mask (B, T, T); padding attends to itself, so that no row is empty."""
    positions, documents = locate_tokens(layout, length)
    visible = build_square_mask(rule, length)[positions[:, :, None], positions[:, None, :]]
    is_same_document = documents[:, :, None] == documents[:, None, :]
    visible = visible & is_same_document & (documents[:, None, :] >= 0)
    return visible | (torch.eye(length, dtype=torch.bool) & (documents[:, :, None] < 0))
