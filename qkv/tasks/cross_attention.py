"""Cross-attention weights of generated results, for alignments. Does not depend on text.

The weights of a token are those of the step that predicts it. They are computed by an additional
forward pass on the finished tokens, so that decoding is unchanged. The penultimate decoder layer
usually aligns best (Garg et al. 2019, arXiv:1909.02074)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from qkv.attention_weights import look
from qkv.batch import Batch, Inputs
from qkv.data.batches.collate import pad_sequences
from qkv.decode import GenerationConfig, Result
from qkv.decode.request_checks import Source, prepare_prompt
from qkv.nn.network import Network
from qkv.tasks.checks import check_choice
from qkv.validate import check_number

IdSequence: TypeAlias = Sequence[int]


class AttentionResult(Result):
    """A result with its cross-attention weights (tokens, source tokens), including padding."""

    cross_attention_weights: list[list[float]]


def check_alignment_layer(alignment_layer: str | int | None, depth: int) -> None:
    """Check that the layer is "penultimate", "mean" or an index of a decoder layer."""
    name = "alignment_layer"
    if isinstance(alignment_layer, str):
        check_choice(name, alignment_layer, ("penultimate", "mean"))
    elif alignment_layer is not None:
        check_number(name, alignment_layer, integer=True, at_least=-depth, less_than=depth)


def resolve_alignment_layer(alignment_layer: str | int, depth: int) -> int | Literal["mean"]:
    """Return the index of the decoder layer, or "mean" for all layers."""
    if alignment_layer == "mean":
        return "mean"
    if alignment_layer == "penultimate":
        return max(depth - 2, 0)
    assert isinstance(alignment_layer, int)
    return alignment_layer % depth


def compute_cross_attention(
    net: Network,
    sources: Sequence[Source],
    results: Sequence[Result],
    generation_config: GenerationConfig,
    layer: int | Literal["mean"],
) -> list[AttentionResult]:
    """Return the results with their cross-attention weights, averaged over heads.

    A source is token ids, or the encoder states (S, W) of an image."""
    prompt = prepare_prompt(net, [], sources[0], generation_config)
    decoder_ids = [[*prompt, *result.token_ids[:-1]] for result in results]
    states = [source for source in sources if isinstance(source, Tensor)]
    batch = Batch(
        encoder=None
        if states
        else build_padded_inputs([source for source in sources if not isinstance(source, Tensor)]),
        encoder_hidden_states=Inputs.create(inputs_embeds=torch.stack(states)) if states else None,
        decoder=build_padded_inputs(decoder_ids),
        logit_positions=torch.zeros(0, dtype=torch.long),  # no logits, which need much memory
    )
    index = r"\d+" if layer == "mean" else str(layer)
    # A recurrent decoder has one attention, before or after its layers.
    with look(net, rf"decoder\.(layers\.{index}\.)?cross_attention") as attention_weights:
        net(batch.to(next(net.parameters()).device))
    layer_means = [weights.float().mean(1) for weights in attention_weights.values()]
    mean_weights = torch.stack(layer_means).mean(0)  # (B, T, S)
    first = len(prompt) - 1
    attention_results = [AttentionResult(*result) for result in results]
    for result, weights in zip(attention_results, mean_weights.tolist(), strict=True):
        result.cross_attention_weights = weights[first : first + len(result.token_ids)]
    return attention_results


def build_padded_inputs(sequences: Sequence[IdSequence]) -> Inputs:
    """Return the sequences as one batch, padded on the right."""
    masks = [np.ones(len(sequence), np.int64) for sequence in sequences]
    return Inputs.create(
        pad_sequences([np.array(sequence) for sequence in sequences], 0),
        attention_mask=pad_sequences(masks, 0) > 0,
    )
