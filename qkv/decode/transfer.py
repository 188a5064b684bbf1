"""Transfers between host and device that do not block before the value is needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def copy_to_device(values: Sequence[int] | Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Return integers as a tensor on a device; pinned memory avoids blocking on the GPU's queue."""
    if device.type != "cuda":
        return torch.tensor(values, dtype=torch.long, device=device)
    return torch.tensor(values, dtype=torch.long, pin_memory=True).to(device, non_blocking=True)


class HostCopy:
    """An asynchronous copy of a device tensor to the host."""

    def __init__(self, x: Tensor) -> None:
        self.values = x
        self.copy_event: torch.cuda.Event | None = None
        if x.device.type == "cuda":
            self.values = x.to("cpu", non_blocking=True)
            self.copy_event = torch.cuda.Event()
            self.copy_event.record(torch.cuda.current_stream(x.device))

    def tolist(self) -> Any:
        """Wait for the copy and return its values."""
        if self.copy_event is not None:
            self.copy_event.synchronize()
        return self.values.tolist()


def is_known_all_false(flags: Tensor) -> bool:
    """Return True if no flag is set; always False on a GPU, to avoid a synchronization."""
    return flags.device.type == "cpu" and not flags.any()
