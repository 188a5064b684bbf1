"""Spread: how a network lies on the processes of a run. Knows no loss and no data.

    kind     each process holds                 reads                what is sent
    copy     the network                        rows of its own      gradients, once a step
    shard    a slice of every tensor            rows of its own      tensors, when they are needed (FSDP)
    tensor   some heads, some of every feed     the same rows        states, twice a block

It is done from outside: names stay what they are, and `net(batch)` the way in."""

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
from qkv.nn.feed_forward import Feed
from qkv.nn.lora import Lora
from qkv.nn.relative_position import AlibiBias, BucketBias
from qkv.nn.transformer import Block, Tower
from qkv.spec import ByHead
from qkv.train.distributed import Team, heard
from qkv.train.loop.muon import whole

Dealt = TypeVar("Dealt")
LARGE = 1_000_000_000  # parameters; with gradients and moments, 16 bytes each, copies fill small devices
BUCKET = 8_000_000  # numbers that are sent at once


@dataclass(frozen=True)
class Spread:
    """A network on a team. Rows are shared out among `world` processes, of which this is number `rank`."""

    kind: str
    team: Team
    rank: int
    world: int

    def deal(self, parts: Sequence[Dealt]) -> list[tuple[Dealt, bool]]:
        """This process's parts of a batch, and whether they count.

        All run as many: where there are too few, one is run for company, since the others wait for it."""
        own = [(part, True) for part in parts[self.rank :: self.world]]
        spare = -(-len(parts) // self.world) - len(own)
        return own + [(parts[0], False)] * spare

    def total(self, x: Tensor) -> Tensor:
        """The sum over all rows of a batch of what each process has of it."""
        return self.team.total(x) if self.world > 1 else x

    def rows(self, x: Tensor) -> tuple[Tensor, slice]:
        """The rows of a batch that all processes have of it, and where this one's are."""
        return self.team.rows(x) if self.world > 1 else (x, slice(len(x)))

    def join(self, net: nn.Module) -> None:
        """Gradients of the whole batch, where each process has those of its rows; FSDP has summed its own."""
        if self.world > 1:
            whole = [p.grad for p in net.parameters() if p.grad is not None]
            for bucket in buckets([grad for grad in whole if not hasattr(grad, "full_tensor")]):
                flat = torch.cat([grad.flatten() for grad in bucket])
                with heard():
                    dist.all_reduce(flat)
                sums = flat.split([grad.numel() for grad in bucket])
                torch._foreach_copy_(bucket, [x.view_as(grad) for x, grad in zip(sums, bucket, strict=True)])


def spread(net: nn.Module, kind: str, team: Team) -> Spread:
    """Lays the network on the team, in place; all have the weights of the first."""
    if kind == "auto":
        kind = "shard" if sum(p.numel() for p in net.parameters()) > LARGE else "copy"
    if team.world == 1:
        return Spread(kind, team, 0, 1)
    device = next(net.parameters()).device
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device {device}: {team.world} processes expect cpu or cuda")
    if kind == "tensor":
        check_splits(net, team.world)
    with heard():
        for p in net.parameters():
            dist.broadcast(p.data, 0)
    if kind != "copy":
        mesh = init_device_mesh(device.type, (team.world,))
        (shard if kind == "shard" else split)(net, mesh)
    return Spread(kind, team, 0, 1) if kind == "tensor" else Spread(kind, team, team.rank, team.world)


def buckets(tensors: list[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors of one kind of number that are sent together."""
    for dtype in dict.fromkeys(x.dtype for x in tensors):
        held: list[Tensor] = []
        for x in (x for x in tensors if x.dtype == dtype):
            if held and sum(y.numel() for y in held) + x.numel() > BUCKET:
                yield held
                held = []
            held.append(x)
        yield held


def shard(net: nn.Module, mesh: DeviceMesh) -> None:
    """Slices of every tensor; a block's are gathered while it runs, the rest while the network does.

    A block whose tensors are another's too (Transformer-XL's u and v) is a part of the rest."""
    owners = Counter(p for module in net.modules() for p in module.parameters(recurse=False))
    for block in [module for module in net.modules() if isinstance(module, Block)]:
        inside = Counter(p for module in block.modules() for p in module.parameters(recurse=False))
        if all(owners[p] == count for p, count in inside.items()):
            fully_shard(block, mesh=mesh)
    numbers = {p for p in net.parameters() if not p.dim()}  # CLIP's temperature: there is nothing to slice
    fully_shard(net, mesh=mesh, reshard_after_forward=True, ignored_params=numbers)  # names lead to slices
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")  # no loss writes into it
    for part in net.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)  # losses are shares of the whole batch already
            part.set_force_sum_reduction_for_comms(True)


def split(net: nn.Module, mesh: DeviceMesh) -> None:
    """Heads and the insides of feeds, shared out; embeddings, norms and heads on top are in every process."""
    for module in net.modules():
        if isinstance(module, Attention):
            parallelize_module(module, mesh, wide("q k v", "o"))
        elif isinstance(module, Feed):
            parallelize_module(module, mesh, wide("up" if module.gate is None else "up gate", "down"))
        elif isinstance(module, BucketBias | AlibiBias):
            module.register_forward_hook(partial(own_heads, mesh))


def wide(out: str, back: str) -> dict[str, ParallelStyle]:
    return {**{name: ColwiseParallel() for name in out.split()}, back: RowwiseParallel()}


def own_heads(mesh: DeviceMesh, module: nn.Module, given: tuple[object, ...], bias: Tensor) -> Tensor:
    """(B, H, T, S) -> (B, H/world, T, S); its gradient is gathered again, for the table is everyone's."""
    whole_bias = DTensor.from_local(bias, mesh, [Replicate()], run_check=False)
    return whole_bias.redistribute(placements=[Shard(1)]).to_local()


def check_splits(net: nn.Module, world: int) -> None:
    """Names every count that the processes do not divide, and what is not shared out at all."""
    wrong: dict[str, None] = {}
    for module in net.modules():
        if isinstance(module, Attention):
            for layer, what in ((module.q, "heads"), (module.k, "heads of keys")):
                count = layer.weight.shape[0] // module.head_dim
                if count % world:
                    wrong[f"{count} {what}"] = None
            if module.relative is not None:
                wrong["Transformer-XL's distances, which are learned by head"] = None
        elif isinstance(module, Feed) and module.up.weight.shape[0] % world:
            wrong[f"a feed of {module.up.weight.shape[0]}"] = None
        elif isinstance(module, Lora):
            wrong["adapters"] = None
        elif isinstance(module, Tower) and any(
            isinstance(layer.attend.pattern, ByHead) for layer in module.stack.layers
        ):
            wrong["heads of different patterns"] = None
    if wrong:
        raise ValueError(
            f"learn.parallel 'tensor': {', '.join(wrong)} cannot be shared out among {world} processes; "
            "expected numbers that they divide, or 'copy' or 'shard'"
        )


@contextmanager
def gathered(net: nn.Module, team: Team) -> Iterator[None]:
    """The network with whole tensors, in the memory of the host, for the first process to write.

    The others hand in their slices, and must not use the network meanwhile."""
    places = [
        (module, name, p)
        for module in net.modules()
        for name, p in module._parameters.items()
        if p is not None and hasattr(p, "full_tensor")
    ]
    made: dict[Tensor, nn.Parameter] = {}
    for _, _, p in places:
        if p not in made:
            full = whole(p.detach())
            made[p] = nn.Parameter(full.cpu() if team.first else full[:0], requires_grad=p.requires_grad)
    for module, name, p in places:
        module._parameters[name] = made[p]
    try:
        yield
    finally:
        for module, name, p in places:
            module._parameters[name] = p
