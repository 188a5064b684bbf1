"""Tiny models with LoRA adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import qkv
from qkv.model.adapters.names import find_default_target_modules
from qkv.model.transforms.heads import replace_head
from qkv.nn.lora import add_lora
from tests.support import tiny

NUM_LABELS = 3


def randomize_trainable_parameters(net: nn.Module) -> None:
    """Fill trainable parameters with normal noise: new adapters are zeros, which change nothing."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in net.parameters():
            if p.requires_grad:
                p.copy_(0.3 * torch.randn(p.shape, generator=generator))


def save_tiny(folder: Path, family: str, **changes: Any) -> Path:
    tiny.build(family, **changes).save(folder)
    return folder


def build_adapted(base: Path, head: str, target_modules: list[str] | None = None) -> qkv.Model:
    """Return a saved model with another head and random adapters."""
    num_labels = NUM_LABELS if head.endswith("-classification") else 0
    model, new_parameters = replace_head(qkv.load(base), head, num_labels)
    add_lora(
        model.net.double(),
        r=3,
        lora_alpha=7.0,
        target_modules=target_modules or find_default_target_modules(model),
        modules_to_save=new_parameters,
    )
    model.adapter_parameters_to_save = new_parameters
    randomize_trainable_parameters(model.net)
    return model


def run(model: Any, ids: Tensor) -> Tensor:
    """Return the logits, or those of the start of an answer, of a model of ours or of transformers."""
    with torch.no_grad():
        out = model(input_ids=ids)
    return out["start_logits" if "start_logits" in out else "logits"]
