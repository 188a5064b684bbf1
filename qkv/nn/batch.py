"""Batch: the rows a network reads. Masks are positions; what the host knows of them is settled here, once."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Rows:
    """One side of a batch: (B, T) ids or (B, T, W) embeds, where each token stands, and which text it is of."""

    positions: Tensor  # (B, T), or (1, T) where all rows are alike
    ids: Tensor | None = None
    embeds: Tensor | None = None
    images: Tensor | None = None
    types: Tensor | None = None
    seat: Tensor | None = None  # (B, T) true where a token stands; None: everywhere
    document: Tensor | None = None  # (B, T) tells packed texts apart; None: one text a row
    even: bool = True  # positions rise by one along the row within a text, so index distance is distance
    counted: bool = True  # positions start at 0 and shift by what a memory already holds
    reach: int = 0  # no two positions are further apart

    @staticmethod
    def of(
        ids: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        document: Tensor | None = None,
        types: Tensor | None = None,
        embeds: Tensor | None = None,
        images: Tensor | None = None,
        cells: int = 0,
    ) -> Rows:
        """Rows with positions counted over the seats of each text, unless they are given."""
        body = ids if ids is not None else embeds if embeds is not None else images
        assert body is not None
        length = cells if images is not None else body.shape[1]
        seat = None if mask is None or bool(mask.all()) else mask.bool()
        even, counted = True, positions is None
        reach = length - 1 if positions is None else int(positions.max())
        if positions is None and document is not None:
            change = torch.ones_like(document, dtype=torch.bool)
            change[:, 1:] = document[:, 1:] != document[:, :-1]
            index = torch.arange(length, device=body.device).expand_as(document)
            positions = index - (index * change).cummax(dim=1).values
        elif positions is None and seat is None:
            positions = torch.arange(length, device=body.device)[None]
        elif positions is None and seat is not None:
            positions = (seat.cumsum(1) - 1).clamp(min=0)
            even = bool((seat[:, 1:] != seat[:, :-1]).sum(1).max() <= 1) if length > 1 else True
        else:
            even = False
        assert positions is not None
        return Rows(
            ids=ids, embeds=embeds, images=images, types=types, positions=positions,
            seat=seat, document=document, even=even, counted=counted, reach=reach,
        )  # fmt: skip

    @property
    def size(self) -> int:
        body = next(x for x in (self.ids, self.embeds, self.images) if x is not None)
        return len(body)

    @property
    def length(self) -> int:
        return self.positions.shape[1]

    def to(self, device: torch.device | str) -> Rows:
        moved = {k: v.to(device) for k, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **moved)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What `net(batch)` reads: the rows, the decoder's rows, and the rarer things."""

    rows: Rows | None = None
    target: Rows | None = None
    image: Rows | None = None
    source: Tensor | None = None  # encoder states given from outside
    source_rows: Rows | None = None
    memory: Tensor | None = None  # (layers, B, M, W)
    allowed: Tensor | None = None  # (B, T, T) who may see whom, beside the pattern (XLNet's permutation)
    targets: Tensor | None = None  # (B, P) the tokens that the query stream predicts
    choice: Tensor | None = None  # (B,) the token that a double head reads
    keep: tuple[str, ...] = ()  # asks for more: "hiddens", "router"
