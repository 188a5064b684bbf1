"""Embeddings of images and clips: pixel values become a sequence of vectors. Does not depend on
attention.

B batch, C channels, T patches or frames, W width."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.spec import ConvolutionSpec, FrameSpec, PatchSpec


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
        return self.class_token(patches)


class ConvolutionStage(nn.Module):
    """A 3 × 3 convolution with a stride, and a residual one: x = relu(down(x)), relu(x + residual(x))."""

    def __init__(self, in_channels: int, width: int, stride: int, norm_groups: int) -> None:
        super().__init__()
        self.down = nn.Conv2d(in_channels, width, 3, stride=stride, padding=1, bias=False)
        self.down_norm = nn.GroupNorm(norm_groups, width)
        self.residual = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.residual_norm = nn.GroupNorm(norm_groups, width)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.down_norm(self.down(x)))
        return F.relu(x + self.residual_norm(self.residual(x)))


class ConvolutionEmbedding(nn.Module):
    """One vector for each place of the grid of a convolutional network."""

    def __init__(self, spec: ConvolutionSpec, width: int) -> None:
        super().__init__()
        stages = []
        in_channels = spec.channels
        for index, channels in enumerate(spec.conv_widths):
            stride = 2 if index else 1
            stages.append(ConvolutionStage(in_channels, channels, stride, spec.norm_groups))
            in_channels = channels
        self.stages = nn.ModuleList(stages)
        self.projection = nn.Linear(in_channels, width)
        self.class_token = ClassToken(width) if spec.class_token else nn.Identity()

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = pixel_values
        for stage in self.stages:
            x = stage(x)
        return self.class_token(self.projection(x.flatten(2).transpose(1, 2)))  # (B, T, W)


class FrameEmbedding(nn.Module):
    """One vector for each frame of a clip: a projection of all features of a convolutional network."""

    def __init__(self, spec: FrameSpec, width: int) -> None:
        super().__init__()
        self.stages = nn.ModuleList(
            ConvolutionStage(before, after, 2, spec.norm_groups)
            for before, after in pairwise((spec.channels, *spec.conv_widths))
        )
        self.projection = nn.Linear(spec.num_features, width)

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = pixel_values.flatten(0, 1)  # (B, T, C, height, width) -> (B*T, C, height, width)
        for stage in self.stages:
            x = stage(x)
        return self.projection(x.flatten(1)).unflatten(0, pixel_values.shape[:2])  # (B, T, W)


PATCH_EMBEDDINGS = {
    PatchSpec: PatchEmbedding,
    ConvolutionSpec: ConvolutionEmbedding,
    FrameSpec: FrameEmbedding,
}


def build_patch_embedding(spec: PatchSpec | ConvolutionSpec | FrameSpec, width: int) -> nn.Module:
    return PATCH_EMBEDDINGS[type(spec)](spec, width)
