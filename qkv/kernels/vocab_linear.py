"""VocabLinear: a linear layer that projects to a vocabulary, padded for speed.

The matrix units of a GPU are slow if a dimension is not a multiple of 64, which is the case for
published vocabularies (50,257; 30,522). The weight is padded with rows of zeros, and their logits are
dropped."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MULTIPLE = 64
MIN_FEATURES = 1024


class VocabLinear(nn.Linear):
    """nn.Linear, padded to a multiple of 64 features on a GPU in half precision."""

    def forward(self, x: Tensor) -> Tensor:
        is_half = x.is_cuda and (x.dtype != torch.float32 or torch.is_autocast_enabled("cuda"))
        if is_half and self.out_features % MULTIPLE and self.out_features >= MIN_FEATURES:
            return padded_linear(x, self.weight, self.bias)
        return super().forward(x)


def padded_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute F.linear with the weight padded to a multiple of 64 rows."""
    features = len(weight)
    padding = -features % MULTIPLE
    bias = None if bias is None else F.pad(bias, (0, padding))
    return F.linear(x, F.pad(weight, (0, 0, 0, padding)), bias)[..., :features]
