"""What a run must know to go on to the bit: weights, moments, averages, memory, random states, place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qkv.data.feed import Place
from qkv.learn.checkpoint import Tensors

if TYPE_CHECKING:
    from qkv.learn.trainer import Trainer


def gathered(trainer: Trainer) -> tuple[Tensors, dict[str, Any]]:
    """The tensors by file, and the rest."""
    random = {"cpu": torch.get_rng_state()}
    if trainer.device.type == "cuda":
        random["cuda"] = torch.cuda.get_rng_state(trainer.device)
    moments = trainer.optimiser.state_dict()["state"]
    tensors: Tensors = {
        "net": dict(trainer.net.named_parameters()),
        "optimiser": {
            f"{number}.{name}": torch.as_tensor(x)
            for number, held in moments.items()
            for name, x in held.items()
        },
        "random": random,
    }
    if trainer.average is not None:
        tensors["average"] = trainer.average.state_dict()
    if trainer.memory is not None:
        tensors["memory"] = {"memory": trainer.memory}
    state = trainer.state
    return tensors, {
        "place": state.place, "best": state.best, "stale": state.stale, "tokens": state.tokens,
        "scaler": trainer.scaler.state_dict(),
    }  # fmt: skip


@torch.no_grad()
def scattered(trainer: Trainer, tensors: Tensors, state: dict[str, Any]) -> None:
    """Puts all of it back in its place."""
    own = dict(trainer.net.named_parameters())
    if own.keys() != tensors["net"].keys():
        odd = sorted(own.keys() ^ tensors["net"].keys())
        raise ValueError(
            f"the checkpoint is of another network: {', '.join(odd[:5])}; was the recipe changed?"
        )
    for name, x in tensors["net"].items():
        own[name].copy_(x)
    moments: dict[int, dict[str, Tensor]] = {}
    for name, x in tensors["optimiser"].items():
        number, _, what = name.partition(".")
        moments.setdefault(int(number), {})[what] = x
    trainer.optimiser.load_state_dict({**trainer.optimiser.state_dict(), "state": moments})
    if trainer.average is not None:
        trainer.average.load_state_dict(tensors["average"])
    trainer.memory = tensors["memory"]["memory"].to(trainer.device) if "memory" in tensors else None
    trainer.scaler.load_state_dict(state["scaler"])
    torch.set_rng_state(tensors["random"]["cpu"])
    if "cuda" in tensors["random"] and trainer.device.type == "cuda":
        torch.cuda.set_rng_state(tensors["random"]["cuda"], trainer.device)
    trainer.state.step, trainer.state.tokens = state["step"], state["tokens"]
    trainer.state.place = Place(*state["place"])
    trainer.state.best, trainer.state.stale = state["best"], state["stale"]
