"""Embeddings of images and clips: pixel values become a sequence of vectors. Does not depend on
attention.

B batch, C channels, T patches or frames, W width."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.spec import FrameSpec, PatchSpec


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


class FrameEmbedding(nn.Module):
    """One vector for each frame of a clip: convolutions, then a projection of all their outputs."""

    def __init__(self, spec: FrameSpec, width: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(before, after, 3, stride=2, padding=1)
            for before, after in pairwise((spec.channels, *spec.conv_widths))
        )
        self.projection = nn.Linear(spec.num_features, width)

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = pixel_values.flatten(0, 1)  # (B, T, C, height, width) -> (B*T, C, height, width)
        for convolution in self.convolutions:
            x = F.gelu(convolution(x))
        return self.projection(x.flatten(1)).unflatten(0, pixel_values.shape[:2])  # (B, T, W)


PATCH_EMBEDDINGS = {PatchSpec: PatchEmbedding, FrameSpec: FrameEmbedding}


def build_patch_embedding(spec: PatchSpec | FrameSpec, width: int) -> nn.Module:
    return PATCH_EMBEDDINGS[type(spec)](spec, width)  # type: ignore[arg-type]
