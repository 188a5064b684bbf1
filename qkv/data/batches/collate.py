"""Examples laid side by side as a Batch. An example is a dict of numpy arrays; nothing here is random.

B rows, T tokens of the longest, N targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qkv.batch import Batch, Rows

Ids = NDArray[Any]
Example = Mapping[str, Any]


class Examples(Protocol):
    """Whatever has a number of examples and gives each by its index."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Example: ...


NONE = -100  # a label that asks for nothing, as torch's losses have it


def beside(rows: Sequence[Ids], fill: int, *, left: bool = False, multiple: int = 1) -> Tensor:
    """Arrays of different lengths as one (B, T), filled up on the right or on the left."""
    longest = max((len(row) for row in rows), default=0)
    longest = -(-longest // multiple) * multiple
    whole = np.full((len(rows), longest), fill, dtype=np.int64)
    for i, row in enumerate(rows):
        whole[i, longest - len(row) if left else 0 : longest if left else len(row)] = row
    return torch.from_numpy(whole)


def as_rows(
    examples: Sequence[Example], field: str = "tokens", *, pad: int = 0, left: bool = False, multiple: int = 1
) -> Rows:
    """The rows of one field; `types` and `document` of the examples go along with `tokens`."""
    ids = beside([example[field] for example in examples], pad, left=left, multiple=multiple)
    seat = beside([np.ones(len(e[field]), np.int64) for e in examples], 0, left=left, multiple=multiple) > 0

    def along(name: str, fill: int) -> Tensor | None:
        if field != "tokens" or name not in examples[0]:
            return None
        return beside([example[name] for example in examples], fill, left=left, multiple=multiple)

    return Rows.of(ids, mask=seat, types=along("types", 0), document=along("document", -1))


def seats(rows: Rows) -> Tensor:
    """(B, T) true where a token stands, also where that is everywhere."""
    assert rows.ids is not None
    return torch.ones_like(rows.ids, dtype=torch.bool) if rows.seat is None else rows.seat


def asked(labels: Tensor, room: int = 0) -> tuple[Tensor, Tensor]:
    """Which of (B, T) labels ask for something: their indices (N,), and they. N is at least `room`.

    The same room in every batch is one shape for a compiler; what fills it up asks for nothing."""
    flat = labels.flatten()
    read = (flat != NONE).nonzero()[:, 0]
    spare = max(room - len(read), 0)
    found = flat[read]
    return (
        torch.cat([read, read.new_zeros(spare)]),
        torch.cat([found, found.new_full((spare,), NONE)]),
    )


def tokens_batch(examples: Sequence[Example], *, pad: int = 0, left: bool = False, room: int = 0) -> Batch:
    """`tokens` as rows, and of `labels`, one a token, those that ask for something."""
    rows = as_rows(examples, pad=pad, left=left)
    read, labels = asked(beside([example["labels"] for example in examples], NONE, left=left), room)
    return Batch(rows=rows, read=read, labels={"labels": labels})


def values(examples: Sequence[Example], name: str) -> Tensor:
    """One number a row, (B,), or a row of numbers of the same length, (B, C)."""
    found = torch.from_numpy(np.stack([np.asarray(example[name]) for example in examples]))
    return found.float() if found.is_floating_point() else found.long()
