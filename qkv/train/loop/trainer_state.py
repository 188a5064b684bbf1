"""Training state for an exact resume: weights, optimizer, EMA, mems, baseline, random states,
sampler state.

Tensors are saved in full, and those of the optimizer by parameter name, so that another number of
processes can resume. Only dropout then differs: a process restores the random state of its rank, an
additional process uses a new seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from qkv.data.batches.packing import partition_by_tokens
from qkv.data.batches.sampler import SamplerState
from qkv.train.loop.checkpoint import CheckpointTensors
from qkv.train.loop.ema import WeightEMA
from qkv.train.loop.muon import gather_full_tensor, shard_like
from qkv.train.loop.rng import get_rng_states, set_rng_states

if TYPE_CHECKING:
    from qkv.train.loop.trainer import Trainer

CHECKPOINT_FORMAT_VERSION = 3


def gather_trainer_state(trainer: Trainer) -> tuple[CheckpointTensors, dict[str, Any]]:
    """Return the tensors by file (in the main process only), and the rest of the state."""

    def gather(tensors: Iterator[tuple[str, Tensor]]) -> dict[str, Tensor]:
        """Gather tensors to the CPU one by one, because a device may lack memory for all of them."""
        gathered = {}
        for name, x in tensors:
            full = gather_full_tensor(x.detach())
            if trainer.distributed.is_main_process:
                gathered[name] = full.cpu()
        return gathered

    names = map_parameter_names(trainer)
    optimizer_state = trainer.optimizer.state_dict()["state"]
    rng_states = trainer.distributed.all_gather_object(get_rng_states(trainer.device))
    tensors: CheckpointTensors = {
        "net": gather(trainer.net.named_parameters()),
        "optimizer": gather(
            (f"{names[number]}.{key}", torch.as_tensor(x))
            for number, parameter_state in optimizer_state.items()
            for key, x in parameter_state.items()
        ),
        "rng": {
            add_rank_suffix(name, rank): x
            for rank, states in enumerate(rng_states)
            for name, x in states.items()
        },
    }
    if trainer.ema is not None:
        tensors["ema"] = gather(iter(trainer.ema.state_dict().items()))
    if trainer.mems is not None:
        tensors["mems"] = {"mems": gather_mems(trainer, trainer.mems)}
    if trainer.objective.baseline is not None:
        tensors["baseline"] = gather(iter([("baseline", trainer.objective.baseline.value)]))
    return tensors, {
        "format_version": CHECKPOINT_FORMAT_VERSION,
        "sampler_state": trainer.state.sampler_state,
        "best_value": trainer.state.best_value,
        "evals_since_best": trainer.state.evals_since_best,
        "num_tokens": trainer.state.num_tokens,
        "grad_scaler": trainer.grad_scaler.state_dict(),
        "optimizer": trainer.train_config.optimizer,
    }


@torch.no_grad()
def restore_trainer_state(
    trainer: Trainer, tensors: CheckpointTensors, state: dict[str, Any]
) -> None:
    """Restore everything that `gather_trainer_state` returned."""
    if state.get("format_version") != CHECKPOINT_FORMAT_VERSION:
        raise ValueError(
            f"the checkpoint has format version {state.get('format_version')}, expected "
            f"{CHECKPOINT_FORMAT_VERSION}: it was written by another version of qkv; start a new run"
        )
    parameters = dict(trainer.net.named_parameters())
    weights = tensors["net"]
    different = sorted(parameters.keys() ^ weights.keys())
    different = different or [
        name for name, p in parameters.items() if p.shape != weights[name].shape
    ]
    if different:
        raise ValueError(
            f"the checkpoint is of another network: {', '.join(different[:5])} differ; "
            "was the recipe changed?"
        )
    for name, x in weights.items():
        parameters[name].copy_(shard_on_device(x, parameters[name]))
    optimizer = state["optimizer"]
    if optimizer != trainer.train_config.optimizer:
        raise ValueError(
            f"train.optimizer {trainer.train_config.optimizer!r}: the checkpoint has the state of "
            f"{optimizer}, expected {optimizer}; to load only the weights, start a new run with model.load"
        )
    restore_optimizer(trainer, tensors["optimizer"], parameters)
    if trainer.ema is not None and "ema" not in tensors:  # ema_decay was set after the checkpoint
        trainer.ema = WeightEMA(trainer.net, trainer.train_config.ema_decay)
    elif trainer.ema is not None:
        trainer.ema.load_state_dict(
            {
                name: shard_on_device(x, parameters.get(name, x))
                for name, x in tensors["ema"].items()
            }
        )
    if "mems" in tensors:
        mems = tensors["mems"]["mems"]
        trainer.mems = mems[:, assign_mems_rows(trainer, mems.shape[1])].to(trainer.device)
    if trainer.objective.baseline is not None and "baseline" in tensors:
        trainer.objective.baseline.value.copy_(tensors["baseline"]["baseline"])
    trainer.grad_scaler.load_state_dict(state["grad_scaler"])
    rank = trainer.distributed.rank
    rng_states = {
        name: tensors["rng"][add_rank_suffix(name, rank)]
        for name in ("cpu", "cuda")
        if add_rank_suffix(name, rank) in tensors["rng"]
    }
    if not rng_states:
        torch.manual_seed(trainer.train_config.seed + trainer.sharding.dp_rank + state["step"])
    set_rng_states(rng_states, trainer.device)
    trainer.state.step = state["step"]
    trainer.state.num_tokens = state["num_tokens"]
    trainer.state.best_value = state["best_value"]
    trainer.state.evals_since_best = state["evals_since_best"]
    sampler_state = SamplerState(*state["sampler_state"])
    if sampler_state.batch_index >= len(trainer.sampler.get_batches(sampler_state.epoch)):
        sampler_state = SamplerState(sampler_state.epoch + 1, 0)
    trainer.state.sampler_state = sampler_state


def restore_optimizer(
    trainer: Trainer, tensors: Mapping[str, Tensor], parameters: Mapping[str, Tensor]
) -> None:
    """Restore the optimizer state of the parameters that are still trainable."""
    numbers = {name: number for number, name in map_parameter_names(trainer).items()}
    optimizer_state: dict[int, dict[str, Tensor]] = {}
    for path, x in tensors.items():
        name, _, key = path.rpartition(".")
        if name in numbers:  # a parameter may have been frozen after the checkpoint
            parameter = parameters[name]
            value = shard_on_device(x, parameter) if x.shape == parameter.shape else x
            optimizer_state.setdefault(numbers[name], {})[key] = value
    trainer.optimizer.load_state_dict({**trainer.optimizer.state_dict(), "state": optimizer_state})


def map_parameter_names(trainer: Trainer) -> dict[int, str]:
    """Return the parameter names by their index in the optimizer."""
    groups = trainer.optimizer.param_groups
    return dict(enumerate(name for group in groups for name in group["param_names"]))


def add_rank_suffix(name: str, rank: int) -> str:
    return f"{name}.{rank}" if rank else name


def shard_on_device(x: Tensor, reference: Tensor) -> Tensor:
    """Return a full tensor on the device of `reference`, sharded like it."""
    return shard_like(x.to(reference.device), reference)


def assign_mems_rows(trainer: Trainer, batch_size: int) -> list[int]:
    """Return the rows that this process reads of every batch; they are fixed with recurrence."""
    shares = partition_by_tokens(np.ones(batch_size, np.int64), trainer.sharding.dp_size)
    local_rows = shares[trainer.sharding.dp_rank]
    return (local_rows if len(local_rows) else shares[0]).tolist()


def gather_mems(trainer: Trainer, mems: Tensor) -> Tensor:
    """Return the mems of all processes in batch order: (layers, B, M, W)."""
    if trainer.sharding.dp_size == 1:
        return mems
    batch_size = len(trainer.sampler.get_batches(trainer.state.sampler_state.epoch)[0])
    all_mems = mems.new_empty(len(mems), batch_size, *mems.shape[2:], device="cpu")
    shares = partition_by_tokens(np.ones(batch_size, np.int64), trainer.sharding.dp_size)
    for rows, x in zip(shares, trainer.distributed.all_gather_object(mems.cpu()), strict=True):
        if len(rows):
            all_mems[:, rows] = x
    return all_mems
