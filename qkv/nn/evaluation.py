"""A network in evaluation mode beside the same network in training mode.

The mode of a network is one flag for all threads: a thread that calls `net.eval()` and `net.train()`
around a forward pass changes the results of other threads, such as those of a training loop."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

from qkv.torch_compat import set_compiled_call

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def view_in_evaluation_mode(net: ModuleT) -> ModuleT:
    """Return a network in evaluation mode with the same tensors and hooks, without changing the mode.

    It is the network itself if that is in evaluation mode, else new modules, not compiled, that share
    the parameters and buffers."""
    if not any(module.training for module in net.modules()):
        return net
    views: dict[nn.Module, nn.Module] = {}
    for module in net.modules():
        view = views[module] = object.__new__(type(module))
        view.__dict__.update(module.__dict__)
        view.training = False
        set_compiled_call(view, None)  # it would call the original module
    for module, view in views.items():
        children = module._modules.items()
        view.__dict__["_modules"] = {
            name: None if child is None else views[child] for name, child in children
        }
    view = views[net]
    assert isinstance(view, type(net))
    return view
