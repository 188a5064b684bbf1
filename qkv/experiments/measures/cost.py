"""Time and memory of training and of decoding, by the length of the text."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.batch import Batch, Inputs
from qkv.decode import GenerationConfig
from qkv.decode.engine import Engine
from qkv.experiments.measures import CellContext
from qkv.experiments.peak_memory import PeakMemory
from qkv.experiments.table import Measurement
from qkv.experiments.training import build_cell_model
from qkv.memory import is_memory_error
from qkv.nn.network import Network
from qkv.pictures.models.tree import count_parameters

BYTE_VALUES = 256


def measure_cost(
    context: CellContext,
    *,
    device: str,
    model: Mapping[str, Any],
    length: int,
    batch_tokens: int,
    precision: Literal["fp32", "bf16"],
    segment: int = 0,
    repeats: int = 3,
    new_tokens: int = 16,
) -> Measurement:
    """Measure a language model on random tokens: a point for training and one for decoding.

    Training is the forward and the backward pass of `batch_tokens` in rows of `length`; with `segment`,
    rows are read in segments, each with its own backward pass and the memory of the one before.
    Decoding generates tokens after a prompt of `length`, one row at a time. `microseconds` is the
    median per token; `memory_mb` the peak beyond the weights and their gradients, with the cache.
    Without enough memory, a point has neither. The device of the context is `device`."""
    net = build_cost_network(context, model, length + new_tokens + 1)
    works: dict[str, Callable[[], Cost]] = {
        "training": lambda: measure_training(
            net, max(1, batch_tokens // length), length, precision, segment, repeats
        ),
        "decoding": lambda: measure_decoding(net, length, precision, new_tokens),
    }
    points = []
    for work, measure in works.items():
        try:
            cost = measure()
        except Exception as error:
            if not is_memory_error(error):
                raise
            cost = Cost(None, None)
        points.append({"work": work, **cost._asdict()})
    return Measurement(metrics={"num_parameters": count_parameters(net)}, points=tuple(points))


def measure_training(
    net: Network, rows: int, length: int, precision: str, segment: int, repeats: int
) -> Cost:
    """Measure forward and backward passes of random rows."""
    device = next(net.parameters()).device
    ids = torch.randint(BYTE_VALUES, (rows, length), device=device)
    net.train()

    def run() -> None:
        mems = None
        for part in ids.split(segment or length, dim=1):
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
                outputs = net(build_text_batch(net, part, mems))
                loss = F.cross_entropy(outputs["logits"].flatten(0, 1).float(), part.flatten())
            loss.backward()
            mems = outputs.get("mems")

    run()  # allocates the gradients
    memory = PeakMemory(device)
    seconds = [time_call(run, device) for _ in range(repeats)]
    return Cost.create(seconds, rows * length, memory)


def measure_decoding(net: Network, length: int, precision: str, new_tokens: int) -> Cost:
    """Measure the steps of the engine after the first, which reads the prompt."""
    net.zero_grad(set_to_none=True)
    net.to(torch.bfloat16 if precision == "bf16" else torch.float32).eval()
    prompt = torch.randint(BYTE_VALUES, (length,)).tolist()
    config = GenerationConfig(max_new_tokens=new_tokens + 1, decoder_start_token_id=0)
    memory = PeakMemory(next(net.parameters()).device)
    engine = Engine(net)
    source = None if net.encoder is None else [0]
    engine.add_request(prompt, source=source, generation_config=config)
    engine.step()
    memory.reset()
    seconds = []
    while engine.has_unfinished_requests:
        seconds.append(time_call(engine.step, memory.device))
    return Cost.create(seconds, 1, memory)


class Cost(NamedTuple):
    """The median time per token and the peak memory; None: not known."""

    microseconds: float | None
    memory_mb: float | None

    @staticmethod
    def create(seconds: Sequence[float], num_tokens: int, memory: PeakMemory) -> Cost:
        peak = memory.read_peak()
        microseconds = statistics.median(seconds) / num_tokens * 1e6
        return Cost(microseconds, None if peak is None else peak / 1e6)


def build_cost_network(context: CellContext, model: Mapping[str, Any], length: int) -> Network:
    """Build the network; a family with learned positions gets as many as it needs."""
    arguments = {"vocab_size": BYTE_VALUES, **model}
    if "max_positions" in arguments:
        arguments["max_positions"] = length
    net = build_cell_model(context, arguments).net
    assert isinstance(net, Network)
    return net


def build_text_batch(net: Network, ids: Tensor, mems: Tensor | None) -> Batch:
    """Return a batch for a language model; the source of an encoder-decoder is one token."""
    encoder = None if net.encoder is None else Inputs.create(torch.zeros_like(ids[:, :1]))
    return Batch(encoder=encoder, decoder=Inputs.create(ids), mems=mems)


def time_call(call: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of a call, until the device has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start_time = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start_time
