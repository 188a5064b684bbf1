"""Model FLOPs utilization: FLOPs per token of a network and peak FLOPs of a device, both estimates."""

from __future__ import annotations

import time

import torch
from torch import nn

from qkv.nn.feed_forward import MixtureOfExperts
from qkv.nn.recurrent import RecurrentStack
from qkv.nn.transformer import Stack

MEASURE_SECONDS = 0.3


def estimate_flops_per_token(net: nn.Module) -> float:
    """Estimate the FLOPs per token, forward and backward: six per weight (Kaplan et al., section 2.1).

    Attention scores and embedding lookups are not counted. A layer that runs several times is counted
    several times, and only one expert is counted. With an encoder and a decoder, which read different
    tokens, the sum is halved."""
    modules = list(net.modules())
    linear_weights = {id(module.weight) for module in modules if isinstance(module, nn.Linear)}
    embedding_weights = {
        id(module.weight) for module in modules if isinstance(module, nn.Embedding)
    }
    lookup_tables = embedding_weights - linear_weights
    count = sum(p.numel() for p in net.parameters() if id(p) not in lookup_tables)
    stacks = [module for module in modules if isinstance(module, Stack | RecurrentStack)]
    for stack in stacks:
        for index, layer in enumerate(stack.layers):
            num_extra_runs = stack.layer_order.count(index) - 1
            count += num_extra_runs * sum(p.numel() for p in layer.parameters())
    for module in modules:
        if isinstance(module, MixtureOfExperts):
            inactive_experts = list(module.experts)[1:]
            count -= sum(p.numel() for expert in inactive_experts for p in expert.parameters())
    return 6.0 * count / max(len(stacks), 1)


def measure_peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Measure the peak FLOPs per second of a GPU; 0 on a CPU, whose peak depends on its other load."""
    return 0.0 if device.type == "cpu" else measure_matmul_flops(device, dtype, size=4096)


def measure_matmul_flops(device: torch.device, dtype: torch.dtype, *, size: int) -> float:
    """Measure the FLOPs per second of a matrix product; 0 if there is not enough memory."""
    generator = torch.Generator(device).manual_seed(0)  # does not change the global generator
    try:
        x = torch.randn(size, size, device=device, dtype=torch.float32, generator=generator).to(
            dtype
        )
        out = x @ x
    except torch.OutOfMemoryError:
        return 0.0
    num_products = 0
    seconds = 0.0
    wait_for_tensor(out)
    start_time = time.perf_counter()
    while seconds < MEASURE_SECONDS:
        for _ in range(20):
            torch.mm(x, x, out=out)
            num_products += 1
        wait_for_tensor(out)
        seconds = time.perf_counter() - start_time
    return 2.0 * size**3 * num_products / seconds


def wait_for_tensor(x: torch.Tensor) -> None:
    """Wait until a tensor is computed."""
    x[0, 0].item()
