"""TextRows: the tokens of each text at the start of a row of its own, for stacks that read in order.

    a b - c          a b            padding, left, right or inside, moves to the end,
    x x y y    ->    x x            and each document of a packed row gets a row
                     y y

B rows and T columns of the inputs, N rows and L columns here."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.batch import Inputs, count_in_documents, find_document_starts


@dataclass(frozen=True)
class TextRows:
    """Where the tokens of the inputs stand; without an index, the inputs have no padding and one text
    per row."""

    shape: tuple[int, int]  # B, T
    index: Tensor | None = None  # (N, L), the token among the B * T; any of the row after its end
    inverse: Tensor | None = None  # (B, T), the place of each token among the N * L
    is_token: Tensor | None = None  # (B, T)
    lengths: Tensor | None = None  # (N,); None: all are L
    documents: Tensor | None = None  # (N, 2), the row and the document id; None: one text per row

    @staticmethod
    def create(inputs: Inputs) -> TextRows:
        """Return the rows of inputs. Packed rows read the number of documents from the device."""
        mask = inputs.attention_mask
        shape = (inputs.batch_size, inputs.length)
        if inputs.document_ids is not None:
            return _split_documents(shape, inputs.document_ids, mask)
        if mask is None:
            return TextRows(shape)
        flat = torch.arange(mask.numel(), device=mask.device).view(shape)
        order = (~mask).int().argsort(dim=1, stable=True)  # tokens first
        index = flat.gather(1, order)
        inverse = torch.empty_like(flat).flatten().scatter(0, index.flatten(), flat.flatten())
        return TextRows(shape, index, inverse.view(shape), mask, mask.sum(1))

    def gather(self, x: Tensor) -> Tensor:
        """Return the rows of x: (B, T, ...) -> (N, L, ...)."""
        return x if self.index is None else x.flatten(0, 1)[self.index]

    def scatter(self, x: Tensor) -> Tensor:
        """Return the places of the inputs, zero at padding: (N, L, ...) -> (B, T, ...)."""
        if self.inverse is None or self.is_token is None:
            return x
        x = x.flatten(0, 1)[self.inverse]
        return x.masked_fill(~self.is_token.view(*self.shape, *[1] * (x.dim() - 2)), 0)

    def get_mask(self, length: int) -> Tensor | None:
        """Return (N, L) true for tokens; None if all are."""
        if self.lengths is None:
            return None
        return torch.arange(length, device=self.lengths.device) < self.lengths[:, None]

    def find_sources(self, sources: TextRows) -> Tensor | None:
        """Return the row of the source of each row (N,), by its document; None: the same row."""
        if self.documents is None or sources.documents is None:
            return None
        is_same = (self.documents[:, None] == sources.documents[None]).all(-1)  # (N, N of sources)
        return is_same.int().argmax(1)


def _split_documents(shape: tuple[int, int], documents: Tensor, mask: Tensor | None) -> TextRows:
    is_token = torch.ones_like(documents, dtype=torch.bool) if mask is None else mask
    starts = find_document_starts(documents)
    # A row number per document that has tokens, in order.
    numbers = starts.flatten().cumsum(0)[is_token.flatten()]
    _, numbers, lengths = numbers.unique_consecutive(return_inverse=True, return_counts=True)
    columns = count_in_documents(is_token, starts)[is_token] - 1
    flat = torch.arange(documents.numel(), device=documents.device).view(shape)
    tokens = flat[is_token]
    size = (len(lengths), int(lengths.max()))
    first = tokens[lengths.cumsum(0) - lengths]
    index = first[:, None].expand(size).clone()
    index[numbers, columns] = tokens
    inverse = torch.zeros_like(flat)
    inverse[is_token] = numbers * size[1] + columns
    keys = torch.stack([first // shape[1], documents.flatten()[first]], dim=1)
    return TextRows(shape, index, inverse, is_token, lengths, keys)


def reverse_rows(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Reverse the order of the tokens of each row: (N, L, ...); what follows a row is any of it."""
    if lengths is None:
        return x.flip(1)
    columns = (lengths[:, None] - 1 - torch.arange(x.shape[1], device=x.device)).clamp(min=0)
    return x.gather(1, columns.view(*columns.shape, *[1] * (x.dim() - 2)).expand_as(x))


def gather_last(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Return the state after the last token of each row: (N, L + 1, ...) with the initial state first
    -> (N, ...)."""
    if lengths is None:
        return x[:, -1]
    return x[torch.arange(len(x), device=x.device), lengths]
