"""Random inputs of a case, its rows without padding, and the same for the reference's forward."""

from __future__ import annotations

import inspect
import zlib
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tests.support.oracle.cases import Case
from tests.support.oracle.models import build_reference

Inputs = dict[str, Tensor]

LENGTHS = (9, 6, 4, 8, 5, 7)  # of rows
DECODER_LENGTHS = (5, 7, 3)
SOURCE_LENGTHS = (4, 2, 5)  # of encoder_hidden_states
# B rows, C choices, T tokens, U decoder tokens, S source states, M mems, P targets
B, C, T, U, S, M, P = 3, 2, max(LENGTHS), max(DECODER_LENGTHS), max(SOURCE_LENGTHS), 4, 2


def build_inputs(case: Case, padding: str, dtype: torch.dtype = torch.float32) -> Inputs:
    """Return the arguments of a call of `qkv.Model`."""
    generator = torch.Generator().manual_seed(1 + zlib.crc32(case.name.encode()))
    normal = partial(torch.randn, generator=generator, dtype=torch.float64)
    config = build_reference(case).config
    config = getattr(config, "text_config", config)
    shape = (B, C) if "choices" in case.traits else (B,)
    lengths = torch.tensor(LENGTHS[: B * C] if "choices" in case.traits else LENGTHS[:B])
    if padding in ("none", "embeds"):
        lengths = torch.full_like(lengths, T)
    is_padded = padding in ("left", "right")
    inputs: Inputs = {}
    if "text" in case.traits or "image" not in case.traits:
        mask = build_attention_mask(lengths, T, padding)
        input_ids = sample_token_ids(config, config.vocab_size, mask, generator)
        ends = (torch.arange(T) * mask).argmax(1)  # of the last token of a row
        rows = torch.arange(len(mask))
        if "text" in case.traits and config.eos_token_id == 2:
            input_ids[rows, ends] = config.vocab_size - 1
        elif "text" in case.traits or "eos" in case.traits:
            input_ids[rows, ends] = config.eos_token_id
            if "text" in case.traits:
                input_ids[0, ends[0] - 3] = config.eos_token_id  # the first one counts
        if "pad-inside" in case.traits:
            input_ids[rows, ends - 2] = config.pad_token_id
            input_ids[0, (ends - lengths + 1)[0]] = config.pad_token_id  # the first token
        inputs["input_ids"] = input_ids
        num_types = getattr(config, "type_vocab_size", 0) or ("types" in case.traits and 2)
        if num_types:
            inputs["token_type_ids"] = torch.randint(num_types, mask.shape, generator=generator)
        if case.class_name.endswith("DoubleHeadsModel") and "!choice" not in case.traits:
            inputs["mc_token_ids"] = ends - torch.arange(len(mask)) % 2
        if is_padded:
            inputs["attention_mask"] = mask
        inputs = {name: value.unflatten(0, shape) for name, value in inputs.items()}
    if "image" in case.traits:
        vision = getattr(build_reference(case).config, "vision_config", config)
        size = vision.image_size
        inputs["pixel_values"] = normal(B, vision.num_channels, size, size)
    if case.is_encoder_decoder and "shift" not in case.traits:
        lengths = torch.tensor(DECODER_LENGTHS) if is_padded else torch.full((B,), U)
        mask = build_attention_mask(lengths, U, padding)
        vocab_size = getattr(config, "decoder_vocab_size", config.vocab_size)
        inputs["decoder_input_ids"] = sample_token_ids(config, vocab_size, mask, generator)
        if is_padded:
            inputs["decoder_attention_mask"] = mask
    if "source" in case.traits:
        inputs["encoder_hidden_states"] = normal(B, S, config.hidden_size)
        if is_padded:
            lengths = torch.tensor(SOURCE_LENGTHS)
            inputs["encoder_attention_mask"] = build_attention_mask(lengths, S, padding)
    if "memory" in case.traits:
        inputs["mems"] = normal(config.n_layer, B, M, config.d_model)
    if "permute" in case.traits:  # a random factorization order; the targets are late in it
        order = torch.stack([torch.randperm(T, generator=generator) for _ in range(B)])
        if is_padded:  # padding comes last
            order = torch.where(inputs["attention_mask"], order, order + T)
        rank = order.argsort(1).argsort(1)
        inputs["perm_mask"] = (rank[:, :, None] <= rank[:, None, :]).to(torch.float64)
        targets = rank.argsort(1).gather(1, torch.stack([lengths // 2, lengths - 1], 1))  # (B, P)
        inputs["target_mapping"] = (torch.arange(T) == targets[:, :, None]).to(torch.float64)
    if padding == "embeds":
        width = build_reference(case).get_input_embeddings().embedding_dim
        inputs["inputs_embeds"] = normal((*inputs.pop("input_ids").shape, width))
    return {
        name: value.to(dtype) if value.is_floating_point() else value
        for name, value in inputs.items()
    }


def build_attention_mask(lengths: Tensor, width: int, padding: str) -> Tensor:
    """Return the attention mask (B, width) of rows of these lengths."""
    columns = torch.arange(width)
    if padding == "left":
        return columns >= width - lengths[:, None]
    return columns < lengths[:, None]


def sample_token_ids(
    config: Any, vocab_size: int, mask: Tensor, generator: torch.Generator
) -> Tensor:
    """Return random ids: padding outside of the mask, neither padding nor EOS inside."""
    pad_token_id = 0 if config.pad_token_id is None else config.pad_token_id
    special = (pad_token_id, config.eos_token_id)
    allowed = torch.tensor([n for n in range(vocab_size) if n not in special])
    ids = allowed[torch.randint(len(allowed), mask.shape, generator=generator)]
    return torch.where(mask, ids, pad_token_id)


def to_reference_inputs(case: Case, inputs: Inputs) -> dict[str, Any]:
    """Return the arguments of the reference's forward."""
    arguments: dict[str, Any] = {
        name: value.long() if value.dtype == torch.bool else value.clone()
        for name, value in inputs.items()
    }
    if "mems" in inputs:
        # (layers, B, M, W) -> a list of (M, B, W)
        arguments["mems"] = list(inputs["mems"].transpose(1, 2))
    accepted = inspect.signature(build_reference(case).forward).parameters
    if "attention_mask" in inputs:
        mask = arguments["attention_mask"] = arguments["attention_mask"].flatten(0, -2)
        if "position_ids" in accepted and case.family != "roberta":  # which skips padding itself
            arguments["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
    return arguments


def select_row(inputs: Inputs, n: int) -> Inputs:
    """Return row `n` of the inputs without padding, as a batch of one."""
    batch_dims = inputs["input_ids"].ndim - 1
    no_padding = torch.ones_like(inputs["input_ids"], dtype=torch.bool)
    mask = inputs.get("attention_mask", no_padding).flatten(0, -2)[n]
    row_masks = {"input_ids": mask, "token_type_ids": mask, "perm_mask": mask}
    masks = {
        "decoder_input_ids": "decoder_attention_mask",
        "encoder_hidden_states": "encoder_attention_mask",
    }
    row_masks |= {name: inputs[key][n] for name, key in masks.items() if key in inputs}
    selected = {}
    for name, value in inputs.items():
        if name == "mc_token_ids":
            selected[name] = (mask.cumsum(0) - 1)[value.flatten()[n]].view(1, 1)
        elif name == "mems":
            selected[name] = value[:, n : n + 1]
        elif not name.endswith("attention_mask"):
            row = value.flatten(0, batch_dims - 1)[n][row_masks.get(name, slice(None))]
            row = row[:, mask] if name in ("perm_mask", "target_mapping") else row
            selected[name] = row[(None,) * batch_dims]
    return selected
