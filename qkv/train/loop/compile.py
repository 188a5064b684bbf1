"""Compilation of the blocks of a network and of the losses, in place. Does not depend on data."""

from __future__ import annotations

import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.fx.experimental import _config as config

from qkv.batch import Batch, Inputs
from qkv.data.batches.collate import get_attention_mask
from qkv.kernels.bias import AttentionBias
from qkv.nn.transformer import CrossInputs, LayerCache
from qkv.torch_compat import warm_compile_pool
from qkv.train.loop.activation_checkpointing import find_blocks, restore_block_forwards
from qkv.train.objectives.objective import Objective

BlockOutput = tuple[Tensor, dict[str, Tensor]]


def compile_objective(
    objective: Objective, device: torch.device, *, dynamic_shapes: bool
) -> Objective:
    """Return the objective with compiled losses."""
    if device.type != "cpu":
        start_compile_workers()
    # The cache may also contain graphs that were compiled with cuDNN.
    torch.compiler.config.cache_key_tag = "qkv without cudnn"
    return replace(
        objective,
        compute_losses=torch.compile(objective.compute_losses, dynamic=dynamic_shapes or None),
    )


@contextmanager
def compile_blocks(net: nn.Module, *, dynamic_shapes: bool) -> Iterator[None]:
    """Compile the blocks of the network within the context; equal blocks share one graph.

    The compile time of the full network would be proportional to its depth. With `dynamic_shapes`, one
    graph is used for batches of any shape: sizes that are equal in the first batch are not assumed to
    be equal in others ("duck shapes")."""
    with (
        restore_block_forwards(net),
        config.patch(use_duck_shape=False),  # type: ignore[attr-defined]
        warnings.catch_warnings(),
    ):
        # Dynamo reads .grad of every tensor.
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
        for block in find_blocks(net):
            block.forward = compile_block_forward(block.forward, dynamic_shapes=dynamic_shapes)  # type: ignore[method-assign]
        yield


def compile_block_forward(
    forward: Callable[..., BlockOutput], *, dynamic_shapes: bool
) -> Callable[..., BlockOutput]:
    """Compile the forward of a block as a graph that receives its bias tensors as inputs.

    If the first block computed them in its graph, for all blocks, it would need a separate graph."""

    def forward_with_biases(
        x: Tensor, bias: AttentionBias, key_states: Tensor | None, cross: CrossInputs | None,
        cache: LayerCache | None, bias_tensors: tuple[Tensor | None, Tensor | None],
    ) -> BlockOutput:  # fmt: skip
        bias = set_bias_tensor(bias, bias_tensors[0])
        cross = cross and (cross[0], set_bias_tensor(cross[1], bias_tensors[1]))
        return forward(x, bias, key_states, cross, cache)

    graph = torch.compile(forward_with_biases, dynamic=dynamic_shapes or None)

    def compiled_forward(
        x: Tensor, bias: AttentionBias, key_states: Tensor | None, cross: CrossInputs | None,
        cache: LayerCache | None,
    ) -> BlockOutput:  # fmt: skip
        bias_tensors = (get_bias_tensor(bias), get_bias_tensor(cross and cross[1]))
        return graph(clone_if_view(x), bias, key_states, cross, cache, bias_tensors)

    return compiled_forward


def get_bias_tensor(attention_bias: AttentionBias | None) -> Tensor | None:
    if attention_bias is None or attention_bias.kernel_name != "mask":
        return None
    return attention_bias.get_score_bias(None)


def set_bias_tensor(attention_bias: AttentionBias, bias: Tensor | None) -> AttentionBias:
    return (
        attention_bias if bias is None else replace(attention_bias, cached_tensors={"bias": bias})
    )


def add_attention_masks(batch: Batch) -> Batch:
    """Return the batch with explicit attention masks, so that one graph works with and without
    padding."""

    def add_mask(inputs: Inputs | None) -> Inputs | None:
        if inputs is None or inputs.input_ids is None:
            return inputs
        return replace(
            inputs,
            attention_mask=get_attention_mask(inputs),
            position_ids=clone_if_view(inputs.position_ids),
        )

    return replace(batch, encoder=add_mask(batch.encoder), decoder=add_mask(batch.decoder))


def clone_if_view(x: Tensor) -> Tensor:
    """Return a tensor that is not a view, because views are compiled to different graphs."""
    return x if x._base is None else x.clone()


def start_compile_workers() -> None:
    """Start the compile workers of inductor, which then ignore SIGTERM.

    A signal that ends a run often reaches all its processes (timeout, Slurm). The trainer then saves and
    stops, but would wait forever for a kernel if its compile worker had ended."""
    if (
        threading.current_thread() is not threading.main_thread()
    ):  # only the main thread can change signal handlers
        return
    old_handler = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        warm_compile_pool()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if old_handler is None else old_handler)
