"""Recurrent cells: RNN, GRU and LSTM, one step at a time or a whole sequence by torch's kernels.

The math and the parameter names (`weight_ih_l0`, ...) are those of torch.nn.RNN, GRU and LSTM; the
reset gate of the GRU is applied after the product with the last state.
N rows, L columns, E input width, W width, G gates * W."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

State = tuple[Tensor, ...]  # hidden, and the memory cell of an LSTM: (N, W) each


def rnn_step(input_gates: Tensor, hidden_gates: Tensor, state: State) -> State:
    return (torch.tanh(input_gates + hidden_gates),)


def gru_step(input_gates: Tensor, hidden_gates: Tensor, state: State) -> State:
    width = state[0].shape[-1]
    both = (input_gates[..., : 2 * width] + hidden_gates[..., : 2 * width]).sigmoid()
    reset, update = both.chunk(2, -1)
    new = torch.tanh(
        torch.addcmul(input_gates[..., 2 * width :], reset, hidden_gates[..., 2 * width :])
    )
    return (torch.lerp(new, state[0], update),)  # (1 - update) * new + update * state


def lstm_step(input_gates: Tensor, hidden_gates: Tensor, state: State) -> State:
    i, f, g, o = (input_gates + hidden_gates).chunk(4, -1)
    cell = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


class CellType(NamedTuple):
    num_gates: int
    num_states: int  # hidden, and the memory cell of an LSTM
    step: Callable[[Tensor, Tensor, State], State]
    run: Callable[..., tuple[Tensor, ...]]  # torch's kernel for sequences


CELL_TYPES = {
    "rnn": CellType(1, 1, rnn_step, torch.rnn_tanh),
    "gru": CellType(3, 1, gru_step, torch.gru),
    "lstm": CellType(4, 2, lstm_step, torch.lstm),
}


class RecurrentCell(nn.Module):
    """The parameters of one recurrent layer, of both directions if it is bidirectional."""

    def __init__(
        self, cell: str, input_width: int, width: int, bidirectional: bool = False
    ) -> None:
        super().__init__()
        self.cell_type = CELL_TYPES[cell]
        self.width = width
        self.bidirectional = bidirectional
        rows = self.cell_type.num_gates * width
        self.weight_ih_l0 = nn.Parameter(torch.empty(rows, input_width))
        self.weight_hh_l0 = nn.Parameter(torch.empty(rows, width))
        self.bias_ih_l0 = nn.Parameter(torch.empty(rows))
        self.bias_hh_l0 = nn.Parameter(torch.empty(rows))
        if bidirectional:
            for name, parameter in [*self.named_parameters()]:
                self.register_parameter(
                    f"{name}_reverse", nn.Parameter(torch.empty_like(parameter))
                )
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -1 / math.sqrt(width), 1 / math.sqrt(width))

    def extra_repr(self) -> str:
        rows, input_width = self.weight_ih_l0.shape
        return f"{input_width}, {self.width}, gates={rows // self.width}"

    def project_inputs(self, x: Tensor) -> Tensor:
        """Return the part of the gates that depends on the input: (..., E) -> (..., G).

        An input that is narrower than that of the cell is its first part."""
        return F.linear(x, self.weight_ih_l0[:, : x.shape[-1]], self.bias_ih_l0)

    def project_feed(self, feed: Tensor) -> Tensor:
        """Return the part of the gates that depends on the last part of the input."""
        return F.linear(feed, self.weight_ih_l0[:, -feed.shape[-1] :])

    def step(self, input_gates: Tensor, state: State) -> State:
        """Return the next state: input_gates (N, G), state (N, W)."""
        hidden_gates = F.linear(state[0], self.weight_hh_l0, self.bias_hh_l0)
        return self.cell_type.step(input_gates, hidden_gates, state)

    def create_state(self, x: Tensor) -> State:
        """Return zeros: (N, W), or (2, N, W) of both directions."""
        shape = (2, len(x), self.width) if self.bidirectional else (len(x), self.width)
        return tuple(x.new_zeros(shape) for _ in range(self.cell_type.num_states))

    def forward(
        self, x: Tensor, state: State, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Run over rows (N, L, E): outputs (N, L, W or 2W) and final states (directions, N, W).

        The final states are those after the last token of each row if there are `lengths`; a row
        without tokens keeps its state."""
        state = tuple(part.view(-1, *part.shape[-2:]).contiguous() for part in state)
        weights = [*self.parameters()]
        settings = (True, 1, 0.0, self.training, self.bidirectional)
        initial = state if len(state) > 1 else state[0]
        if lengths is None:
            outputs, *final = run_kernel(self.cell_type.run, x, initial, weights, *settings, True)
            return outputs, tuple(final)
        # Packed sequences need lengths on the host, and have no empty rows.
        packed = pack_padded_sequence(x, lengths.clamp(min=1).cpu(), True, enforce_sorted=False)
        assert packed.sorted_indices is not None
        assert packed.unsorted_indices is not None
        ordered = tuple(part.index_select(1, packed.sorted_indices) for part in state)
        data, *final = run_kernel(
            self.cell_type.run, packed.data, packed.batch_sizes,
            ordered if len(ordered) > 1 else ordered[0], weights, *settings,
        )  # fmt: skip
        outputs, _ = pad_packed_sequence(packed._replace(data=data), True, total_length=x.shape[1])
        is_empty = (lengths == 0)[:, None]
        return outputs, tuple(
            torch.where(is_empty, old, new.index_select(1, packed.unsorted_indices))
            for old, new in zip(state, final, strict=True)
        )


def run_kernel(kernel: Callable[..., tuple[Tensor, ...]], *args: object) -> tuple[Tensor, ...]:
    """Call torch's kernel; cuDNN warns about weights that are not in one piece, and copies them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous")
        return kernel(*args)
