"""look: the attention weights of every layer, computed from the inputs of the attention kernels.

The fast kernels still compute the output, which is bitwise identical with and without `look`. Other
kernels compute weights anyway: those are recorded, of hard attention the sample that was drawn."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from qkv.kernels.bias import ALL
from qkv.nn.attention_record import AttentionRecord, RecordingKernel, keep_random_state
from qkv.nn.recurrent import RecurrentStack
from qkv.nn.transformer import LayerCache, Stack
from qkv.torch_compat import eager_call, get_compiled_call, set_compiled_call

Paths = str | Callable[[str], object] | None


@contextmanager
def look(
    model: Any, paths: Paths = None, *, heads: slice = ALL, rows: slice = ALL
) -> Iterator[dict[str, Tensor]]:
    """Record the attention weights of every forward pass in the block: path -> (B, H, T, S).

    `paths` is a regular expression or a predicate on paths such as `decoder.layers.3.attention`.
    `heads` and `rows` select heads and queries, whose weights alone are computed: `rows=slice(-1, None)`
    is the last query. Layers that share parameters are distinguished by depth. A compiled network, or a
    CUDA graph of an engine, runs a second time as it was written, to record the weights."""
    weights: dict[str, Tensor] = {}

    def record(path: str, attention: AttentionRecord) -> None:
        weights[path] = attention.compute_weights(heads, rows)

    with record_attention(model, paths, record):
        yield weights
    if not weights:
        raise ValueError("no attention weights: call the model inside `with look(...)`")


@contextmanager
def record_attention(
    model: Any, paths: Paths, record: Callable[[str, AttentionRecord], None]
) -> Iterator[None]:
    """Call `record` with the path and the inputs of every attention that runs in the block."""
    net: nn.Module = getattr(model, "net", model)
    kernels = attention_kernels(net)
    is_selected = paths if callable(paths) else re.compile(paths or ".*").fullmatch
    if not kernels:
        raise ValueError("this model has no attention, expected one with attention to look at")
    if not any(map(is_selected, kernels)):
        raise ValueError(f"paths={paths!r} matches none of the paths {', '.join(kernels)}")
    paths_of: dict[RecordingKernel, list[str]] = {}  # of each module, in the order of calls
    for path, kernel in kernels.items():
        paths_of.setdefault(kernel, []).append(path)

    def record_call(kernel: RecordingKernel, attention: AttentionRecord) -> None:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return  # a CUDA graph would compute the weights in every later call
        path, *later = paths_of[kernel]
        paths_of[kernel] = [*later, path]
        if is_selected(path):
            record(path, attention)

    handles = [
        handle
        for kernel in paths_of
        for handle in kernel.register_record_hook(partial(record_call, kernel))
    ]
    compiled = get_compiled_call(net)
    if compiled is not None:  # hooks do not run inside a compiled graph

        def call_twice(batch: Any, *caches: Sequence[LayerCache] | None) -> Any:
            with keep_random_state(next(net.parameters()).device):
                eager_call(net, batch, *map(copy_caches, caches))
            return compiled(batch, *caches)

        set_compiled_call(net, call_twice)
    try:
        yield
    finally:
        set_compiled_call(net, compiled)
        for handle in handles:
            handle.remove()


def copy_caches(caches: Sequence[LayerCache] | None) -> Sequence[LayerCache] | None:
    """Return caches that a forward pass may update: static ones write what the next one overwrites."""
    return caches and [LayerCache(*map(copy, cache)) for cache in caches]


def attention_kernels(net: nn.Module) -> dict[str, RecordingKernel]:
    """Return every attention kernel by its path; shared layers occur once per depth."""
    return {
        f"{name}.{path}": kernel
        for name, stack in net.named_modules()
        if isinstance(stack, Stack | RecurrentStack)
        for path, kernel in stack.get_attention_kernels().items()
    }
