"""A linear layer onto a vocabulary. Knows no heads.

Matrices whose side is no multiple of 64 are slow on a GPU's matrix units, and the vocabularies that were
published (50,257; 30,522) are none: rows of zeros are added for the product, and their scores left out."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EVEN, LEAST = 64, 1024


class Wide(nn.Linear):
    """nn.Linear, which is its plain reference, by the faster form where there is one."""

    def forward(self, x: Tensor) -> Tensor:
        half = x.is_cuda and (x.dtype != torch.float32 or torch.is_autocast_enabled("cuda"))
        if half and self.out_features % EVEN and self.out_features >= LEAST:
            return padded(x, self.weight, self.bias)
        return super().forward(x)


def padded(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """F.linear with as many rows of zeros below the weight as make it even."""
    words = len(weight)
    missing = -words % EVEN
    bias = None if bias is None else F.pad(bias, (0, missing))
    return F.linear(x, F.pad(weight, (0, 0, 0, missing)), bias)[..., :words]
