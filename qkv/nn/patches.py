"""Embeddings of images: pixel values become a sequence of vectors. Does not depend on attention.

B batch, C channels, T patches, W width."""

import torch
from torch import Tensor, nn

from qkv.spec import PatchSpec


class ClassToken(nn.Module):
    """A learned vector before the patches: (B, T, W) -> (B, 1 + T, W)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, patches: Tensor) -> Tensor:
        return torch.cat([self.weight.expand(len(patches), 1, -1), patches], dim=1)


class PatchEmbedding(nn.Module):
    """One vector for each square patch of an image, after the class token if there is one."""

    def __init__(self, spec: PatchSpec, width: int) -> None:
        super().__init__()
        size = spec.patch_size
        self.projection = nn.Conv2d(spec.channels, width, size, stride=size, bias=spec.bias)
        self.class_token = ClassToken(width) if spec.class_token else nn.Identity()

    def forward(self, pixel_values: Tensor) -> Tensor:
        patches = self.projection(pixel_values).flatten(2).transpose(1, 2)  # -> (B, T, W)
        return self.class_token(patches)  # type: ignore[no-any-return]
