"""Recompute: blocks keep only what enters them, and run again on the way back: less memory, more work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from qkv.nn.transformer import Block


def blocks_of(net: nn.Module) -> list[Block]:
    return [module for module in net.modules() if isinstance(module, Block)]


@contextmanager
def forwards_kept(net: nn.Module) -> Iterator[None]:
    """Whatever is done within to how blocks run is undone at the end."""
    found = [(block, vars(block).get("forward")) for block in blocks_of(net)]
    try:
        yield
    finally:
        for block, before in found:
            vars(block).pop("forward", None)
            if before is not None:
                block.forward = before  # type: ignore[method-assign]


def recompute(net: nn.Module) -> int:
    """Applied from outside to every block; returns how many. Names and numbers stay, dropout's too."""
    blocks = blocks_of(net)
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)  # type: ignore[method-assign]
    return len(blocks)
