"""What the user gives to a model, and what its forward pass reads, with the labels of the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.decode.request_checks import Source
from qkv.explorer.inputs.labels import TokenLabel, TokenSequence
from qkv.tasks.images import ImageInput
from qkv.tasks.write.base import GenerationTask


@dataclass(frozen=True, kw_only=True)
class UserInput:
    """What the user gives to a model."""

    text: str = ""
    text_pair: str | None = None
    target: str | None = None
    image: ImageInput | None = None


@dataclass(frozen=True, kw_only=True)
class TraceInputs:
    """The inputs of one forward pass; `sequences` are the tokens by stack."""

    arguments: dict[str, Tensor]  # of the model
    sequences: dict[str, TokenSequence]
    notice: str | None = None  # what was changed, for the user
    target: str | None = None  # text of the decoder
    predicts: str | None = None  # sequence in which a row predicts the next token
    memory_segments: Sequence[Sequence[int]] = ()  # tokens of earlier segments


class EncoderSource(NamedTuple):
    """The source of an encoder-decoder, and the task that generates its target."""

    task: GenerationTask[Any, Any]
    row: Any  # of the task
    states: Source  # token ids, or the encoder states of an image
    arguments: dict[str, Tensor]
    tokens: TokenSequence
    notice: str | None = None

    @property
    def token_ids(self) -> list[int]:
        """The token ids of a text; none of an image."""
        return [] if isinstance(self.states, Tensor) else [*self.states]


def join_notices(*notices: str | None) -> str | None:
    """Return notices as one; None if there are none."""
    return " ".join(filter(None, notices)) or None


def to_row(values: Sequence[int]) -> Tensor:
    """Return values as a batch of one row (1, T)."""
    return torch.tensor([[*values]], dtype=torch.long)


def to_list(row: Tensor) -> list[int]:
    """Return the values of a batch of one row (1, T)."""
    values: list[int] = row[0].tolist()
    return values


def build_memory_labels(count: int) -> TokenSequence:
    """Return labels of memory columns without tokens, such as the zeros of a first segment."""
    tokens = tuple(TokenLabel(text=f"−{count - i}", special=True) for i in range(count))
    return TokenSequence(label="memory", tokens=tokens)
