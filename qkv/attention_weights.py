"""look: the attention weights of every layer, computed from the inputs of the attention kernels.

The fast kernels still compute the output, which is bitwise identical with and without `look`. Other
kernels compute weights anyway: those are recorded, of hard attention the sample that was drawn."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from qkv.nn.recurrent import RecurrentStack
from qkv.nn.scored_attention import WeightsKernel
from qkv.nn.transformer import Stack
from qkv.torch_compat import eager_call, get_compiled_call, set_compiled_call


@contextmanager
def look(
    model: Any, paths: str | Callable[[str], object] | None = None
) -> Iterator[dict[str, Tensor]]:
    """Record the attention weights of every forward pass in the block: path -> (B, H, T, S).

    `paths` is a regular expression or a predicate on paths such as `decoder.layers.3.attention`.
    Layers that share parameters are distinguished by depth. A compiled network runs a second time,
    uncompiled, to record the weights."""
    net: nn.Module = getattr(model, "net", model)
    weights: dict[str, Tensor] = {}
    kernels = attention_kernels(net)
    is_selected = paths if callable(paths) else re.compile(paths or ".*").fullmatch
    if not kernels:
        raise ValueError("this model has no attention, expected one with attention to look at")
    if not any(map(is_selected, kernels)):
        raise ValueError(f"paths={paths!r} matches none of the paths {', '.join(kernels)}")
    paths_of: dict[WeightsKernel, list[str]] = {}  # paths of each module, in the order of calls
    for path, kernel in kernels.items():
        paths_of.setdefault(kernel, []).append(path)

    def record(kernel: WeightsKernel, compute_weights: Callable[[], Tensor]) -> None:
        path, *later = paths_of[kernel]
        paths_of[kernel] = [*later, path]
        if is_selected(path):
            weights[path] = compute_weights()

    handles = [kernel.register_weights_hook(partial(record, kernel)) for kernel in paths_of]
    compiled = get_compiled_call(net)
    if compiled is not None:  # hooks do not run inside a compiled graph

        def call_twice(*args: Any) -> Any:
            out = compiled(*args)
            eager_call(net, *args)
            return out

        set_compiled_call(net, call_twice)
    try:
        yield weights
    finally:
        set_compiled_call(net, compiled)
        for handle in handles:
            handle.remove()
    if not weights:
        raise ValueError("no attention weights: call the model inside `with look(...)`")


def attention_kernels(net: nn.Module) -> dict[str, WeightsKernel]:
    """Return every attention kernel by its path; shared layers occur once per depth."""
    return {
        f"{name}.{path}": kernel
        for name, stack in net.named_modules()
        if isinstance(stack, Stack | RecurrentStack)
        for path, kernel in stack.get_attention_kernels().items()
    }
