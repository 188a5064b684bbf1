"""The data of a page that asks no server: a trace with its weights and vectors, encoded as text."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from itertools import product
from typing import Any

import torch
from torch import Tensor

from qkv.attention_weights import Paths
from qkv.explorer.explorer import Explorer, quantize_weights
from qkv.explorer.inputs.trace_inputs import join_notices
from qkv.explorer.trace.patterns import list_layer_masks
from qkv.explorer.trace.score_parts import get_position_name, list_score_parts
from qkv.explorer.trace.trace import WHOLE, Trace
from qkv.nn.attention_record import DotProductRecord

MAX_PAGE_BYTES = 2**26  # of encoded arrays
ENCODED_BYTES = 4 / 3  # characters of base64 per byte
EMBEDDED_PATTERN_SIZE = 48
ROUNDED_WEIGHTS = (
    "The weights of this page are rounded to 8 bits, because its text is long: they differ from the "
    "exact ones by at most 0.004."
)
WITHOUT_VECTORS = (
    "This page has no view Neurons, because its text is long: queries and keys are left out. A page of "
    "fewer attentions (paths) has them."
)


def build_embedded_config(
    explorer: Explorer, trace: Trace, paths: Paths, other: Trace | None = None
) -> dict[str, Any]:
    """Return the configuration of a page with some attentions, all if None; `other` is the trace of the
    model that is compared.

    The weights have 16 bits, or 8 in a page that would be too large; queries and keys are left out if
    there is no room for them. A notice says so."""
    selected = select_paths(trace, paths, explorer.main.name)
    traces = {trace: selected}
    if other is not None and explorer.other is not None:
        traces[other] = select_paths(other, paths, explorer.other.name)
    num_weights = sum(count_weights(x, path) for x, names in traces.items() for path in names)
    limit = int(MAX_PAGE_BYTES / ENCODED_BYTES)
    num_bytes = 2 if num_weights * 2 <= limit else 1
    if num_weights * num_bytes > limit:
        raise ValueError(
            f"{num_weights:,} weights, expected at most {limit:,} in one page: use a shorter text, or "
            "select attentions with paths"
        )
    encoder = VectorEncoder(trace, limit - num_weights * num_bytes)
    vectors = encoder.encode_all(selected)
    encoded = encode_trace(trace, selected, num_bytes)
    if not vectors and any(trace.attentions[path].has_neurons for path in selected):
        description = encoded["trace"]
        description["notice"] = join_notices(description["notice"], WITHOUT_VECTORS)
    compared = {} if other is None else {"other": encode_trace(other, traces[other], num_bytes)}
    masks = list_layer_masks(trace.model, EMBEDDED_PATTERN_SIZE)
    return {
        "mode": "embedded",
        "model": explorer.describe_model(),
        **encoded,
        **compared,
        "vectors": vectors,
        "biases": encoder.biases,
        "patterns": {"attentions": [mask.to_json() for mask in masks if mask.path in selected]},
    }


def encode_trace(trace: Trace, paths: list[str], num_bytes: int) -> dict[str, Any]:
    """Return the description of a trace, and the weights of some of its attentions."""
    description = trace.to_json()
    if num_bytes == 1:
        description["notice"] = join_notices(description["notice"], ROUNDED_WEIGHTS)
    attentions = [info for info in description["attentions"] if info["path"] in paths]
    return {
        "trace": description | {"attentions": attentions},
        "weights": {path: encode_weights(trace, path, num_bytes) for path in paths},
    }


def select_paths(trace: Trace, paths: Paths, name: str) -> list[str]:
    """Return the paths of the attentions of a model that match."""
    try:
        is_selected = paths if callable(paths) else re.compile(paths or ".*").fullmatch
    except re.error as error:
        raise ValueError(f"paths={paths!r} is not a regular expression: {error}") from None
    selected = [path for path in trace.shapes if is_selected(path)]
    if not selected:
        raise ValueError(
            f"{name}: paths={paths!r} matches none of the paths {', '.join(trace.shapes)}"
        )
    return selected


def count_weights(trace: Trace, path: str) -> int:
    heads, num_queries, num_keys = trace.shapes[path]
    return heads * num_queries * num_keys


def encode_weights(trace: Trace, path: str, num_bytes: int) -> Mapping[str, Any]:
    """Return all weights of an attention as uint16, or their square roots as uint8: small weights
    keep their size."""
    weights = trace.compute_weights(path, range(trace.shapes[path][0]), WHOLE, WHOLE)
    if num_bytes == 2:
        return encode_array(quantize_weights(weights))
    return encode_array((weights.clamp(0, 1).sqrt() * 255).round().to(torch.uint8))


def encode_array(array: Tensor) -> Mapping[str, Any]:
    """Return an array as base64 with its shape and dtype, little-endian."""
    values = array.detach().cpu().contiguous().numpy()
    data = values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
    return {
        "shape": [*array.shape],
        "dtype": str(array.dtype).removeprefix("torch."),
        "data": base64.b64encode(data).decode(),
    }


class VectorEncoder:
    """Encodes how weights come about, while there is room for it: queries, keys, masks and biases of dot
    products; of other scores, the parts of every query.

    The layers of a stack share the bias of T5 and ALiBi: `biases` has each of them once."""

    def __init__(self, trace: Trace, num_bytes: int) -> None:
        self.trace = trace
        self.num_bytes = num_bytes
        self.biases: dict[str, Mapping[str, Any]] = {}

    def encode_all(self, paths: list[str]) -> dict[str, Mapping[str, Any]]:
        """Return the vectors of every attention; none if there is no room for all."""
        vectors = {}
        for path in paths:
            if not self.trace.attentions[path].has_neurons:
                continue
            record = self.trace.get_record(path)
            vectors[path] = (
                self.encode(path, record)
                if isinstance(record, DotProductRecord)
                else self.encode_parts(path)
            )
            if self.num_bytes < 0:
                self.biases.clear()
                return {}
        return vectors

    def encode_parts(self, path: str) -> Mapping[str, Any]:
        """Return the parts of the scores of every head and query, "head,query": [[name, array], ...]."""
        num_heads, num_queries, _ = self.trace.shapes[path]
        encoded: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
        scale = 1.0
        for head, query in product(range(num_heads), range(num_queries)):
            terms = self.trace.compute_terms(path, head, query)
            scale = terms.scale
            parts = list_score_parts(terms, self.trace.attentions[path].position)
            encoded[f"{head},{query}"] = [
                (part.name, self.encode_array(part.values)) for part in parts
            ]
            if self.num_bytes < 0:
                break
        return {"scale": scale, "parts": encoded}

    def encode(self, path: str, record: DotProductRecord) -> Mapping[str, Any]:
        position = self.trace.attentions[path].position
        biases = [
            bias for bias in (record.bias.position_bias, record.layer_bias) if bias is not None
        ]
        mask = record.bias.get_mask(WHOLE)
        return {
            "scale": record.scale,
            "queries": self.encode_array(record.q[0].float()),
            "keys": self.encode_array(record.k[0].float()),
            "biases": [[get_position_name(position), self.share(bias)] for bias in biases],
            "mask": None if mask is None else self.share(mask.to(torch.uint8)),
        }

    def share(self, array: Tensor) -> str:
        """Return the name of an array that several attentions may have."""
        array = array[0].float() if array.is_floating_point() else array[0]
        encoded = self.encode_array(array)
        name = next((name for name, other in self.biases.items() if other == encoded), None)
        if name is None:
            name = f"bias-{len(self.biases)}"
            self.biases[name] = encoded
        else:
            self.num_bytes += array.numel() * array.element_size()
        return name

    def encode_array(self, array: Tensor) -> Mapping[str, Any]:
        self.num_bytes -= array.numel() * array.element_size()
        return encode_array(array) if self.num_bytes >= 0 else {}
