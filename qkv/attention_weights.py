"""look: attention weights of every layer, computed beside the fast kernels from what enters them.

The output of the model is the same to the bit whether or not anyone looks."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from qkv.nn.attention import Mix
from qkv.nn.transformer import Tower


@contextmanager
def look(model: Any, only: str | Callable[[str], object] | None = None) -> Iterator[dict[str, Tensor]]:
    """Within, every forward fills the dict that is yielded: path -> weights (B, H, T, S) of the last.

    `only` is a regular expression or a test of paths. Layers that share their weights are told apart
    by the depth at which they ran. A compiled network runs once more, uncompiled, for those who look."""
    net: nn.Module = getattr(model, "net", model)
    seen: dict[str, Tensor] = {}
    every = mixes(net)
    wanted = only if callable(only) else re.compile(only or ".*").fullmatch
    if not any(map(wanted, every)):
        raise ValueError(f"only={only!r} matches none of the paths {', '.join(every)}")
    ran: dict[Mix, list[str]] = {}  # the paths by which one module goes, in the order in which they run
    for path, mix in every.items():
        ran.setdefault(mix, []).append(path)

    def after(mix: Mix, inputs: tuple[Any, ...], output: Tensor) -> None:
        path = ran[mix][0]
        ran[mix] = [*ran[mix][1:], path]
        if wanted(path):
            q, k, _, where, *extra = inputs
            with torch.no_grad():
                seen[path] = mix.weights(q, k, where, *extra)

    handles = [mix.register_forward_hook(after) for mix in ran]
    compiled = net._compiled_call_impl
    if compiled is not None:  # hooks do not fire inside a compiled graph
        net._compiled_call_impl = lambda *args: (compiled(*args), net._call_impl(*args))[0]
    try:
        yield seen
    finally:
        net._compiled_call_impl = compiled
        for handle in handles:
            handle.remove()
    if not seen:
        raise ValueError("nothing was seen: no forward ran inside `with look(...)`")


def mixes(net: nn.Module) -> dict[str, Mix]:
    """Every attention by its path, shared layers once for each depth."""
    towers = [(name, tower) for name, tower in net.named_modules() if isinstance(tower, Tower)]
    blocks = [(f"{n}.layers.{depth}", t.layers[at]) for n, t in towers for depth, at in enumerate(t.order)]
    both = [(f"{path}.{x}", getattr(block, x)) for path, block in blocks for x in ("attend", "cross")]
    return {path: part.mix for path, part in both if part is not None}
