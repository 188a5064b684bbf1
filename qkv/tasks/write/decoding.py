"""The networks of generation: that of the model, or a copy optimized for inference, and a draft model.

On a CPU, an optimized copy (`decode.optimize_model`) is faster for several rows, with the same
results. Building it takes as long as it saves in `MIN_STEPS_FOR_COPY` steps, so that it is built after
that number of steps of the original network, and a single short text is not delayed. If training or an
adapter changes the network later, the copy is discarded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from qkv.decode import Engine, optimize_model
from qkv.decode.request_checks import check_assistant_model
from qkv.model.load import load
from qkv.model.model import Model
from qkv.nn.network import Network
from qkv.torch_compat import get_compiled_call

MIN_ROWS_FOR_COPY = 4  # for fewer rows, the original network is as fast
MIN_STEPS_FOR_COPY = 64
MAX_COPY_BYTES = 1 << 32  # of weights, which are in memory twice


@dataclass
class OptimizedCopy:
    """The tensor versions of a network, its number of decoding steps, and its copy after it is built."""

    tensor_versions: list[tuple[int, int]]
    num_steps: int = 0
    copy: Network | None = None


_copies: WeakKeyDictionary[Network, OptimizedCopy] = WeakKeyDictionary()


@contextmanager
def select_engine(
    net: Network, num_rows: int, create_engine: Callable[[Network], Engine] = Engine
) -> Iterator[Engine]:
    """Yield an engine for a number of rows that decode together."""
    if num_rows < MIN_ROWS_FOR_COPY or not can_use_copy(net):
        yield create_engine(net)
        return
    versions = [(tensor.data_ptr(), tensor._version) for tensor in list_tensors(net)]
    entry = _copies.get(net)
    if entry is None or entry.tensor_versions != versions:
        entry = OptimizedCopy(versions)
        _copies[net] = entry
    if entry.copy is None and entry.num_steps >= MIN_STEPS_FOR_COPY:
        entry.copy = optimize_model(net)
    engine = create_engine(entry.copy or net)
    yield engine
    entry.num_steps += engine.num_steps


def list_tensors(net: nn.Module) -> list[Tensor]:
    return [*net.parameters(), *net.buffers()]


def can_use_copy(net: nn.Module) -> bool:
    """Return whether a copy is faster and no hook observes the original network."""
    tensors = list_tensors(net)
    return (
        # Inference tensors have no versions.
        all(tensor.device.type == "cpu" and not tensor.is_inference() for tensor in tensors)
        and all(x.dtype == torch.float32 for x in tensors if x.is_floating_point())
        and sum(tensor.nbytes for tensor in tensors) <= MAX_COPY_BYTES
        and get_compiled_call(net) is None
        and not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
    )


def load_assistant_model(model: Model, assistant_model: Model | str | Path) -> Model:
    """Return the draft model of a model, loaded if it is a folder or a hub id."""
    if not isinstance(assistant_model, str | Path | Model):
        raise ValueError(
            f"assistant_model is a {type(assistant_model).__name__}, "
            "expected a Model, a folder or a hub id"
        )
    if not isinstance(assistant_model, Model):
        assistant_model = load(assistant_model, device=str(model.device))
    assistant = assistant_model
    if not isinstance(assistant.net, Network) or not isinstance(model.net, Network):
        raise ValueError("assistant_model is not a model that generates text, expected one")
    if assistant.device != model.device:
        raise ValueError(
            f"assistant_model is on {assistant.device}, expected {model.device}, as the model: "
            "move it with assistant_model.to(...)"
        )
    if assistant.tokenizer is not None and model.tokenizer is not None:
        check_vocabularies(model.tokenizer.get_vocab(), assistant.tokenizer.get_vocab())
    check_assistant_model(model.net, assistant.net)
    return assistant


def check_vocabularies(vocabulary: dict[str, int], draft_vocabulary: dict[str, int]) -> None:
    """Raise an error that names a token if the vocabulary of a draft model is another one."""
    if draft_vocabulary == vocabulary:
        return
    tokens = [*vocabulary, *draft_vocabulary]
    token = next(token for token in tokens if draft_vocabulary.get(token) != vocabulary.get(token))
    raise ValueError(
        f"assistant_model has another vocabulary: token {token!r} has the id "
        f"{draft_vocabulary.get(token)}, expected {vocabulary.get(token)}; "
        "use a model with the same tokenizer"
    )
