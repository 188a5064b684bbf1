"""Explorer: answers the requests of the page about one or two models. Does not depend on HTTP.

Traces are kept for the requests that follow; the oldest ones go when their records need too much
memory. The page asks for a trace again that is gone."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.explorer.generation.beams import search_beams
from qkv.explorer.generation.steps import run_step
from qkv.explorer.inputs.builder import MAX_TOKENS, InputBuilder
from qkv.explorer.inputs.examples import list_examples
from qkv.explorer.inputs.images import hash_image, open_uploaded_image, reads_clips
from qkv.explorer.inputs.trace_inputs import UserInput
from qkv.explorer.server.requests import (
    parse_flag,
    parse_heads,
    parse_integer,
    parse_range,
    read_settings,
    read_text,
    read_token_ids,
)
from qkv.explorer.trace.patterns import list_layer_masks
from qkv.explorer.trace.score_parts import ScorePart, list_score_parts
from qkv.explorer.trace.trace import MAX_RECORD_BYTES, Trace
from qkv.explorer.view_settings import ViewSettings
from qkv.model.model import Model
from qkv.nn.recurrent import RecurrentStack
from qkv.nn.transformer import Stack
from qkv.tasks.images import ImageInput
from qkv.validate import check_number, shorten_repr

MAX_TRACES = 32
MAX_IMAGES = 4
MAX_ANSWER_WEIGHTS = 2**22  # weights of one answer
FULL_WEIGHT = 65_535  # the uint16 of the weight 1


class UnknownTraceError(ValueError):
    """The trace was never computed, or is gone."""


@dataclass(frozen=True, kw_only=True)
class NamedModel:
    """A model with its name on the page."""

    name: str
    inputs: InputBuilder


class Explorer:
    """One or two models, and the traces of what they have read."""

    def __init__(self, main: NamedModel, other: NamedModel | None = None) -> None:
        self.main = main
        self.other = other
        self.traces: OrderedDict[str, Trace] = OrderedDict()
        self.images: OrderedDict[str, ImageInput] = OrderedDict()
        self.start_image: str | None = None  # of the page's first trace; it is always kept
        self.trace_ids = itertools.count(1)
        self.lock = threading.Lock()  # a model runs one request at a time
        self.images_lock = threading.Lock()

    def describe_model(self) -> dict[str, Any]:
        """Return what the page shows of the main model, and which views it offers."""
        inputs = self.main.inputs
        model = inputs.model
        return {
            "name": self.main.name,
            "family": model.family.name,
            "description": describe_layers(model),
            "num_parameters": sum(parameter.numel() for parameter in model.parameters()),
            "architecture": inputs.architecture,
            "inputs": inputs.describe_inputs(),
            "reads_clips": reads_clips(model),
            "can_generate": inputs.can_generate,
            "other_model": self.other and self.other.name,
        }

    def build_config(self, user_input: UserInput, settings: ViewSettings) -> dict[str, Any]:
        """Return what the page starts with: the models, and the trace of an input if there is one."""
        config: dict[str, Any] = {
            "mode": "server",
            "model": self.describe_model(),
            "examples": list_examples(self.main.inputs),
        }
        has_input = bool(user_input.text.strip()) or user_input.image is not None
        settings.check_values(
            self.main.inputs, has_input=has_input, is_comparison=self.other is not None
        )
        if isinstance(user_input.image, Path):
            data = user_input.image.read_bytes()
            config |= self.add_image(data)
            self.start_image = config["image"]
            user_input = replace(user_input, image=self.images[config["image"]])
        if not has_input:
            config["state"] = settings.build_start()
        else:
            trace = Trace(self.main.inputs.model, self.main.inputs.build(user_input))
            settings.check(trace)
            config["target"] = user_input.target
            config["state"] = settings.build_state(trace)
            config["trace"] = self.keep(trace, user_input)
        return config

    # --- requests ---

    def add_image(self, data: bytes) -> dict[str, Any]:
        """Keep an uploaded image, and return its name in other requests."""
        image = open_uploaded_image(data, self.main.inputs.model)
        name = hash_image(data)
        with self.images_lock:
            self.images[name] = image
            uploaded = [other for other in self.images if other != self.start_image]
            for other in uploaded[: max(len(uploaded) - MAX_IMAGES, 0)]:
                del self.images[other]
        return {"image": name}

    def trace(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Run a model on text, text_pair, target and image; `model` is "main" or "other"."""
        user_input = self.read_input(body)
        name = body.get("model", "main")
        if name not in ("main", "other") or (name == "other" and self.other is None):
            raise ValueError(
                f"model {shorten_repr(name)}, expected main, or other if two models are compared"
            )
        named = self.main
        if name == "other" and self.other is not None:
            named = self.other
            user_input = named.inputs.select(user_input)
        with self.lock:
            trace = Trace(named.inputs.model, named.inputs.build(user_input))
            return self.keep(trace, user_input)

    def step(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the candidates of the next token after `token_ids`."""
        user_input, token_ids = self.read_input(body), read_token_ids(body)
        settings, num_candidates = read_settings(body), body.get("candidates", 12)
        with self.lock:
            step = run_step(self.main.inputs, user_input, token_ids, settings, num_candidates)
            return step.to_json() | self.keep(step.trace, user_input)

    def beams(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tree of a beam search."""
        user_input = self.read_input(body)
        num_beams, max_new_tokens = body.get("num_beams", 4), body.get("max_new_tokens", 40)
        with self.lock:
            return search_beams(self.main.inputs, user_input, num_beams, max_new_tokens).to_json()

    def read_input(self, body: Mapping[str, Any]) -> UserInput:
        """Return the texts and the image of a request."""
        name = body.get("image")
        image = self.images.get(name) if isinstance(name, str) else None
        if name not in (None, "") and image is None:
            raise ValueError("the image is not known any more: choose its file again")
        return UserInput(
            text=read_text(body, "text") or "",
            text_pair=read_text(body, "text_pair"),
            target=read_text(body, "target"),
            image=image,
        )

    def keep(self, trace: Trace, user_input: UserInput) -> dict[str, Any]:
        """Keep a trace for later requests, and return its description with its id."""
        trace_id = str(next(self.trace_ids))
        self.traces[trace_id] = trace
        while len(self.traces) > 1 and (
            len(self.traces) > MAX_TRACES
            or sum(trace.num_bytes for trace in self.traces.values()) > MAX_RECORD_BYTES
        ):
            self.traces.popitem(last=False)
        texts = {"text": user_input.text, "text_pair": user_input.text_pair}
        return trace.to_json() | texts | {"trace_id": trace_id}

    def get_trace(self, trace_id: str) -> Trace:
        if trace_id not in self.traces:
            raise UnknownTraceError(f"trace_id {trace_id[:20]!r} is not known; send the text again")
        self.traces.move_to_end(trace_id)
        return self.traces[trace_id]

    @torch.no_grad()
    def weights(self, query: Mapping[str, str]) -> Tensor:
        """Return weights as uint16 (heads, rows, columns)."""
        with self.lock:
            trace = self.get_trace(query.get("trace_id", ""))
            path = query.get("path", "")
            trace.check_path(path)
            num_heads, num_queries, num_keys = trace.shapes[path]
            rows = parse_range("rows", query.get("rows"), num_queries)
            columns = parse_range("columns", query.get("columns"), num_keys)
            pool = parse_integer("pool", query.get("pool", "1"))
            check_number("pool", pool, integer=True, at_least=1, at_most=MAX_TOKENS)
            is_rollout = parse_flag("rollout", query.get("rollout", "0"))
            heads_text = query.get("heads", "mean")
            is_mean = is_rollout or heads_text == "mean"
            heads = [] if is_mean else parse_heads(heads_text, num_heads)
            num_rows, num_columns = (
                -(-(part.stop - part.start) // pool) for part in (rows, columns)
            )
            num_values = max(len(heads), 1) * num_rows * num_columns
            if num_values > MAX_ANSWER_WEIGHTS:
                raise ValueError(
                    f"{num_values:,} weights, expected at most {MAX_ANSWER_WEIGHTS:,}: "
                    "ask for fewer heads, rows or columns"
                )
            if is_rollout:
                weights = trace.compute_rollout(path, rows, columns, pool)
            elif is_mean:
                weights = trace.compute_mean_weights(path, rows, columns, pool)
            else:
                weights = trace.compute_weights(path, heads, rows, columns, pool)
            return quantize_weights(weights)

    @torch.no_grad()
    def neurons(self, query: Mapping[str, str]) -> tuple[float, list[ScorePart]]:
        """Return the scale, and how the weights of one query come about."""
        with self.lock:
            trace = self.get_trace(query.get("trace_id", ""))
            path = query.get("path", "")
            trace.check_path(path)
            num_heads, num_queries, _ = trace.shapes[path]
            head, row = (
                parse_index(name, query.get(name, "0"), count)
                for name, count in (("head", num_heads), ("row", num_queries))
            )
            terms = trace.compute_terms(path, head, row)
            return terms.scale, list_score_parts(terms, trace.attentions[path].position)

    def patterns(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the mask of every layer and its position bias."""
        size = parse_integer("size", query.get("size", "48"))
        with self.lock:
            masks = list_layer_masks(self.main.inputs.model, size)
        return {"attentions": [mask.to_json() for mask in masks]}


def parse_index(name: str, text: str, count: int) -> int:
    """Parse a number below `count`."""
    index = parse_integer(name, text)
    check_number(name, index, integer=True, at_least=0, less_than=count)
    return index


def describe_layers(model: Model) -> str:
    """Return family, layers and width of a model: "marian, 6 + 6 layers, width 512"."""
    stacks = [
        module for module in model.net.modules() if isinstance(module, Stack | RecurrentStack)
    ]
    layers_of = [len(stack.layer_order) for stack in stacks if isinstance(stack, Stack)]
    depths = " + ".join(str(count) for count in layers_of if count)  # none after convolutions
    layers = f"{depths} layer{'' if depths == '1' else 's'}" if depths else "recurrent"
    return f"{model.family.name}, {layers}, width {stacks[-1].spec.width}"


def quantize_weights(weights: Tensor) -> Tensor:
    """Return weights of 0 to 1 as uint16."""
    if weights.isnan().any():
        raise ValueError(
            "the attention weights are NaN, expected numbers: check the model's weights"
        )
    return (weights.clamp(0, 1) * FULL_WEIGHT).round().to(torch.uint16)
