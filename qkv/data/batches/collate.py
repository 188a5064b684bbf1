"""Collation: pads and stacks examples into a Batch. An example is a dict of numpy arrays.

B rows, T tokens of the longest row, N labels. Uses no random numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qkv.batch import IGNORE_INDEX, Batch, Inputs

IntArray = NDArray[Any]
Example = Mapping[str, Any]


class Dataset(Protocol):
    """A map-style dataset: a length, and an example by index."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Example: ...


def pad_sequences(
    sequences: Sequence[IntArray], padding_value: int, *, pad_left: bool = False
) -> Tensor:
    """Pad arrays of different lengths to one (B, T), on the right or on the left."""
    length = max((len(sequence) for sequence in sequences), default=0)
    padded = np.full((len(sequences), length), padding_value, dtype=np.int64)
    for i, sequence in enumerate(sequences):
        start = length - len(sequence) if pad_left else 0
        padded[i, start : start + len(sequence)] = sequence
    return torch.from_numpy(padded)


def collate_inputs(
    examples: Sequence[Example],
    field: str = "tokens",
    *,
    pad_token_id: int = 0,
    pad_left: bool = False,
) -> Inputs:
    """Pad one field of the examples to Inputs.

    With the field `tokens`, the token types (`types`) and document ids (`document_ids`) of the
    examples are included."""

    def pad(sequences: Sequence[IntArray], padding_value: int) -> Tensor:
        return pad_sequences(sequences, padding_value, pad_left=pad_left)

    def pad_optional(name: str, padding_value: int) -> Tensor | None:
        if field != "tokens" or name not in examples[0]:
            return None
        return pad([example[name] for example in examples], padding_value)

    return Inputs.create(
        pad([example[field] for example in examples], pad_token_id),
        attention_mask=pad([np.ones(len(example[field]), np.int64) for example in examples], 0) > 0,
        token_type_ids=pad_optional("types", 0),
        document_ids=pad_optional("document_ids", -1),
    )


def get_attention_mask(inputs: Inputs) -> Tensor:
    """Return the attention mask (B, T), all true if the inputs have none."""
    assert inputs.input_ids is not None
    return (
        torch.ones_like(inputs.input_ids, dtype=torch.bool)
        if inputs.attention_mask is None
        else inputs.attention_mask
    )


def select_labeled_positions(labels: Tensor, min_labels: int = 0) -> tuple[Tensor, Tensor]:
    """Return the flat positions (N,) of labels (B, T) that are not ignored, and those labels (N,).

    N is at least `min_labels`: ignored labels are added, so that every batch has the same shape for a
    compiler."""
    flat = labels.flatten()
    positions = (flat != IGNORE_INDEX).nonzero()[:, 0]
    num_padding = max(min_labels - len(positions), 0)
    selected = flat[positions]
    return (
        torch.cat([positions, positions.new_zeros(num_padding)]),
        torch.cat([selected, selected.new_full((num_padding,), IGNORE_INDEX)]),
    )


def collate_token_labels(
    examples: Sequence[Example],
    *,
    pad_token_id: int = 0,
    pad_left: bool = False,
    min_labels: int = 0,
) -> Batch:
    """Collate `tokens` and `labels`, one label per token; ignored labels are removed."""
    inputs = collate_inputs(examples, pad_token_id=pad_token_id, pad_left=pad_left)
    positions, labels = select_labeled_positions(
        pad_sequences([example["labels"] for example in examples], IGNORE_INDEX, pad_left=pad_left),
        min_labels,
    )
    return Batch(encoder=inputs, logit_positions=positions, labels={"labels": labels})


def stack_values(examples: Sequence[Example], field: str) -> Tensor:
    """Stack a field of one number (B,), or of C numbers (B, C), as float32 or int64."""
    stacked = torch.from_numpy(np.stack([np.asarray(example[field]) for example in examples]))
    return stacked.float() if stacked.is_floating_point() else stacked.long()
