"""What a run must know to go on to the bit: weights, moments, averages, memory, random states, place.

Tensors are written whole, and moments by the names of their tensors: another number of processes can go on.
Only dropout then differs: a process takes the random state that its rank had, a new one starts its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from qkv.data.batches.packing import split
from qkv.data.batches.sampler import Place
from qkv.train.loop.checkpoint import Tensors
from qkv.train.loop.ema import Average
from qkv.train.loop.muon import parted, whole
from qkv.train.loop.rng import chance, set_chance

if TYPE_CHECKING:
    from qkv.train.loop.trainer import Trainer


def gathered(trainer: Trainer) -> tuple[Tensors, dict[str, Any]]:
    """The tensors by file, and the rest; every process takes part, the first one gets them."""
    first = trainer.team.first

    def held(tensors: Iterator[tuple[str, Tensor]]) -> dict[str, Tensor]:
        """One after the other, to the host: a device may have no room for all of them whole."""
        found = {}
        for name, x in tensors:
            full = whole(x.detach())
            if first:
                found[name] = full.cpu()
        return found

    names, moments = names_of(trainer), trainer.optimiser.state_dict()["state"]
    tensors: Tensors = {
        "net": held(trainer.net.named_parameters()),
        "optimiser": held(
            (f"{names[number]}.{what}", torch.as_tensor(x))
            for number, state in moments.items()
            for what, x in state.items()
        ),
        "random": {
            ranked(name, rank): x
            for rank, states in enumerate(trainer.team.each(chance(trainer.device)))
            for name, x in states.items()
        },
    }
    if trainer.average is not None:
        tensors["average"] = held(iter(trainer.average.state_dict().items()))
    if trainer.memory is not None:
        tensors["memory"] = {"memory": joined_rows(trainer, trainer.memory)}
    state = trainer.state
    return tensors, {
        "place": state.place, "best": state.best, "stale": state.stale, "tokens": state.tokens,
        "scaler": trainer.scaler.state_dict(), "optimiser": trainer.learn.optimiser,
    }  # fmt: skip


@torch.no_grad()
def scattered(trainer: Trainer, tensors: Tensors, state: dict[str, Any]) -> None:
    """Puts all of it back in its place."""
    own, held = dict(trainer.net.named_parameters()), tensors["net"]
    odd = sorted(own.keys() ^ held.keys())
    odd = odd or [name for name, p in own.items() if p.shape != held[name].shape]
    if odd:
        raise ValueError(
            f"the checkpoint is of another network: {', '.join(odd[:5])}; was the recipe changed?"
        )
    for name, x in tensors["net"].items():
        own[name].copy_(sliced(x, own[name]))
    numbers = {name: number for number, name in names_of(trainer).items()}
    kind = state.get("optimiser", trainer.learn.optimiser)
    if kind != trainer.learn.optimiser:
        raise ValueError(
            f"learn.optimiser {trainer.learn.optimiser!r}: the checkpoint has what {kind} remembers, "
            f"expected {kind}; model.load, in a new run, begins with the weights alone"
        )
    moments: dict[int, dict[str, Tensor]] = {}
    for path, x in tensors["optimiser"].items():
        name, _, what = path.rpartition(".")
        if name not in numbers:  # it no longer learns
            continue
        like = own[name]
        moments.setdefault(numbers[name], {})[what] = sliced(x, like) if x.shape == like.shape else x
    trainer.optimiser.load_state_dict({**trainer.optimiser.state_dict(), "state": moments})
    if trainer.average is not None and "average" not in tensors:  # it is asked for since
        trainer.average = Average(trainer.net, trainer.learn.average)
    elif trainer.average is not None:
        means = {name: sliced(x, own.get(name, x)) for name, x in tensors["average"].items()}
        trainer.average.load_state_dict(means)
    if "memory" in tensors:
        memory = tensors["memory"]["memory"]
        trainer.memory = memory[:, rows_of(trainer, memory.shape[1])].to(trainer.device)
    trainer.scaler.load_state_dict(state["scaler"])
    random, rank = tensors["random"], trainer.team.rank
    noted = {name: random[ranked(name, rank)] for name in ("cpu", "cuda") if ranked(name, rank) in random}
    if not noted:
        torch.manual_seed(trainer.learn.seed + trainer.spread.rank + state["step"])
    set_chance(noted, trainer.device)
    trainer.state.step, trainer.state.tokens = state["step"], state["tokens"]
    place = Place(*state["place"])
    left = place.batch < len(trainer.feed.batches(place.epoch))
    trainer.state.place = place if left else Place(place.epoch + 1, 0)
    trainer.state.best, trainer.state.stale = state["best"], state["stale"]


def names_of(trainer: Trainer) -> dict[int, str]:
    """The names of the tensors by the numbers that an optimiser gives them."""
    groups = trainer.optimiser.param_groups
    return dict(enumerate(name for group in groups for name in group["param_names"]))


def ranked(name: str, rank: int) -> str:
    return f"{name}.{rank}" if rank else name


def sliced(x: Tensor, like: Tensor) -> Tensor:
    """This process's part of a whole tensor, where the other is one."""
    return parted(x.to(like.device), like)


def rows_of(trainer: Trainer, rows: int) -> list[int]:
    """The rows of every batch that this process reads; a recurrence has them fixed."""
    shares = split(np.ones(rows, np.int64), trainer.spread.world)
    return (shares[trainer.spread.rank] if len(shares[trainer.spread.rank]) else shares[0]).tolist()


def joined_rows(trainer: Trainer, memory: Tensor) -> Tensor:
    """(layers, B, M, W) of all processes, in the order of the batch."""
    if trainer.spread.world == 1:
        return memory
    rows = len(trainer.feed.batches(trainer.state.place.epoch)[0])
    found = memory.new_empty(len(memory), rows, *memory.shape[2:], device="cpu")
    shares = split(np.ones(rows, np.int64), trainer.spread.world)
    for share, x in zip(shares, trainer.team.each(memory.cpu()), strict=True):
        if len(share):
            found[:, share] = x
    return found
