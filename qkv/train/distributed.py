"""The processes of a run and their collective operations. Does not depend on networks.

torchrun starts the processes and sets their ranks in the environment; without it, there is a single
process, for which every operation is the identity. CPU tensors use gloo, so that they do not
synchronize with a GPU."""

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

Value = TypeVar("Value")
COLLECTIVE_TIMEOUT = timedelta(minutes=30)  # longer than the main process takes to write files
PREPARE_TIMEOUT = timedelta(days=7)  # longer than the main process takes to encode the data
TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class DistributedContext:
    """The rank of this process among the processes of a run. The main process prints and writes."""

    rank: int = 0
    world_size: int = 1

    @property
    def is_main_process(self) -> bool:
        return self.rank == 0

    def sum_numbers(self, values: Sequence[float]) -> list[float]:
        """Return the sums of numbers over all processes, computed on the CPU; sums of integers are
        exact."""
        if self.world_size == 1:
            return list(values)
        sums = torch.tensor(values, dtype=torch.float64)
        with report_lost_process():
            dist.all_reduce(sums)
        return sums.tolist()

    def all_reduce_sum(self, x: Tensor) -> Tensor:
        """Return the sum of a tensor over all processes, on its device."""
        return self.all_reduce(x, dist.ReduceOp.SUM)

    def all_reduce_max(self, x: Tensor) -> Tensor:
        """Return the maximum of a tensor over all processes, on its device."""
        return self.all_reduce(x, dist.ReduceOp.MAX)

    def all_reduce(self, x: Tensor, op: Any) -> Tensor:
        if self.world_size > 1:
            x = x.clone()
            with report_lost_process():
                dist.all_reduce(x, op)
        return x

    def gather_rows(self, x: Tensor) -> tuple[Tensor, slice]:
        """Return the rows of all processes by rank, and the slice of this process; counts may differ."""
        counts = [
            int(count)
            for count in self.sum_numbers(
                [len(x) * (rank == self.rank) for rank in range(self.world_size)]
            )
        ]
        begin = sum(counts[: self.rank])
        local_rows = slice(begin, begin + len(x))
        all_rows = x.new_zeros(sum(counts), *x.shape[1:])
        all_rows[local_rows] = x
        return self.all_reduce_sum(all_rows), local_rows

    def broadcast_object(self, value: Value) -> Value:
        """Return the value of the main process."""
        if self.world_size == 1:
            return value
        values = [value]
        with report_lost_process():
            dist.broadcast_object_list(values, src=0, device=torch.device("cpu"))
        return values[0]

    def all_gather_object(self, value: Value) -> list[Value]:
        """Return the values of all processes, by rank."""
        values: list[Any] = [value] * self.world_size
        if self.world_size > 1:
            with report_lost_process():
                dist.all_gather_object(values, value)
        return values

    def run_main_process_first(self, function: Callable[[], Value]) -> Value:
        """Call a function in the main process, then in the others, which exit silently if it failed."""
        if self.world_size == 1:
            return function()
        group: Any = dist.new_group(timeout=PREPARE_TIMEOUT, backend="gloo")
        succeeded = torch.zeros((), dtype=torch.int64)
        try:
            if self.is_main_process:
                result = function()
                succeeded += 1
        finally:
            with report_lost_process():
                dist.broadcast(succeeded, 0, group=group)
        if not succeeded:
            raise SystemExit(2)
        return result if self.is_main_process else function()


@contextmanager
def report_lost_process() -> Iterator[None]:
    """Convert a failed collective operation, which means that a process ended, to a short error."""
    try:
        yield
    except RuntimeError as error:
        cause = str(error).strip().splitlines()[0]
        raise ConnectionError(
            f"another process of the run has ended ({cause}); --resume auto resumes from the last checkpoint"
        ) from None


def get_world_size() -> int:
    """Return the number of processes that torchrun started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def init_distributed(device: str) -> Iterator[DistributedContext]:
    """Join torchrun's process group, with one CUDA device per process; else run a single process."""
    if dist.is_initialized():
        yield DistributedContext(dist.get_rank(), dist.get_world_size())
        return
    if not all(name in os.environ for name in TORCHRUN_VARIABLES):
        yield DistributedContext()
        return
    use_cuda = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    if use_cuda:
        if ":" in device:
            raise ValueError(
                f"device {device!r}, expected 'cuda': each process uses a separate device"
            )
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        if local_rank >= torch.cuda.device_count():
            raise ValueError(
                f"local rank {local_rank} on a machine with {torch.cuda.device_count()} CUDA devices; "
                "expected at most one process per device: lower --nproc-per-node"
            )
        torch.cuda.set_device(local_rank)
    with report_lost_process():
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if use_cuda else "gloo", timeout=COLLECTIVE_TIMEOUT
        )
    completed = False
    try:
        yield DistributedContext(dist.get_rank(), dist.get_world_size())
        with report_lost_process():
            dist.barrier()  # no process may destroy the group while another still uses it
        completed = True
    finally:
        if completed or not use_cuda:  # after an error NCCL would wait forever
            dist.destroy_process_group()
