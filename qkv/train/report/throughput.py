"""Peak: how much of what a machine can do a run makes use of. Both sides are estimates."""

from __future__ import annotations

import time

import torch
from torch import nn

from qkv.nn.feed_forward import Switch
from qkv.nn.transformer import Tower

SECONDS = 0.3


def work(net: nn.Module) -> float:
    """Operations a token, forward and backward: six a weight that it passes (Kaplan et al., section 2.1).

    Attention scores are left out, and tables that are looked up alone. A layer that runs several times counts
    as often, of experts only one, and of an encoder and a decoder, through which different tokens go, the
    half."""
    passed = {id(each.weight) for each in net.modules() if isinstance(each, nn.Linear)}
    tables = {id(each.weight) for each in net.modules() if isinstance(each, nn.Embedding)} - passed
    count = sum(p.numel() for p in net.parameters() if id(p) not in tables)
    towers = [each for each in net.modules() if isinstance(each, Tower)]
    for tower in towers:
        for place, layer in enumerate(tower.layers):
            count += (tower.order.count(place) - 1) * sum(p.numel() for p in layer.parameters())
    for switch in (each for each in net.modules() if isinstance(each, Switch)):
        count -= sum(p.numel() for expert in list(switch.experts)[1:] for p in expert.parameters())
    return 6.0 * count / max(len(towers), 1)


def peak(device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second of a large matrix product, measured now; 0 where there is no memory for one."""
    size = 1024 if device.type == "cpu" else 4096
    own = torch.Generator(device).manual_seed(0)  # the run's numbers stay what they would be
    try:
        x = torch.randn(size, size, device=device, dtype=torch.float32, generator=own).to(dtype)
        out = x @ x
    except torch.OutOfMemoryError:
        return 0.0
    count, spent = 0, 0.0
    settle(out)
    clock = time.perf_counter()
    while spent < SECONDS:
        for _ in range(1 if device.type == "cpu" else 20):
            torch.mm(x, x, out=out)
            count += 1
        settle(out)
        spent = time.perf_counter() - clock
    return 2.0 * size**3 * count / spent


def settle(x: torch.Tensor) -> None:
    """Waits until a tensor is computed."""
    x[0, 0].item()
