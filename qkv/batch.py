"""Batch: the rows a network reads. Masks are positions; what the host knows of them is settled here, once."""

from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Rows:
    """One side of a batch: ids (B, T) or embeds (B, T, W), where each token stands, of which text it is."""

    positions: Tensor  # (B, T), or (1, T) where all rows are alike
    ids: Tensor | None = None
    embeds: Tensor | None = None
    images: Tensor | None = None
    types: Tensor | None = None
    seat: Tensor | None = None  # (B, T) true where a token stands; None: everywhere
    document: Tensor | None = None  # (B, T) tells packed texts apart; None: one text a row
    even: bool = True  # within a text, positions rise by one along the row: index distance is distance
    counted: bool = True  # positions start at 0 and shift by what a memory already holds
    reach: int = 0  # no two positions are further apart
    edges: Tensor | None = None  # where texts begin in the flat (B * T) row, and the end: no pads among them

    @staticmethod
    def of(
        ids: Tensor | None = None, *, mask: Tensor | None = None, positions: Tensor | None = None,
        document: Tensor | None = None, types: Tensor | None = None, embeds: Tensor | None = None,
        images: Tensor | None = None, cells: int = 0,
    ) -> "Rows":  # fmt: skip
        """Rows with positions counted over the seats of each text, unless given; an image has `cells`."""
        body = next(x for x in (ids, embeds, images) if x is not None)
        size, length = len(body), cells or body.shape[1]
        seat = None if mask is None or bool(mask.all()) else mask.bool()
        even, counted, edges = positions is None, positions is None, None
        reach = length - 1 if positions is None else int(positions.max())
        if positions is None and seat is None and document is None:
            positions = torch.arange(length, device=body.device)[None]
        elif positions is None:
            stands = torch.ones(size, length, dtype=torch.bool, device=body.device) if seat is None else seat
            text = torch.zeros_like(stands, dtype=torch.long) if document is None else document
            starts = text != text.roll(1, dims=1)
            starts[:, 0] = True
            count = stands.cumsum(1)  # tokens up to here, less those before the text began
            positions = (count - 1 - ((count - stands.long()) * starts).cummax(1).values).clamp(min=0)
            gaps = (stands != stands.roll(1, dims=1)) & ~starts  # pads on one side of a text are no hole
            even = seat is None or (document is None and bool((gaps.sum(1) <= 1).all()))
            edges = None if document is None or seat is not None else edges_of(starts)
            if size and even and document is None and bool(stands[:, 0].all()):  # pads come last: count alike
                positions = positions[count[:, -1:].argmax(0)]  # as the longest row does
        return Rows(
            ids=ids, embeds=embeds, images=images, types=types, positions=positions, seat=seat,
            document=document, even=even, counted=counted, reach=reach, edges=edges,
        )  # fmt: skip

    @property
    def size(self) -> int:
        return len(next(x for x in (self.ids, self.embeds, self.images) if x is not None))

    @property
    def length(self) -> int:
        return self.positions.shape[1]

    @property
    def seats(self) -> Tensor:
        """Positions, -1 where no token stands."""
        return self.positions if self.seat is None else self.positions.masked_fill(~self.seat, -1)


def edges_of(starts: Tensor) -> Tensor:
    """Where texts begin, and the end (N + 1,); N + 1 is made a power of 2 by empty texts: few shapes."""
    size = len(found := starts.flatten().nonzero()[:, 0])
    spare = (64 << (size // 64).bit_length()) - size
    return torch.nn.functional.pad(found, (0, spare), value=starts.numel()).int()


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What `net(batch)` reads: the rows, the decoder's rows, and the rarer things."""

    rows: Rows | None = None
    target: Rows | None = None
    image: Rows | None = None
    source: Rows | None = None  # an encoder's states, given from outside as embeds
    memory: Tensor | None = None  # (layers, B, M, W)
    allowed: Tensor | None = None  # (B, T, T) who may see whom, beside the pattern (XLNet's permutation)
    targets: Tensor | None = None  # (B, P) the tokens that the query stream predicts
    choice: Tensor | None = None  # (B,) the token that a double head reads
    read: Tensor | None = None  # (N,) indices into all tokens (B * T): the only ones a head for all reads
    labels: dict[str, Tensor] = field(default_factory=dict)  # go through the net as they are, for a loss
    keep: tuple[str, ...] = ()  # asks for more: "hiddens", "router"

    def to(self, device: torch.device | str) -> "Batch":
        return moved(self, device)


Moved = TypeVar("Moved")


def moved(x: Moved, device: torch.device | str) -> Moved:
    """The same with every tensor in it on that device."""
    whole: Any = x
    if isinstance(whole, Tensor):
        if torch.device(device).type == "cuda" and not whole.is_cuda:
            whole = whole.pin_memory()  # from elsewhere a copy may wait for all that the device has to do
        return whole.to(device, non_blocking=True)
    if isinstance(whole, dict):
        return {name: moved(value, device) for name, value in whole.items()}  # type: ignore[return-value]
    if isinstance(whole, Rows | Batch):
        parts = {part.name: moved(getattr(whole, part.name), device) for part in fields(whole)}
        return replace(whole, **parts)  # type: ignore[return-value]
    return x
