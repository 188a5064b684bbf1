"""Static KV cache: preallocated buffers in which the column of a token is its position.

            columns 0 1 2 3 4 5 .  .
    row 0           a b c d e -         length 5
    row 1           a b - - - -         length 2: later columns are stale and masked

A step writes in place, without concatenation. Rows are truncated by setting their length, and removed
and duplicated by copying. Buffers grow by doubling. B rows, S columns, T new tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.decode.transfer import copy_to_device

INITIAL_CACHE_LENGTH = 64  # columns of the first buffers
STATIC_LENGTH_MULTIPLE = 64  # static shapes have a multiple of this many columns
COPY_ALIGNMENT = 8  # this many columns of any dtype are a multiple of 8 bytes


class CacheLayout:
    """Lengths of the cached rows and the rows and columns of the next step, shared by all layers.

    With `static_shapes`, shapes change rarely and values that differ between rows are read from the
    device only, as CUDA graphs require."""

    def __init__(
        self, device: torch.device, rows_per_prompt: int = 1, static_shapes: bool = False
    ) -> None:
        self.device = device
        self.rows_per_prompt = rows_per_prompt
        self.static_shapes = static_shapes
        self.base_lengths: list[int] = []  # row lengths when they were last set, on the host
        self.num_appended = 0  # columns appended to every row since then
        self.min_length = 0
        self.max_length = 0
        self.device_lengths = torch.zeros(0, dtype=torch.long, device=device)  # (capacity[0],)
        self.capacity = (0, 0)  # rows and columns of the buffers
        self.active_rows: slice | Tensor = slice(0, 0)  # rows of the next step, or their indices
        self.start = 0  # its new columns, if they are the same in all rows
        self.stop = 0
        self.write_index: Tensor | None = None  # (B * T,) otherwise: flat indices
        self.static_shape = (0, 0)  # rows and columns of a static step
        self.is_ragged = static_shapes  # some row has unwritten columns that other rows have

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.base_lengths)

    @property
    def lengths(self) -> list[int]:
        """Lengths of all rows, without waiting for the device."""
        return [length + self.num_appended for length in self.base_lengths]

    def reserve(self, num_rows: int, num_columns: int) -> None:
        """Increase the capacity if necessary; buffers are reallocated at their next use."""
        if num_rows > self.capacity[0] or num_columns > self.capacity[1]:
            self.capacity = (
                double_until(self.capacity[0] or self.rows_per_prompt, num_rows),
                double_until(self.capacity[1] or INITIAL_CACHE_LENGTH, num_columns),
            )
            new_lengths = self.device_lengths.new_zeros(self.capacity[0])
            new_lengths[: len(self.device_lengths)] = self.device_lengths
            self.device_lengths = new_lengths

    def set_lengths(self, lengths: list[int]) -> None:
        """Set the number of rows and their lengths."""
        self.base_lengths = lengths
        self.num_appended = 0
        self.min_length = min(lengths, default=0)
        self.max_length = max(lengths, default=0)
        self.device_lengths.zero_()
        self.device_lengths[: len(lengths)] = copy_to_device(lengths, self.device)

    def restore(self, lengths: list[int], capacity: tuple[int, int]) -> None:
        """Set rows and capacity as they were before; buffers are reallocated at their next use."""
        self.capacity = capacity
        self.device_lengths = self.device_lengths.new_zeros(capacity[0])
        self.set_lengths(lengths)

    def append_rows(self, lengths: list[int]) -> None:
        """Append rows of these lengths."""
        self.reserve(len(self) + len(lengths), 0)
        self.set_lengths([*self.lengths, *lengths])

    def begin_prefill(self, rows: slice | Tensor, length: int) -> None:
        """Prepare a forward pass that writes the first `length` columns of new rows, or of given ones."""
        self.active_rows = rows
        self.start = 0
        self.stop = length
        self.write_index = None
        self.reserve(rows.stop if isinstance(rows, slice) else 0, length)

    def begin_read(self, rows: Tensor) -> Tensor:
        """Prepare a forward pass that reads some rows; return the positions of their keys (B, S)."""
        self.active_rows = rows
        self.stop = self.max_length
        columns = torch.arange(self.stop, device=self.device)
        return torch.where(columns < self.device_lengths[rows, None], columns, -1)

    def set_static_shape(self, num_new_tokens: int) -> tuple[int, int]:
        """Set and return the rows and columns of a static step."""
        self.static_shape = (
            double_until(self.rows_per_prompt, len(self)),
            round_up_to_multiple(self.max_length + num_new_tokens, STATIC_LENGTH_MULTIPLE),
        )
        self.reserve(*self.static_shape)
        return self.static_shape

    def begin_step(self, num_new_tokens: int) -> tuple[Tensor, Tensor, bool]:
        """Prepare a forward pass that appends tokens to every row.

        Returns the positions of the new tokens (B|1, T), those of all keys (B|1, S) with -1 where a
        column is not valid, and whether all columns are valid."""
        num_rows = len(self)
        self.reserve(num_rows, self.max_length + num_new_tokens)
        self.active_rows = slice(0, num_rows)
        self.start = self.max_length
        self.stop = self.max_length + num_new_tokens
        if self.min_length == self.max_length and not self.static_shapes:
            self.write_index = None
            key_positions = torch.arange(self.stop, device=self.device)[None]  # (1, S)
            return key_positions[:, self.start :], key_positions, True
        self.is_ragged = True
        if self.static_shapes:
            self.active_rows = slice(0, self.static_shape[0])
            self.stop = self.static_shape[1]
        lengths = self.device_lengths[self.active_rows, None]
        positions = lengths + torch.arange(num_new_tokens, device=self.device)  # (B, T)
        row_offsets = torch.arange(len(positions), device=self.device)[:, None] * self.capacity[1]
        self.write_index = (positions + row_offsets).flatten()
        columns = torch.arange(self.stop, device=self.device)
        return positions, torch.where(columns < lengths + num_new_tokens, columns, -1), False

    def get_flat_indices(self, rows: list[int], num_columns: int) -> Tensor:
        """Return the indices of the first columns of rows in the flattened buffers."""
        columns = torch.arange(num_columns, device=self.device)
        return (copy_to_device(rows, self.device)[:, None] * self.capacity[1] + columns).flatten()

    def advance(self, num_new_tokens: int) -> None:
        """Add the tokens of a step to the length of every row."""
        self.num_appended += num_new_tokens
        self.min_length += num_new_tokens
        self.max_length += num_new_tokens
        self.device_lengths[: len(self)] += num_new_tokens


def double_until(size: int, minimum: int) -> int:
    """Double a size until it is at least the minimum."""
    while size < minimum:
        size *= 2
    return size


def round_up_to_multiple(value: int, multiple: int) -> int:
    """Return the smallest multiple that is not less than the value."""
    return -(-value // multiple) * multiple


class StaticKVCache:
    """KV cache in preallocated buffers; the layout determines where new tokens are written."""

    def __init__(self, layout: CacheLayout) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.positions: Tensor | None = None
        self.has_no_padding = False
        self.layout = layout
        self.is_zero_filled = False

    def __len__(self) -> int:
        """Return the number of columns before those of the next step."""
        return self.layout.start

    def update(self, tensors: dict[str, Tensor], positions: Tensor) -> None:
        """Write the keys and values of new tokens at the rows and columns that the layout selects.

        The layout holds the positions of all rows: `positions` is not used."""
        layout = self.layout
        for name, new in tensors.items():
            buffer = self.get_buffer(name, new)
            if layout.write_index is None:
                buffer[layout.active_rows, layout.start : layout.stop] = new
            else:
                buffer.flatten(0, 1).index_copy_(0, layout.write_index, new.flatten(0, 1))

    def get_buffer(self, name: str, like: Tensor) -> Tensor:
        """Return a buffer of the layout's capacity; if ragged, its unwritten columns are finite."""
        layout = self.layout
        old = self.tensors.get(name)
        if old is None or old.shape[:2] != layout.capacity:
            allocate = like.new_zeros if layout.is_ragged else like.new_empty
            new = self.tensors[name] = allocate((*layout.capacity, *like.shape[2:]))
            if old is not None:
                num_rows = min(old.shape[0], new.shape[0])
                num_columns = min(old.shape[1], new.shape[1])
                new[:num_rows, :num_columns] = old[:num_rows, :num_columns]
        if layout.is_ragged and not self.is_zero_filled:
            columns = torch.arange(layout.capacity[1], device=layout.device)
            is_unwritten = columns >= layout.device_lengths[:, None]
            for buffer in self.tensors.values():
                num_rows, num_columns, *rest = buffer.shape
                mask = is_unwritten[:num_rows, :num_columns].view(
                    num_rows, num_columns, *[1] * len(rest)
                )
                buffer.masked_fill_(mask, 0)
            self.is_zero_filled = True
        return self.tensors[name]

    def get_key_positions(self, new: Tensor, batch_size: int) -> Tensor:
        """Return the positions of all keys, which the runner has set for a step."""
        return new if self.positions is None else self.positions

    def get_next_positions(self) -> Tensor:
        """Return the position of the next token of each row: (B, 1)."""
        return self.layout.device_lengths[self.layout.active_rows, None]

    def read(self, name: str) -> Tensor:
        """Return the rows and columns of the current step."""
        buffer = self.get_buffer(name, self.tensors[name])
        return buffer[self.layout.active_rows, : self.layout.stop]

    def copy_flat(self, source_index: Tensor, target_index: Tensor) -> None:
        """Copy columns from one set of indices in the flattened buffers to another."""
        for name, buffer in [*self.tensors.items()]:
            flat = self.get_buffer(name, buffer).flatten(0, 1)
            flat.index_copy_(0, target_index, flat.index_select(0, source_index))

    def clear_rows(self, rows: list[int] | slice, num_columns: int | None = None) -> None:
        """Set the first columns of rows to 0; None: all columns."""
        for buffer in self.tensors.values():
            buffer[rows, :num_columns] = 0

    def reorder_rows(self, parents: Tensor, start: int, stop: int) -> None:
        """Replace row i by row parents[i] in at least these columns.

        The range is widened to whole multiples of 8 bytes, which are copied fastest."""
        start = start // COPY_ALIGNMENT * COPY_ALIGNMENT
        stop = round_up_to_multiple(stop, COPY_ALIGNMENT)
        for name, buffer in [*self.tensors.items()]:
            part = (
                self.get_buffer(name, buffer)[: len(parents), start:stop]
                .flatten(1)
                .view(torch.long)
            )
            part.copy_(part.index_select(0, parents))
