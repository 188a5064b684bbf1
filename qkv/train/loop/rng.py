"""Chance: the states of the generators that dropout is drawn from. What is noted can be drawn again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor


def chance(device: torch.device) -> dict[str, Tensor]:
    """The states as they are now, the host's and the device's."""
    found = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        found["cuda"] = torch.cuda.get_rng_state(device)
    return found


def set_chance(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Goes on from these; a generator that is not among them goes on from where it is."""
    if "cpu" in states:
        torch.set_rng_state(states["cpu"])
    if "cuda" in states and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)


@contextmanager
def chance_again(states: Mapping[str, Tensor], device: torch.device) -> Iterator[None]:
    """What was drawn from these states is drawn again; after it all goes on as if nothing had been."""
    now = chance(device)
    set_chance(states, device)
    try:
        yield
    finally:
        set_chance(now, device)
