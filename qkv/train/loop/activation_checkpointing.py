"""Activation checkpointing: blocks store only their inputs and are recomputed in the backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from qkv.nn.transformer import Layer


def find_blocks(net: nn.Module) -> list[Layer]:
    return [module for module in net.modules() if isinstance(module, Layer)]


@contextmanager
def restore_block_forwards(net: nn.Module) -> Iterator[None]:
    """Restore the `forward` methods of the blocks on exit."""
    forwards = [(block, vars(block).get("forward")) for block in find_blocks(net)]
    try:
        yield
    finally:
        for block, forward in forwards:
            vars(block).pop("forward", None)
            if forward is not None:
                block.forward = forward  # type: ignore[method-assign]


def apply_activation_checkpointing(net: nn.Module) -> int:
    """Checkpoint every block and return their number; parameter names and results do not change."""
    blocks = find_blocks(net)
    if not blocks:
        raise ValueError(
            "train.activation_checkpointing is true, and the network has no attention layers, which it "
            "recomputes: set it to false"
        )
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)  # type: ignore[method-assign]
    return len(blocks)
