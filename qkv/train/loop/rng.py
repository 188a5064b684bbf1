"""States of the random number generators of dropout: saving, restoring and replaying."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor


def get_rng_states(device: torch.device) -> dict[str, Tensor]:
    """Return the current generator states of the CPU and, for a CUDA device, of the device."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_rng_states(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Set the generator states; a generator without a given state keeps its state."""
    if "cpu" in states:
        torch.set_rng_state(states["cpu"])
    if "cuda" in states and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)


@contextmanager
def replay_rng_states(states: Mapping[str, Tensor], device: torch.device) -> Iterator[None]:
    """Use these states within the context, then restore the current states."""
    current_states = get_rng_states(device)
    set_rng_states(states, device)
    try:
        yield
    finally:
        set_rng_states(current_states, device)
