"""look: attention weights of every layer, computed beside the fast kernels from what enters them.

The output of the model is the same to the bit whether or not anyone looks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from qkv.nn.attention import Mix
from qkv.nn.stack import Tower


class Seen(dict[str, Tensor]):
    """Weights (B, H, T, S) by path: `encoder.layers.0.attend`, `decoder.layers.3.cross`. The last forward's."""


@contextmanager
def look(model: Any, only: str | Callable[[str], bool] | None = None) -> Iterator[Seen]:
    """Within, every forward fills the dict that is yielded; `only` is a path, a regular expression or a test of paths.

    Layers that share their weights are told apart by the depth at which they ran. A compiled network runs once
    more, uncompiled, for those who look."""
    net: nn.Module = getattr(model, "net", model)
    seen = Seen()
    paths = {path: mix for path, mix in _mixes(net).items() if _wanted(path, only)}
    if not paths:
        raise ValueError(f"only={only!r} matches none of the paths {', '.join(_mixes(net))}")
    with ExitStack() as stack:
        for mix in dict.fromkeys(paths.values()):
            own = [path for path, each in paths.items() if each is mix]
            every = [path for path, each in _mixes(net).items() if each is mix]
            stack.enter_context(_hook(mix, every, set(own), seen))
        stack.enter_context(_uncompiled(net))
        yield seen
    if not seen:
        raise ValueError("nothing was seen: no forward ran inside `with look(...)`")


def _mixes(net: nn.Module) -> dict[str, Mix]:
    """Every attention by its path, shared layers once for each depth."""
    found: dict[str, Mix] = {}
    for name, tower in net.named_modules():
        if isinstance(tower, Tower):
            for depth, stored in enumerate(tower.order):
                block = tower.layers[stored]
                for part in ("attend", "cross"):
                    if getattr(block, part) is not None:
                        found[f"{name}.layers.{depth}.{part}"] = getattr(block, part).mix
    return found


def _wanted(path: str, only: str | Callable[[str], bool] | None) -> bool:
    if only is None or callable(only):
        return only is None or only(path)
    return path == only or re.fullmatch(only, path) is not None


@contextmanager
def _hook(mix: Mix, every: list[str], own: set[str], seen: Seen) -> Iterator[None]:
    calls = 0

    def after(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        nonlocal calls
        path = every[calls % len(every)]
        calls += 1
        if path in own:
            q, k, _, where, *extra = inputs
            with torch.no_grad():
                seen[path] = mix.weights(q, k, where, *extra)

    handle = mix.register_forward_hook(after)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _uncompiled(net: nn.Module) -> Iterator[None]:
    """Hooks do not fire inside a compiled graph: the compiled output is given, and a plain forward is looked at."""
    compiled = net._compiled_call_impl
    if compiled is None:
        yield
        return

    def both(*args: Any, **kwargs: Any) -> Any:
        out = compiled(*args, **kwargs)
        with torch.no_grad():
            net._call_impl(*args, **kwargs)
        return out

    net._compiled_call_impl = both  # type: ignore[assignment]
    try:
        yield
    finally:
        net._compiled_call_impl = compiled
