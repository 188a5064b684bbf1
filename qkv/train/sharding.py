"""Parallelism: distribution of a network over the processes of a run. Does not depend on data or losses.

    strategy   each process holds                  reads            communicates
    ddp        the network                         its own rows     gradients, once per step
    fsdp       a shard of every parameter          its own rows     parameters, when they are needed
    tp         some heads, some of every FFN       the same rows    activations, twice per block

Parameter names and the call `net(batch)` do not change."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from qkv.nn.attention import Attention
from qkv.nn.feed_forward import FeedForward
from qkv.nn.lora import LoraLinear
from qkv.nn.recurrent import RecurrentStack
from qkv.nn.relative_position import AlibiBias, RelativeBucketBias
from qkv.nn.scored_attention import ScoredAttentionKernel
from qkv.nn.transformer import Layer, Stack
from qkv.spec import PerHead
from qkv.train.distributed import DistributedContext, report_lost_process
from qkv.train.loop.muon import gather_full_tensor

Element = TypeVar("Element")
# Minimum number of parameters for which "auto" selects fsdp; each needs 16 bytes with gradient and moments.
FSDP_MIN_PARAMETERS = 1_000_000_000
BUCKET_SIZE = 8_000_000  # elements per gradient all-reduce


@dataclass(frozen=True)
class Sharding:
    """A network distributed over processes; `dp_size` of them share the rows of a batch."""

    strategy: str
    distributed: DistributedContext
    dp_rank: int
    dp_size: int

    def assign_micro_batches(self, micro_batches: Sequence[Element]) -> list[tuple[Element, bool]]:
        """Return this process's micro-batches, and whether each counts towards the loss.

        All processes run the same number, because they synchronize: if there are too few micro-batches,
        the first one is run again and not counted."""
        assigned = [
            (micro_batch, True) for micro_batch in micro_batches[self.dp_rank :: self.dp_size]
        ]
        num_missing = -(-len(micro_batches) // self.dp_size) - len(assigned)
        return assigned + [(micro_batches[0], False)] * num_missing

    def all_reduce_sum(self, x: Tensor) -> Tensor:
        """Return the sum of a tensor over the processes that share a batch."""
        return self.distributed.all_reduce_sum(x) if self.dp_size > 1 else x

    def gather_rows(self, x: Tensor) -> tuple[Tensor, slice]:
        """Return the rows of the full batch, and the slice of the rows of this process."""
        return self.distributed.gather_rows(x) if self.dp_size > 1 else (x, slice(len(x)))

    def all_reduce_gradients(self, net: nn.Module) -> None:
        """Sum the gradients over the processes that share a batch; FSDP has already summed its
        gradients."""
        if self.dp_size > 1:
            gradients = [p.grad for p in net.parameters() if p.grad is not None]
            for bucket in bucket_tensors([x for x in gradients if not hasattr(x, "full_tensor")]):
                flat = torch.cat([x.flatten() for x in bucket])
                with report_lost_process():
                    dist.all_reduce(flat)
                sums = flat.split([x.numel() for x in bucket])
                torch._foreach_copy_(
                    bucket, [y.view_as(x) for y, x in zip(sums, bucket, strict=True)]
                )


def parallelize(net: nn.Module, strategy: str, distributed: DistributedContext) -> Sharding:
    """Distribute a network in place; all processes receive the weights of the main process."""
    if strategy == "auto":
        num_parameters = sum(p.numel() for p in net.parameters())
        strategy = "fsdp" if num_parameters > FSDP_MIN_PARAMETERS else "ddp"
    if distributed.world_size == 1:
        return Sharding(strategy, distributed, 0, 1)
    device = next(net.parameters()).device
    if device.type not in ("cpu", "cuda"):
        raise ValueError(
            f"device {device} with {distributed.world_size} processes: expected cpu or cuda"
        )
    if strategy == "tp":
        check_tensor_parallel(net, distributed.world_size)
    with report_lost_process():
        for p in net.parameters():
            dist.broadcast(p.data, 0)
    if strategy != "ddp":
        mesh = init_device_mesh(device.type, (distributed.world_size,))
        (apply_fsdp if strategy == "fsdp" else apply_tensor_parallel)(net, mesh)
    if strategy == "tp":
        return Sharding(strategy, distributed, 0, 1)
    return Sharding(strategy, distributed, distributed.rank, distributed.world_size)


def bucket_tensors(tensors: list[Tensor]) -> Iterator[list[Tensor]]:
    """Group tensors of one dtype into buckets of about BUCKET_SIZE elements."""
    for dtype in dict.fromkeys(x.dtype for x in tensors):
        bucket: list[Tensor] = []
        for x in (x for x in tensors if x.dtype == dtype):
            if bucket and sum(y.numel() for y in bucket) + x.numel() > BUCKET_SIZE:
                yield bucket
                bucket = []
            bucket.append(x)
        yield bucket


def apply_fsdp(net: nn.Module, mesh: DeviceMesh) -> None:
    """Shard every parameter; those of a block are gathered while it runs, the others for the whole
    forward pass.

    A block that shares parameters with another (Transformer-XL's u and v) is not wrapped separately."""
    num_uses = Counter(p for module in net.modules() for p in module.parameters(recurse=False))
    for block in [module for module in net.modules() if isinstance(module, Layer)]:
        block_uses = Counter(
            p for module in block.modules() for p in module.parameters(recurse=False)
        )
        if all(num_uses[p] == count for p, count in block_uses.items()):
            fully_shard(block, mesh=mesh)
    scalars = {p for p in net.parameters() if not p.dim()}  # CLIP's temperature cannot be sharded
    # Resharding after forward keeps the parameter names on the shards.
    fully_shard(net, mesh=mesh, reshard_after_forward=True, ignored_params=scalars)
    # No loss writes into such a view.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")
    for module in net.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)  # losses are already divided by the full batch
            module.set_force_sum_reduction_for_comms(True)


def apply_tensor_parallel(net: nn.Module, mesh: DeviceMesh) -> None:
    """Split attention heads and feed-forward layers; embeddings, norms and heads are replicated."""
    for module in net.modules():
        if isinstance(module, Attention):
            parallelize_module(module, mesh, build_tensor_parallel_plan("q k v", "o"))
        elif isinstance(module, FeedForward):
            colwise = "up" if module.gate is None else "up gate"
            parallelize_module(module, mesh, build_tensor_parallel_plan(colwise, "down"))
        elif isinstance(module, RelativeBucketBias | AlibiBias):
            module.register_forward_hook(partial(slice_local_heads, mesh))


def build_tensor_parallel_plan(colwise: str, rowwise: str) -> dict[str, ParallelStyle]:
    return {**{name: ColwiseParallel() for name in colwise.split()}, rowwise: RowwiseParallel()}


def slice_local_heads(
    mesh: DeviceMesh, module: nn.Module, inputs: tuple[object, ...], bias: Tensor
) -> Tensor:
    """Return the local heads, (B, H, T, S) -> (B, H/world_size, T, S); gradients are gathered for the
    replicated table."""
    full_bias = DTensor.from_local(bias, mesh, [Replicate()], run_check=False)
    return full_bias.redistribute(placements=[Shard(1)]).to_local()


def check_tensor_parallel(net: nn.Module, world_size: int) -> None:
    """Raise an error that lists all sizes that the number of processes does not divide, and all
    unsupported parts."""
    problems: dict[str, None] = {}  # an ordered set
    for module in net.modules():
        if isinstance(module, Attention):
            for layer, name in ((module.q, "heads"), (module.k, "key-value heads")):
                count = layer.weight.shape[0] // module.head_dim
                if count % world_size:
                    problems[f"{count} {name}"] = None
            if module.relative is not None:
                problems["Transformer-XL's relative positions"] = None
            if isinstance(module.kernel, ScoredAttentionKernel):
                problems["attention other than the softmax of dot products"] = None
        elif isinstance(module, FeedForward) and module.up.weight.shape[0] % world_size:
            problems[f"a feed-forward width of {module.up.weight.shape[0]}"] = None
        elif isinstance(module, LoraLinear):
            problems["LoRA adapters"] = None
        elif isinstance(module, RecurrentStack):
            problems["recurrent layers"] = None
        elif isinstance(module, Stack) and any(
            isinstance(layer.attention.pattern, PerHead) for layer in module.spec.layers
        ):
            problems["heads with different patterns"] = None
    if problems:
        raise ValueError(
            f"train.parallelism 'tp': {', '.join(problems)} cannot be split over {world_size} "
            "processes; expected counts that they divide, or 'ddp' or 'fsdp'"
        )


@contextmanager
def summon_full_params(net: nn.Module, distributed: DistributedContext) -> Iterator[None]:
    """Gather the full parameters of the network on the CPU in the main process, to save it.

    The other processes contribute their shards, and must not use the network within the context."""
    sharded = [
        (module, name, p)
        for module in net.modules()
        for name, p in module._parameters.items()
        if p is not None and hasattr(p, "full_tensor")
    ]
    full_params: dict[Tensor, nn.Parameter] = {}
    for _, _, p in sharded:
        if p not in full_params:
            full = gather_full_tensor(p.detach())
            data = full.cpu() if distributed.is_main_process else full[:0]
            full_params[p] = nn.Parameter(data, requires_grad=p.requires_grad)
    for module, name, p in sharded:
        module._parameters[name] = full_params[p]
    try:
        yield
    finally:
        for module, name, p in sharded:
            module._parameters[name] = p
