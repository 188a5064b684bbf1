"""The data of a page that asks no server: a trace with all of its weights, encoded as text."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from qkv.attention_weights import Paths
from qkv.explorer.explorer import Explorer, quantize_weights
from qkv.explorer.patterns import list_layer_masks
from qkv.explorer.trace import Trace

MAX_PAGE_BYTES = 2**26  # of encoded arrays
PATTERN_SIZE = 48


def build_embedded_config(explorer: Explorer, trace: Trace, paths: Paths) -> dict[str, Any]:
    """Return the configuration of a page with the weights of some attentions, of all if None.

    The weights have 16 bits, or 8 in a page that would be too large."""
    selected = select_paths(trace, paths)
    num_weights = sum(count_weights(trace, path) for path in selected)
    num_bytes = 2 if num_weights * 2 * 4 / 3 <= MAX_PAGE_BYTES else 1
    if num_weights * num_bytes * 4 / 3 > MAX_PAGE_BYTES:
        raise ValueError(
            f"{num_weights:,} weights, expected at most {MAX_PAGE_BYTES * 3 // 4:,} in one page: use a "
            "shorter text, or select attentions with paths"
        )
    description = trace.to_json()
    attentions = [info for info in description["attentions"] if info["path"] in selected]
    masks = list_layer_masks(trace.model, PATTERN_SIZE)
    return {
        "mode": "embedded",
        "model": explorer.describe_model(),
        "trace": description | {"attentions": attentions},
        "weights": {path: encode_weights(trace, path, num_bytes) for path in selected},
        "patterns": {"attentions": [mask.to_json() for mask in masks if mask.path in selected]},
    }


def select_paths(trace: Trace, paths: Paths) -> list[str]:
    """Return the paths of the attentions that match."""
    is_selected = paths if callable(paths) else re.compile(paths or ".*").fullmatch
    selected = [path for path in trace.shapes if is_selected(path)]
    if not selected:
        raise ValueError(f"paths={paths!r} matches none of the paths {', '.join(trace.shapes)}")
    return selected


def count_weights(trace: Trace, path: str) -> int:
    heads, num_queries, num_keys = trace.shapes[path]
    return heads * num_queries * num_keys


def encode_weights(trace: Trace, path: str, num_bytes: int) -> Mapping[str, Any]:
    """Return all weights of an attention as uint16 or uint8."""
    whole = slice(None)
    weights = trace.compute_weights(path, range(trace.shapes[path][0]), whole, whole)
    if num_bytes == 2:
        return encode_array(quantize_weights(weights), "uint16")
    return encode_array((weights.clamp(0, 1) * 255).round().to(torch.uint8), "uint8")


def encode_array(array: Tensor, dtype: str) -> Mapping[str, Any]:
    """Return an array as base64 with its shape, little-endian."""
    data = array.numpy().astype(f"<{array.numpy().dtype.str[1:]}", copy=False).tobytes()
    return {
        "shape": [*array.shape],
        "dtype": dtype,
        "data": base64.b64encode(data).decode(),
    }
