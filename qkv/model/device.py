"""Selection of a torch device."""

from __future__ import annotations

import torch


def pick_device(device: str, dtype: object = None) -> str:
    """Return an available device; `auto` is the first available one of cuda, mps and cpu."""
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ValueError(f"dtype {dtype}: expected a floating point torch.dtype")
    if device != "auto":
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError, TypeError) as error:
            cause = str(error).splitlines()[0]
            raise ValueError(
                f"device {device!r}: expected auto, cpu, cuda or mps ({cause})"
            ) from None
        return device
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"
