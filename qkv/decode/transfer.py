"""Wire: numbers between host and device, sent so that neither waits for the other before it must."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def sent(values: Sequence[int] | Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Whole numbers of the host on the device. From pinned memory: else a GPU would first finish its work."""
    if device.type != "cuda":
        return torch.tensor(values, dtype=torch.long, device=device)
    return torch.tensor(values, dtype=torch.long, pin_memory=True).to(device, non_blocking=True)


class Told:
    """A tensor of the device on its way to the host."""

    def __init__(self, x: Tensor) -> None:
        self.values, self.there = x, None
        if x.device.type == "cuda":
            self.values, self.there = x.to("cpu", non_blocking=True), torch.cuda.Event()
            self.there.record(torch.cuda.current_stream(x.device))

    def list(self) -> Any:
        """Its numbers; waits until they are there."""
        if self.there is not None:
            self.there.synchronize()
        return self.values.tolist()


def known_empty(flags: Tensor) -> bool:
    """Does the host know that none is true? A GPU is not asked."""
    return flags.device.type == "cpu" and not flags.any()
