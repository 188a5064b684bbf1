"""Int8 quantization of weights on disk: one scale per row, a quarter of the size, float32 after loading.

    NAME         int8      (rows, columns)   a matrix, round(x / scale)
    NAME.scale   bfloat16  (rows,)           max|row| / 127
    NAME         float32   any other shape   norms and biases, unchanged

The error of a value is at most half a scale. A scale has 8 significant bits and an int8 value has 7,
so that their product is exact: saving and loading quantized weights again does not change them."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from qkv.files import DAMAGED_FILE_HINT
from qkv.weights.tensors import find_nonfinite

INT8_MAX = 127


def get_scale_name(name: str) -> str:
    """Return the name of the scale of a matrix."""
    return f"{name}.scale"


def quantize_int8(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Quantize matrices to int8 with scales; convert other tensors to float32."""
    floats = {name: x.detach().float() for name, x in tensors.items()}
    if nonfinite := find_nonfinite(floats):
        names = ", ".join(nonfinite)
        raise ValueError(f"{names}: values that are not finite; int8 supports finite values only")
    quantized: dict[str, Tensor] = {}
    for name, x in floats.items():
        if x.dim() != 2:
            quantized[name] = x
            continue
        scale = (x.abs().amax(1) / INT8_MAX).bfloat16()
        scale[scale == 0] = 1  # a row of zeros
        quantized[name] = (x / scale[:, None]).round().clamp(-INT8_MAX, INT8_MAX).to(torch.int8)
        quantized[get_scale_name(name)] = scale
    return quantized


def dequantize_int8(tensors: Mapping[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """Return all tensors of a quantized folder as float32; one error lists every problem."""
    matrices = {name: x for name, x in tensors.items() if x.dtype == torch.int8}
    scale_names = {get_scale_name(name) for name in matrices}
    dequantized = {
        name: x.float() if x.is_floating_point() else x
        for name, x in tensors.items()
        if name not in matrices and name not in scale_names
    }
    problems = []
    for name, x in matrices.items():
        scale_name = get_scale_name(name)
        scale = tensors.get(scale_name)
        if scale is None:
            problems.append(f"{scale_name} is missing")
        elif x.dim() != 2 or scale.shape != x.shape[:1]:
            problems.append(
                f"{scale_name} is {list(scale.shape)}, expected one value per row of "
                f"{list(x.shape)}"
            )
        elif scale.dtype != torch.bfloat16 or not (scale.isfinite() & (scale > 0)).all():
            problems.append(f"{scale_name} has invalid values, expected bfloat16 above 0")
        else:
            dequantized[name] = x * scale.float()[:, None]
    if problems:
        raise ValueError(
            f"{folder}: invalid int8 weights: {'; '.join(problems)}; {DAMAGED_FILE_HINT}"
        )
    return dequantized
