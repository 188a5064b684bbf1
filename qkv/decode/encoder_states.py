"""Encoder states of images: the sources of requests to a captioning model."""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.batch import Batch, Inputs
from qkv.nn.evaluation import view_in_evaluation_mode
from qkv.nn.network import Network


@torch.inference_mode()
def encode_images(net: Network, pixel_values: Tensor) -> list[Tensor]:
    """Return the encoder states (S, W) of every image of (B, channels, height, width)."""
    encoder = view_in_evaluation_mode(net).encoder
    assert encoder is not None
    features = encoder.spec.embedding.patches
    assert features is not None
    like = next(encoder.parameters())
    inputs = Inputs.create(
        pixel_values=pixel_values.to(like.device, like.dtype), num_patches=features.num_tokens
    )
    return list(encoder(inputs, Batch(encoder=inputs))["last_hidden_state"])
