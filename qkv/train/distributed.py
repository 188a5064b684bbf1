"""Parallel: the processes of one run and what they tell each other. Knows no network.

torchrun starts them and says through the environment who is who; without it there is one, and every message
is its own answer. Numbers of the host travel by gloo, so that nobody waits for a device."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

Told = TypeVar("Told")
STEP = timedelta(minutes=30)  # nobody is silent for longer, even where one writes and the others wait
PREPARED = timedelta(days=7)  # the first may read and encode for long
NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Team:
    """The processes of a run, and which of them this is. The first one prints and writes."""

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def sum(self, numbers: Sequence[int]) -> list[int]:
        """The sums of whole numbers over all processes; a message of the host."""
        if self.world == 1:
            return list(numbers)
        found = torch.tensor(numbers, dtype=torch.int64)
        with heard():
            dist.all_reduce(found)
        return found.tolist()

    def total(self, x: Tensor) -> Tensor:
        """The sum of a tensor over all processes, on its device."""
        return self.reduced(x, dist.ReduceOp.SUM)

    def most(self, x: Tensor) -> Tensor:
        """The largest that any process has, on its device."""
        return self.reduced(x, dist.ReduceOp.MAX)

    def reduced(self, x: Tensor, how: Any) -> Tensor:
        if self.world > 1:
            x = x.clone()
            with heard():
                dist.all_reduce(x, how)
        return x

    def rows(self, x: Tensor) -> tuple[Tensor, slice]:
        """The rows of all processes, by rank, and where this one's are; each may have another number."""
        counts = self.sum([len(x) * (rank == self.rank) for rank in range(self.world)])
        begin = sum(counts[: self.rank])
        here = slice(begin, begin + len(x))
        found = x.new_zeros(sum(counts), *x.shape[1:])
        found[here] = x
        return self.total(found), here

    def told(self, value: Told) -> Told:
        """What the first process has."""
        if self.world == 1:
            return value
        box = [value]
        with heard():
            dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]

    def each(self, value: Told) -> list[Told]:
        """What every process has, by rank."""
        found: list[Any] = [value] * self.world
        if self.world > 1:
            with heard():
                dist.all_gather_object(found, value)
        return found

    def prepare(self, work: Callable[[], Told]) -> Told:
        """The first does it, then the others, who find it done. Where it fails, they leave without a word."""
        if self.world == 1:
            return work()
        patient: Any = dist.new_group(timeout=PREPARED, backend="gloo")
        done = torch.zeros((), dtype=torch.int64)
        try:
            if self.first:
                made = work()
                done += 1
        finally:
            with heard():
                dist.broadcast(done, 0, group=patient)
        if not done:
            raise SystemExit(2)
        return made if self.first else work()


@contextmanager
def heard() -> Iterator[None]:
    """A message that does not come through means that another process has ended, and has said why."""
    try:
        yield
    except RuntimeError as error:
        cause = str(error).strip().splitlines()[0]
        raise ConnectionError(
            f"another process of the run has ended ({cause}); --resume auto goes on from the last checkpoint"
        ) from None


def is_first() -> bool:
    """Whether this process is the only one, or the first that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def processes() -> int:
    """How many torchrun started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def joined(device: str) -> Iterator[Team]:
    """The team that torchrun started this process in, or a team of one, each on a CUDA device of its own."""
    if dist.is_initialized():
        yield Team(dist.get_rank(), dist.get_world_size())
        return
    if not all(name in os.environ for name in NAMES):
        yield Team()
        return
    cuda = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    if cuda:
        if ":" in device:
            raise ValueError(f"device {device!r}: each process takes one of its own, expected cuda")
        local = int(os.environ.get("LOCAL_RANK", "0"))
        if local >= torch.cuda.device_count():
            raise ValueError(
                f"process {local} of this machine, which has {torch.cuda.device_count()} CUDA devices; "
                "expected at most as many processes: --nproc-per-node"
            )
        torch.cuda.set_device(local)
    with heard():
        dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=STEP)
    whole = False
    try:
        yield Team(dist.get_rank(), dist.get_world_size())
        with heard():
            dist.barrier()  # nobody takes the group down while another still talks
        whole = True
    finally:
        if whole or not cuda:  # after an error NCCL would wait for what never comes
            dist.destroy_process_group()
