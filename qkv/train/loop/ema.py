"""Averages of weights: an exponential moving average during training, and the mean of checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor, nn

from qkv.train.loop.muon import get_local_tensor, shard_like
from qkv.validate import check_number
from qkv.weights.tensors import read_tensors

NUM_UPDATES_KEY = "num_updates"  # in a state dict, next to the parameter names


class WeightEMA:
    """Exponential moving average of the weights of a network, in fp32 or more.

    Frozen parameters are excluded; one that becomes trainable later is added with its current value."""

    def __init__(self, net: nn.Module, decay: float = 0.999) -> None:
        check_number("ema_decay", decay, at_least=0, less_than=1)
        self.decay = decay
        self.num_updates = 0
        self.named_parameters = [
            *net.named_parameters()
        ]  # listing them takes longer than an update
        self.averaged_weights: dict[str, Tensor] = {}
        self.get_trainable_pairs()

    @torch.no_grad()
    def get_trainable_pairs(self) -> list[tuple[Tensor, Tensor]]:
        """Return (average, parameter) of each trainable parameter; an average starts at its value."""
        pairs = []
        for name, p in self.named_parameters:
            if p.requires_grad:
                if name not in self.averaged_weights:
                    dtype = torch.promote_types(p.dtype, torch.float32)
                    self.averaged_weights[name] = p.to(dtype, copy=True)
                mean = self.averaged_weights[name]
                pairs.append((mean, p if p.dtype == mean.dtype else p.to(mean.dtype)))
        return pairs

    @torch.no_grad()
    def update(self) -> None:
        """Update the average with the current weights; called once per step."""
        pairs = self.get_trainable_pairs()
        for is_sharded in (
            False,
            True,
        ):  # a fused kernel takes either sharded or full tensors
            group = [pair for pair in pairs if hasattr(pair[0], "full_tensor") == is_sharded]
            if group:
                means = [mean for mean, _ in group]
                torch._foreach_lerp_(means, [p for _, p in group], 1 - self.decay)
        self.num_updates += 1

    @contextmanager
    def average_parameters(self, net: nn.Module) -> Iterator[None]:
        """Replace the weights by the average within the context, then restore them exactly."""
        parameters = {
            name: p for name, p in net.named_parameters() if name in self.averaged_weights
        }
        if len(parameters) < len(self.averaged_weights):
            missing = ", ".join(sorted(self.averaged_weights.keys() - parameters.keys()))
            raise ValueError(f"the average belongs to another network: this one has no {missing}")
        with swap_values(parameters, self.averaged_weights):
            yield

    def state_dict(self) -> dict[str, Tensor]:
        return {**self.averaged_weights, NUM_UPDATES_KEY: torch.tensor(self.num_updates)}

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        """Restore a saved state exactly."""
        different = sorted(state_dict.keys() ^ {*self.averaged_weights, NUM_UPDATES_KEY})
        different += [
            name
            for name, mean in self.averaged_weights.items()
            if name in state_dict and mean.shape != state_dict[name].shape
        ]
        if different:
            raise ValueError(
                f"the average belongs to another network: {', '.join(different)} differ"
            )
        copy_values(
            self.averaged_weights, {name: state_dict[name] for name in self.averaged_weights}
        )
        self.num_updates = int(state_dict[NUM_UPDATES_KEY])


@torch.no_grad()
def copy_values(tensors: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Copy values into tensors in place, so that compiled graphs use the new values."""
    for name, tensor in tensors.items():
        tensor.copy_(values[name])


@contextmanager
def swap_values(tensors: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> Iterator[None]:
    """Replace the values of tensors within the context, then restore them exactly."""
    old_values = {name: x.detach().clone() for name, x in tensors.items()}
    copy_values(tensors, values)
    try:
        yield
    finally:
        copy_values(tensors, old_values)


@contextmanager
def average_with_checkpoints(
    net: nn.Module, checkpoints: Iterable[Mapping[str, Tensor]]
) -> Iterator[None]:
    """Replace the weights by the mean of current and saved weights, then restore them exactly.

    Frozen parameters are not averaged."""
    parameters = {name: p.detach() for name, p in net.named_parameters() if p.requires_grad}
    local_weights = {name: get_local_tensor(p) for name, p in parameters.items()}
    checkpoint_weights = (
        {
            name: get_local_tensor(shard_like(x, parameters[name]))
            for name, x in checkpoint.items()
            if name in parameters
        }
        for checkpoint in checkpoints
    )
    with swap_values(
        local_weights, average_checkpoints(chain([local_weights], checkpoint_weights))
    ):
        yield


def average_checkpoints(
    checkpoints: Iterable[Mapping[str, Tensor] | str | Path],
) -> dict[str, Tensor]:
    """Return the mean of checkpoints: tensors by name, files or folders, read one at a time.

    Sums have twice the precision of the weights, so that the order does not affect the result."""
    sums: dict[str, Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    count = 0
    for count, source in enumerate(checkpoints, 1):
        tensors = source if isinstance(source, Mapping) else read_tensors(Path(source))
        if count == 1:
            dtypes = {name: x.dtype for name, x in tensors.items()}
            sums = {
                name: torch.zeros(x.shape, dtype=get_sum_dtype(x.dtype))
                for name, x in tensors.items()
            }
        different = [
            name for name, x in tensors.items() if name not in sums or x.shape != sums[name].shape
        ]
        different += [f"{name} (missing)" for name in sums if name not in tensors]
        different += [name for name, x in tensors.items() if not x.is_floating_point()]
        if different:
            label = f"checkpoint {count}" if isinstance(source, Mapping) else source
            raise ValueError(
                f"{label}: expected the same floating-point weights in all checkpoints to average, "
                f"but these differ: {', '.join(different)}"
            )
        for name, x in tensors.items():
            sums[name] += x.detach().cpu()
    if not count:
        raise ValueError("no checkpoint to average: expected at least one")
    return {name: x.div_(count).to(dtypes[name]) for name, x in sums.items()}


def get_sum_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype in (torch.float32, torch.float64) else torch.float32
