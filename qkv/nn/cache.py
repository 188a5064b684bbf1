"""Caches of one layer: keys and values, or hidden states, of earlier tokens.

positions  [[ 0, 1, 2],      a row of three tokens
            [-1, 0, 1]]      a row of two tokens; -1 is padding
tensors    keys and values (B, S, H, D), or the hidden states (B, S, W) of earlier segments"""

from typing import Protocol

import torch
from torch import Tensor


class Cache(Protocol):
    """The interface that attention uses."""

    positions: Tensor | None  # (B, S), -1 for padding; None: empty
    has_no_padding: bool  # true if no cached position is padding

    def __len__(self) -> int:
        """Return the number of cached positions."""
        ...

    def update(self, tensors: dict[str, Tensor], positions: Tensor) -> None:
        """Append tensors (B, T, ...) with positions (B, T)."""
        ...

    def read(self, name: str) -> Tensor:
        """Return a cached tensor by its name: (B, S, ...)."""
        ...

    def get_key_positions(self, new: Tensor, batch_size: int) -> Tensor:
        """Return the positions of all keys after the new ones (B|1, T) are appended."""
        ...

    def get_next_positions(self) -> Tensor:
        """Return the position of the next token of each row: (B, 1)."""
        ...


class KVCache:
    """A cache that grows by concatenation."""

    def __init__(
        self, tensors: dict[str, Tensor] | None = None, positions: Tensor | None = None
    ) -> None:
        self.tensors = tensors or {}
        self.positions = positions
        self.has_no_padding = False

    def __len__(self) -> int:
        return 0 if self.positions is None else self.positions.shape[1]

    def update(self, tensors: dict[str, Tensor], positions: Tensor) -> None:
        if self.positions is not None:
            tensors = {
                name: torch.cat([self.tensors[name], x], dim=1) for name, x in tensors.items()
            }
            positions = torch.cat([self.positions, positions], dim=1)
        self.tensors = tensors
        self.positions = positions

    def read(self, name: str) -> Tensor:
        return self.tensors[name]

    def get_key_positions(self, new: Tensor, batch_size: int) -> Tensor:
        if self.positions is None:
            return new
        return torch.cat([self.positions, new.expand(batch_size, -1)], dim=1)

    def get_next_positions(self) -> Tensor:
        assert self.positions is not None
        return self.positions.amax(dim=1, keepdim=True) + 1


class SegmentMemory(KVCache):
    """The hidden states of earlier segments (Transformer-XL, XLNet). Keys and values are recomputed
    from them, so that gradients reach the key and value projections.

    Rows are aligned on the right, where the next segment follows; `mask` (B, M) is false for the
    padding of rows with fewer states."""

    def __init__(self, states: Tensor | None = None, mask: Tensor | None = None) -> None:
        super().__init__()
        if states is not None:  # (B, M, W)
            positions = torch.arange(states.shape[1], device=states.device).expand(len(states), -1)
            self.tensors = {"states": states}
            self.positions = positions if mask is None else positions.masked_fill(~mask, -1)


class RecurrentState(KVCache):
    """The state of a recurrent layer after the last token: hidden, the memory cell of an LSTM, and what
    else the next step reads, each (B, 1, W). Position 0 is the initial state."""

    def update(self, tensors: dict[str, Tensor], positions: Tensor) -> None:
        """Replace the state; positions (B, 1) are the numbers of tokens read."""
        self.tensors = tensors
        self.positions = positions
