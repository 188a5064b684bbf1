"""Weights as int8 with a scale for each row: a quarter of the bytes on disk, floats again when they are read.

    NAME         int8      (rows, columns)   a matrix, round(x / scale)
    NAME.scale   bfloat16  (rows,)           max|row| / 127
    NAME         float32   any other shape   norms, biases and the like, as they are

A number is off by half a scale at most. A scale has 8 bits and an int8 has 7, so that their product is exact:
what was read once is written and read again to the bit."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from qkv.weights.tensors import DAMAGED, nonfinite

MOST = 127


def scale_of(name: str) -> str:
    return f"{name}.scale"


def to_int8(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Matrices as int8 and their scales, the rest as float32."""
    floats = {name: x.detach().float() for name, x in tensors.items()}
    if wrong := nonfinite(floats):
        raise ValueError(
            f"{', '.join(wrong)}: values that are not finite; expected numbers, int8 has no other"
        )
    found: dict[str, Tensor] = {}
    for name, x in floats.items():
        if x.dim() != 2:
            found[name] = x
            continue
        scale = (x.abs().amax(1) / MOST).bfloat16()
        scale[scale == 0] = 1  # a row of zeros
        found[name] = (x / scale[:, None]).round().clamp(-MOST, MOST).to(torch.int8)
        found[scale_of(name)] = scale
    return found


def from_int8(tensors: Mapping[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """And back, all as float32; every problem of the folder that they are from is in one message."""
    small = {name: x for name, x in tensors.items() if x.dtype == torch.int8}
    found = {
        name: x.float() if x.is_floating_point() else x
        for name, x in tensors.items()
        if name not in small and name not in map(scale_of, small)
    }
    problems = []
    for name, x in small.items():
        scale = tensors.get(scale_of(name))
        if scale is None:
            problems.append(f"{scale_of(name)} is missing")
        elif x.dim() != 2 or scale.shape != x.shape[:1]:
            problems.append(
                f"{scale_of(name)} is {list(scale.shape)}, expected one for a row of {list(x.shape)}"
            )
        elif scale.dtype != torch.bfloat16 or not (scale.isfinite() & (scale > 0)).all():
            problems.append(f"{scale_of(name)} holds what is no scale, expected bfloat16 above 0")
        else:
            found[name] = x * scale.float()[:, None]
    if problems:
        raise ValueError(f"{folder}: not int8 with a scale a row: {'; '.join(problems)}; {DAMAGED}")
    return found
