"""Averages of weights: a moving one beside a run, and the mean of saved ones. Knows no network's inside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor, nn

from qkv.train.loop.muon import local, parted
from qkv.validate import number
from qkv.weights.tensors import read_tensors

UPDATES = "updates"  # in a state dict, beside the names of weights


class Average:
    """A moving average of a network's weights, in fp32 at least.

    With `warmup` the decay starts low, at (1 + n) / (10 + n) after n updates: the first weights fade soon.
    Frozen tensors are left out; one that starts to learn later joins with the value it has then."""

    def __init__(self, net: nn.Module, decay: float = 0.999, *, warmup: bool = False) -> None:
        number("decay", decay, at_least=0, less_than=1)
        self.decay, self.warmup, self.updates = decay, warmup, 0
        self.named = [*net.named_parameters()]  # it takes longer to find them than to move the average
        self.weights: dict[str, Tensor] = {}
        self.learning()

    @torch.no_grad()
    def learning(self) -> list[tuple[Tensor, Tensor]]:
        """The average of each tensor that learns, and it; an average starts at the tensor's value."""
        pairs = []
        for name, p in self.named:
            if p.requires_grad:
                if name not in self.weights:
                    self.weights[name] = p.to(torch.promote_types(p.dtype, torch.float32), copy=True)
                mean = self.weights[name]
                pairs.append((mean, p if p.dtype == mean.dtype else p.to(mean.dtype)))
        return pairs

    @torch.no_grad()
    def update(self) -> None:
        """Moves the average towards the weights; once after each step."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates)) if self.warmup else self.decay
        pairs = self.learning()
        for sliced in (False, True):  # a kernel takes slices, or whole tensors, not both
            alike = [pair for pair in pairs if hasattr(pair[0], "full_tensor") == sliced]
            if alike:
                torch._foreach_lerp_([mean for mean, _ in alike], [new for _, new in alike], 1 - decay)
        self.updates += 1

    @contextmanager
    def applied(self, net: nn.Module) -> Iterator[None]:
        """The network with the average for weights; after it, with its own again, to the bit."""
        own = {name: p for name, p in net.named_parameters() if name in self.weights}
        if len(own) < len(self.weights):
            lost = ", ".join(sorted(self.weights.keys() - own.keys()))
            raise ValueError(f"the average is of another network: {lost} is not in this one")
        with swapped(own, self.weights):
            yield

    def state_dict(self) -> dict[str, Tensor]:
        return {**self.weights, UPDATES: torch.tensor(self.updates)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Goes on where the saved one stood, to the bit."""
        wrong = sorted(state.keys() ^ {*self.weights, UPDATES})
        wrong += [
            name for name, mean in self.weights.items() if name in state and mean.shape != state[name].shape
        ]
        if wrong:
            raise ValueError(f"the average is of another network: {', '.join(wrong)} differ")
        fill(self.weights, {name: state[name] for name in self.weights})
        self.updates = int(state[UPDATES])


@torch.no_grad()
def fill(into: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """In place: who holds the tensors, a compiled graph for one, sees the new values."""
    for name, tensor in into.items():
        tensor.copy_(values[name])


@contextmanager
def swapped(own: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> Iterator[None]:
    """Tensors with other values; after it, with their own again, to the bit."""
    kept = {name: x.detach().clone() for name, x in own.items()}
    fill(own, values)
    try:
        yield
    finally:
        fill(own, kept)


@contextmanager
def mean_with(net: nn.Module, others: Iterable[Mapping[str, Tensor]]) -> Iterator[None]:
    """The network with the mean of its weights and of others, whole ones; after it, with its own again.

    Frozen tensors stay as they are."""
    learns = {name: p.detach() for name, p in net.named_parameters() if p.requires_grad}
    own = {name: local(p) for name, p in learns.items()}
    theirs = (
        {name: local(parted(x, learns[name])) for name, x in held.items() if name in learns}
        for held in others
    )
    with swapped(own, mean_of(chain([own], theirs))):
        yield


def mean_of(checkpoints: Iterable[Mapping[str, Tensor] | str | Path]) -> dict[str, Tensor]:
    """The mean of checkpoints: tensors by name, files, or folders; read one at a time.

    Sums have twice the digits of the weights, so that their order does not matter."""
    sums: dict[str, Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    count = 0
    for count, source in enumerate(checkpoints, 1):
        tensors = source if isinstance(source, Mapping) else read_tensors(Path(source))
        if count == 1:
            dtypes = {name: x.dtype for name, x in tensors.items()}
            sums = {name: torch.zeros(x.shape, dtype=wider(x.dtype)) for name, x in tensors.items()}
        odd = [name for name, x in tensors.items() if name not in sums or x.shape != sums[name].shape]
        odd += [f"{name} (missing)" for name in sums if name not in tensors]
        odd += [name for name, x in tensors.items() if not x.is_floating_point()]
        if odd:
            what = f"checkpoint {count}" if isinstance(source, Mapping) else source
            raise ValueError(f"{what}: expected the same weights in all that are averaged: {', '.join(odd)}")
        for name, x in tensors.items():
            sums[name] += x.detach().cpu()
    if not count:
        raise ValueError("no checkpoint to average: expected one at least")
    return {name: x.div_(count).to(dtypes[name]) for name, x in sums.items()}


def wider(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype in (torch.float32, torch.float64) else torch.float32
