"""Selection of a torch device. Torch is imported when a device is selected."""

from __future__ import annotations

DEFAULT_DEVICE = "auto"  # of models, tasks, recipes and commands


def pick_device(device: str, dtype: object = None) -> str:
    """Return an available device; `auto` is the first available one of cuda, mps and cpu."""
    import torch

    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ValueError(f"dtype {dtype}: expected a floating point torch.dtype")
    if device == "auto":
        return find_fastest_device()
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        cause = str(error).splitlines()[0]
        raise ValueError(f"device {device!r}: expected auto, cpu, cuda or mps ({cause})") from None
    return device


def find_fastest_device() -> str:
    """Return the first available device of cuda, mps and cpu."""
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"
