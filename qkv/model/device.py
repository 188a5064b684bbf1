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
        torch.zeros(1, device=device).item()  # the meta device has no values
        if torch.device(device).type == "cpu" and torch.device(device).index:
            raise RuntimeError("there is one CPU device")
    except (RuntimeError, AssertionError, TypeError, ValueError, ImportError) as error:
        cause = (str(error) or type(error).__name__).splitlines()[0].partition(". ")[0]
        raise ValueError(f"device {device!r}: expected auto, cpu, cuda or mps ({cause})") from None
    return device


def find_fastest_device() -> str:
    """Return the first available device of cuda, mps and cpu."""
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"
