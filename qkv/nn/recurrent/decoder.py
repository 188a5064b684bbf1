"""Parts of a recurrent decoder beside its layers: what it starts from, and its output layer.

N rows, E embedding width, W width, C context width."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.nn.embedding import get_activation
from qkv.nn.recurrent.cells import CELL_TYPES, State
from qkv.spec import RecurrentOutputSpec, RecurrentSourceSpec, RecurrentStackSpec


class Summary(nn.Module):
    """tanh(V x): the fixed vector of a text (Cho et al. 2014)."""

    def __init__(self, input_width: int, width: int) -> None:
        super().__init__()
        self.projection = nn.Linear(input_width, width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.projection(x))


class ProjectedState(nn.Module):
    """The states that the layers start from: tanh(W x) of one vector x."""

    def __init__(self, input_width: int, depth: int, num_states: int, width: int) -> None:
        super().__init__()
        self.shape = (depth, num_states, width)
        self.projection = nn.Linear(input_width, depth * num_states * width)

    def forward(self, x: Tensor, final_states: Tensor | None) -> list[State]:
        states = torch.tanh(self.projection(x)).unflatten(-1, self.shape)
        return [layer.unbind(1) for layer in states.unbind(1)]


class CopiedState(nn.Module):
    """The final states of the encoder's layers (N, depth, 1, states, W), which run in one direction."""

    def forward(self, x: Tensor, final_states: Tensor | None) -> list[State]:
        assert final_states is not None
        return [layer[:, 0].unbind(1) for layer in final_states.unbind(1)]


def build_summary(spec: RecurrentSourceSpec) -> nn.Module:
    """Return the fixed vector, or an Identity."""
    return Summary(spec.state_width, spec.summary_width) if spec.summary_width else nn.Identity()


def build_initial_state(
    stack: RecurrentStackSpec, source: RecurrentSourceSpec
) -> ProjectedState | CopiedState:
    """Return the module that computes the states that a decoder starts from."""
    if source.initial_state == "copy":
        return CopiedState()
    width = source.width if source.initial_state == "mean" else source.state_width
    num_states = CELL_TYPES["lstm" if stack.cell == "lstmn" else stack.cell].num_states
    return ProjectedState(source.summary_width or width, stack.depth, num_states, stack.width)


class OutputLayer(nn.Module):
    """activation(W [state; embedding; context]), and dropout."""

    def __init__(self, spec: RecurrentOutputSpec, widths: dict[str, int], dropout: float) -> None:
        super().__init__()
        self.parts = spec.parts
        is_maxout = spec.activation == "maxout"
        self.activation = max_of_pairs if is_maxout else get_activation(spec.activation)
        rows = 2 * spec.width if is_maxout else spec.width
        self.dense = nn.Linear(sum(widths[part] for part in spec.parts), rows, bias=spec.bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, state: Tensor, embedding: Tensor, context: Tensor | None) -> Tensor:
        parts = {"state": state, "embedding": embedding, "context": context}
        x = torch.cat([part for name in self.parts if (part := parts[name]) is not None], dim=-1)
        return self.dropout(self.activation(self.dense(x)))


class PlainOutput(nn.Module):
    """The state itself, and dropout."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(self, state: Tensor, embedding: Tensor, context: Tensor | None) -> Tensor:
        return self.dropout(state)


def build_output(spec: RecurrentStackSpec) -> OutputLayer | PlainOutput:
    """Return the output layer of a stack."""
    if spec.output is None:
        return PlainOutput(spec.dropout)
    context_width = spec.source.context_width if spec.source else 0
    widths = {"state": spec.width, "embedding": spec.input_width, "context": context_width}
    return OutputLayer(spec.output, widths, spec.dropout)


def max_of_pairs(x: Tensor) -> Tensor:
    """Maxout of two: (..., 2W) -> (..., W) (Goodfellow et al. 2013)."""
    return x.unflatten(-1, (-1, 2)).amax(-1)


def mean_over_tokens(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean over the tokens: (N, S, C), mask (N, S) -> (N, C)."""
    if mask is None:
        return x.mean(1)
    return (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
