"""Inputs and Batch, the inputs of a network. Positions and facts about the mask are computed here,
once per batch, so that the forward pass does not synchronize with the device."""

from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

IGNORE_INDEX = -100  # label that the loss ignores


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The inputs of one stack: input_ids (B, T), inputs_embeds (B, T, W) or pixel_values."""

    position_ids: Tensor  # (B, T), or (1, T) if all rows have the same positions
    input_ids: Tensor | None = None
    inputs_embeds: Tensor | None = None
    pixel_values: Tensor | None = None
    token_type_ids: Tensor | None = None
    attention_mask: Tensor | None = (
        None  # (B, T), true for tokens, false for padding; None: no padding
    )
    document_ids: Tensor | None = None  # (B, T), document of each token; None: one document per row
    contiguous: bool = True  # positions increase by one within each document
    offset_by_cache: bool = True  # positions start at 0 and are shifted by the length of a cache
    max_distance: int = 0  # upper bound of the distance between two positions
    cu_seqlens: Tensor | None = (
        None  # starts of packed documents in the flattened (B * T) tokens, and the end
    )
    # Of a recurrent encoder: (texts, layers, directions, hidden and cell, W).
    final_states: Tensor | None = None

    @staticmethod
    def create(
        input_ids: Tensor | None = None, *, attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None, document_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None, inputs_embeds: Tensor | None = None,
        pixel_values: Tensor | None = None, num_patches: int = 0,
    ) -> "Inputs":  # fmt: skip
        """Return inputs; positions default to those counted over the tokens of each document.

        An image has `num_patches` positions."""
        body = next(x for x in (input_ids, inputs_embeds, pixel_values) if x is not None)
        batch_size = len(body)
        length = num_patches or body.shape[1]
        mask = (
            None if attention_mask is None or bool(attention_mask.all()) else attention_mask.bool()
        )
        contiguous = offset_by_cache = position_ids is None
        cu_seqlens = None
        max_distance = length - 1 if position_ids is None else int(position_ids.max())
        if position_ids is None and mask is None and document_ids is None:
            position_ids = torch.arange(length, device=body.device)[None]
        elif position_ids is None:
            valid = (
                torch.ones(batch_size, length, dtype=torch.bool, device=body.device)
                if mask is None
                else mask
            )
            documents = (
                torch.zeros_like(valid, dtype=torch.long) if document_ids is None else document_ids
            )
            starts = find_document_starts(documents)
            position_ids = (count_in_documents(valid, starts) - 1).clamp(min=0)
            # With padding on one side only, a row has no gap between its tokens.
            gaps = (valid != valid.roll(1, dims=1)) & ~starts
            contiguous = mask is None or (document_ids is None and bool((gaps.sum(1) <= 1).all()))
            cu_seqlens = (
                None if document_ids is None or mask is not None else cumulative_lengths(starts)
            )
            padded_right = contiguous and document_ids is None and bool(valid[:, 0].all())
            if batch_size and padded_right:  # all rows can use the positions of the longest
                position_ids = position_ids[valid.sum(1, keepdim=True).argmax(0)]
        return Inputs(
            input_ids=input_ids, inputs_embeds=inputs_embeds, pixel_values=pixel_values,
            token_type_ids=token_type_ids, position_ids=position_ids, attention_mask=mask,
            document_ids=document_ids, contiguous=contiguous, offset_by_cache=offset_by_cache,
            max_distance=max_distance, cu_seqlens=cu_seqlens,
        )  # fmt: skip

    @property
    def batch_size(self) -> int:
        bodies = (self.input_ids, self.inputs_embeds, self.pixel_values)
        return len(next(x for x in bodies if x is not None))

    @property
    def length(self) -> int:
        return self.position_ids.shape[1]

    @property
    def masked_position_ids(self) -> Tensor:
        """Position ids, with -1 for padding."""
        if self.attention_mask is None:
            return self.position_ids
        return self.position_ids.masked_fill(~self.attention_mask, -1)


def find_document_starts(document_ids: Tensor) -> Tensor:
    """Return (B, T) true at the first token of every document."""
    starts = document_ids != document_ids.roll(1, dims=1)
    starts[:, 0] = True
    return starts


def count_in_documents(flags: Tensor, starts: Tensor | None = None) -> Tensor:
    """Return the number of true flags (B, T) up to each token, from the start of its document."""
    count = flags.cumsum(1)
    return count if starts is None else count - ((count - flags.long()) * starts).cummax(1).values


def cumulative_lengths(starts: Tensor) -> Tensor:
    """Return the starts of documents in the flattened tokens, and the end: (N + 1,).

    N + 1 is rounded up to a power of two by empty documents, so that few shapes occur."""
    indices = starts.flatten().nonzero()[:, 0]
    size = len(indices)
    padding = (64 << (size // 64).bit_length()) - size
    return torch.nn.functional.pad(indices, (0, padding), value=starts.numel()).int()


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The argument of `net(batch)`: the inputs of the encoder and of the decoder, and rarer inputs.

    A network with a single stack reads whichever of the two is given, so that a classification
    objective does not need to distinguish encoders and decoders."""

    encoder: Inputs | None = None
    decoder: Inputs | None = None
    image: Inputs | None = None
    encoder_hidden_states: Inputs | None = None  # precomputed encoder states, as inputs_embeds
    mems: Tensor | None = None  # (layers, B, M, W)
    permutation_mask: Tensor | None = None  # (B, T, T), combined with the pattern by &
    target_positions: Tensor | None = None  # (B, P), the tokens that XLNet's query stream predicts
    mc_token_ids: Tensor | None = None  # (B,), the token that a multiple-choice head reads
    logit_positions: Tensor | None = (
        None  # (N,), indices into (B * T) for which logits are computed
    )
    labels: dict[str, Tensor] = field(
        default_factory=dict
    )  # passed through the network to the loss
    extra_outputs: tuple[str, ...] = ()  # "hidden_states", "router_logits"

    @property
    def last_stack_inputs(self) -> Inputs | None:
        """The inputs of the stack whose hidden states the heads read."""
        return self.encoder if self.decoder is None else self.decoder

    def to(self, device: torch.device | str) -> "Batch":
        return move_to_device(self, device)


Movable = TypeVar("Movable")


def move_to_device(x: Movable, device: torch.device | str) -> Movable:
    """Return a copy with all its tensors on the device."""
    value: Any = x
    if isinstance(value, Tensor):
        if torch.device(device).type == "cuda" and not value.is_cuda:
            value = value.pin_memory()  # a copy from pageable memory may block on the device
        return value.to(device, non_blocking=True)
    if isinstance(value, dict):
        return {name: move_to_device(each, device) for name, each in value.items()}  # type: ignore[return-value]
    if isinstance(value, Inputs | Batch):
        moved = {f.name: move_to_device(getattr(value, f.name), device) for f in fields(value)}
        return replace(value, **moved)  # type: ignore[return-value]
    return x
