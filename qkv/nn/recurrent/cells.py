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

from qkv.nn.recurrent.rows import gather_last, reverse_rows

SATURATION = 1e4  # its sigmoid is exactly one, that of its negative zero, in every dtype
State = tuple[Tensor, ...]  # hidden, and the memory cell of an LSTM: (N, W) each


def rnn_step(input_gates: Tensor, hidden_gates: Tensor, state: State) -> State:
    return (torch.tanh(input_gates + hidden_gates),)


def gru_step(input_gates: Tensor, hidden_gates: Tensor, state: State) -> State:
    sizes = [2 * state[0].shape[-1], state[0].shape[-1]]
    gates, candidate = input_gates.split(sizes, -1)
    hidden, hidden_candidate = hidden_gates.split(sizes, -1)
    reset, update = (gates + hidden).sigmoid().chunk(2, -1)
    new = torch.addcmul(candidate, reset, hidden_candidate).tanh()
    # (1 - update) * new + update * state; under autocast, the state may have more bits than the gates.
    return (new + update * (state[0] - new),)


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

    def get_feed_weight(self, width: int) -> Tensor:
        """Return the columns for the last part of the input, `width` wide: (G, width).

        A loop takes them once: the gradient of each slice is as large as the whole matrix."""
        return self.weight_ih_l0[:, self.weight_ih_l0.shape[1] - width :]

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

        With `lengths`, a row ends before L, and its final states are those after its last token; a row
        without tokens keeps its state."""
        state = tuple(part.view(-1, *part.shape[-2:]) for part in state)
        outputs, final = self.run_direction(x, tuple(part[:1] for part in state), lengths, "")
        if self.bidirectional:
            backward, final_backward = self.run_direction(
                reverse_rows(x, lengths), tuple(part[1:] for part in state), lengths, "_reverse"
            )
            outputs = torch.cat([outputs, reverse_rows(backward, lengths)], dim=-1)
            final = tuple(torch.cat(pair) for pair in zip(final, final_backward, strict=True))
        return outputs, final

    def run_direction(
        self, x: Tensor, state: State, lengths: Tensor | None, suffix: str
    ) -> tuple[Tensor, State]:
        """Run from the first token to the last with the parameters of a direction; state (1, N, W)."""
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        weights: list[Tensor] = [self.get_parameter(f"{name}_l0{suffix}") for name in names]
        has_cell = len(state) > 1
        if lengths is not None and has_cell:
            x, weights[0] = self.keep_cell_at_padding(x, weights[0], lengths)
        initial = tuple(part.contiguous() for part in state)
        # cuDNN computes gradients in its training mode only; without dropout, it is the same.
        outputs, *final = run_kernel(
            self.cell_type.run, x, initial if has_cell else initial[0], weights,
            True, 1, 0.0, torch.is_grad_enabled(), False, True,
        )  # fmt: skip
        if lengths is not None:
            hidden = torch.cat([state[0].transpose(0, 1), outputs], dim=1)
            final[0] = gather_last(hidden, lengths)[None]
        return outputs, tuple(final)

    def keep_cell_at_padding(
        self, x: Tensor, weight: Tensor, lengths: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the inputs and their weights with a column that is one at padding, where it closes the
        input gate of an LSTM and opens its forget gate: the memory cell stays as it is.

        Unlike packed sequences, this needs no lengths on the host and no copies in each step."""
        is_padding = torch.arange(x.shape[1], device=x.device) >= lengths[:, None]
        column = weight.new_zeros(len(weight), 1)
        column[: self.width] = -SATURATION
        column[self.width : 2 * self.width] = SATURATION
        x = torch.cat([x, is_padding[..., None].to(x.dtype)], dim=-1)
        return x, torch.cat([weight, column], dim=1)


def run_kernel(kernel: Callable[..., tuple[Tensor, ...]], *args: object) -> tuple[Tensor, ...]:
    """Call torch's kernel; cuDNN warns about weights that are not in one piece, and copies them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous")
        return kernel(*args)
