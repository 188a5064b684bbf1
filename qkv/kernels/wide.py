"""A linear layer onto a vocabulary. Knows no heads.

Matrices whose side is no multiple of 64 are slow on a GPU's matrix units, and the vocabularies that were
published (50,257; 30,522) are none: rows of zeros are added for the product, and their scores left out."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EVEN, LEAST = 64, 1024


class Wide(nn.Linear):
    """nn.Linear; its plain reference is its base class."""

    def forward(self, x: Tensor) -> Tensor:
        missing = -self.out_features % EVEN
        half = x.is_cuda and (x.dtype != torch.float32 or torch.is_autocast_enabled("cuda"))
        if not half or not missing or self.out_features < LEAST:
            return super().forward(x)
        bias = None if self.bias is None else F.pad(self.bias, (0, missing))
        return F.linear(x, F.pad(self.weight, (0, 0, 0, missing)), bias)[..., : self.out_features]
