"""Trace: a text that a model has read, and the attention of every layer, computed on demand.

The records of a forward pass are kept up to a limit of memory; a layer whose record was not kept runs
again. Weights are computed for the heads and rows that are asked for.
H heads, T queries, S keys."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.attention_weights import record_attention
from qkv.explorer.inputs.labels import TokenSequence
from qkv.explorer.inputs.trace_inputs import TraceInputs, build_memory_labels
from qkv.model.inputs import build_input_batch, list_accepted_inputs
from qkv.model.model import Model
from qkv.nn.attention_record import (
    AttentionRecord,
    DotProductRecord,
    ScoreTerms,
    count_bytes,
)
from qkv.nn.recurrent import RecurrentStack
from qkv.nn.transformer import Stack
from qkv.spec import AlibiSpec, Pattern, RelativeXLSpec, RotarySpec, full
from qkv.spec.patterns import And, Or, PerHead

MAX_RECORD_BYTES = 2**30  # of the records of one trace
MAX_SCORES = 2**20  # that are computed at a time: they fit into the cache of a CPU
WHOLE = slice(None)
MAX_ROLLOUT_TOKENS = 1024
MAX_ROLLOUTS = 4  # that are kept


@dataclass(frozen=True, kw_only=True)
class AttentionInfo:
    """One attention of a model, and the sequences of its queries and keys."""

    path: str
    stack: str
    layer: int
    kind: str  # self or cross
    heads: int
    queries: str
    keys: tuple[str, ...]
    shape: tuple[int, int]  # T, S
    pattern: str
    position: str | None
    score: str
    select: str
    has_neurons: bool

    @property
    def kind_name(self) -> str:
        """encoder self-attention, decoder cross-attention"""
        return f"{self.stack} {self.kind}-attention"


class Trace:
    """One forward pass of a model, with the weights of all of its attentions."""

    def __init__(self, model: Model, inputs: TraceInputs) -> None:
        self.model = model.view_in_evaluation_mode()
        self.inputs = inputs
        self.sequences = dict(inputs.sequences)
        self.records: OrderedDict[str, AttentionRecord] = OrderedDict()
        self.rollouts: OrderedDict[str, Tensor] = OrderedDict()
        self.normalizers: dict[str, Tensor] = {}  # (H, T)
        self.has_terms: dict[str, bool] = {}
        self.shapes: dict[str, tuple[int, int, int]] = {}  # H, T, S
        self.last_logits = self.run(None)
        self.attentions = {path: self.describe_attention(path) for path in self.shapes}

    @torch.no_grad()
    def run(self, paths: set[str] | None) -> Tensor | None:
        """Run the model and keep the records of some paths, of all if None; return the logits (V,) of
        the last token, if the model predicts tokens."""
        model = self.model
        accepted = list_accepted_inputs(model.spec)
        tensors = {
            name: tensor.to(model.device)
            for name, tensor in self.inputs.arguments.items()
            if name in accepted
        }
        for token_ids in self.inputs.memory_segments:
            segment = torch.tensor([[*token_ids]], device=model.device)
            tensors["mems"] = model(segment, mems=tensors.get("mems")).mems
        batch = build_input_batch(model.spec, extra_outputs=(), **tensors)
        if self.inputs.predicts is not None:  # the logits of all tokens need much memory
            length = len(self.inputs.sequences[self.inputs.predicts])
            positions = torch.tensor([length - 1], device=model.device)
            batch = replace(batch, logit_positions=positions)

        def record(path: str, attention: AttentionRecord) -> None:
            self.shapes[path] = attention.shape[1:]
            if path not in self.has_terms:
                self.has_terms[path] = attention.compute_terms(0, 0, 0) is not None
            if paths is None or path in paths:
                self.keep_record(path, attention, is_needed=paths is not None)

        with record_attention(model, None, record):
            outputs = model.net(batch)
        return None if self.inputs.predicts is None else outputs["logits"].reshape(-1)

    @property
    def num_bytes(self) -> int:
        """The memory of the records."""
        return count_bytes(chain.from_iterable(x.tensors for x in self.records.values()))

    def keep_record(self, path: str, attention: AttentionRecord, is_needed: bool) -> None:
        """Keep a record if there is memory for it; one that is needed replaces the oldest ones."""
        self.records[path] = attention
        while self.num_bytes > MAX_RECORD_BYTES and len(self.records) > is_needed:
            self.records.popitem(last=not is_needed)

    def get_record(self, path: str) -> AttentionRecord:
        """Return the record of a path, by another forward pass if it was not kept."""
        self.check_path(path)
        if path not in self.records:
            self.run({path})
        self.records.move_to_end(path)
        return self.records[path]

    def check_path(self, path: str) -> None:
        """Raise ValueError unless it is the path of an attention."""
        if path not in self.shapes:
            raise ValueError(f"path {path[:80]!r}: expected one of {', '.join(self.shapes)}")

    # --- description ---

    def describe_attention(self, path: str) -> AttentionInfo:
        """Return what the page shows of an attention, and the sequences of its axes."""
        heads, num_queries, num_keys = self.shapes[path]
        prefix, _, part = path.rpartition(".")
        stack_name, _, layer = prefix.partition(".layers.")
        stack = self.model.net.get_submodule(stack_name)
        kind = "cross" if part == "cross_attention" else "self"
        queries = stack_name.removesuffix(".encoder") if "." in stack_name else stack_name
        keys = self.find_keys(queries, kind, num_keys)
        pattern: Pattern = full
        position, score, select = None, "scaled-dot", "softmax"
        depth = int(layer or 0)
        if isinstance(stack, Stack):
            spec = getattr(stack.spec.layers[stack.layer_order[depth]], part)
            pattern, score, select = spec.pattern, spec.score.name, spec.select.name
            if kind == "self":
                position = find_position_name(stack, spec.relative_position)
        elif isinstance(stack, RecurrentStack) and stack.spec.source and kind == "cross":
            attention = stack.spec.source.attention
            assert attention is not None
            pattern, score, select = attention.pattern, attention.score.name, attention.select.name
        else:
            score = "additive"
        return AttentionInfo(
            path=path,
            stack=stack_name,
            layer=depth,
            kind=kind,
            heads=heads,
            queries=queries,
            keys=keys,
            shape=(num_queries, num_keys),
            pattern=format_pattern(pattern),
            position=position,
            score=score,
            select=select,
            has_neurons=self.has_terms[path],
        )

    def find_keys(self, queries: str, kind: str, num_keys: int) -> tuple[str, ...]:
        """Return the sequences whose tokens are the keys; memory comes first."""
        name = "encoder" if kind == "cross" else queries
        num_memory = num_keys - len(self.sequences[name])
        if not num_memory:
            return (name,)
        memory = self.sequences.get("memory")
        if memory is None or len(memory) != num_memory:
            self.sequences["memory"] = fit_memory(memory, num_memory)
        return ("memory", name)

    # --- numbers ---

    def select_rows(self, path: str, rows: slice, columns: slice) -> tuple[range, range]:
        """Return the indices of rows and columns; raise ValueError if there are none."""
        self.check_path(path)
        _, num_queries, num_keys = self.shapes[path]
        row_range, column_range = range(num_queries)[rows], range(num_keys)[columns]
        if not row_range or not column_range:
            raise ValueError(
                f"rows {rows.start}:{rows.stop} and columns {columns.start}:{columns.stop} are empty, "
                f"expected parts of 0:{num_queries} and 0:{num_keys}"
            )
        return row_range, column_range

    def compute_weights(
        self, path: str, heads: Sequence[int], rows: slice, columns: slice, pool: int = 1
    ) -> Tensor:
        """Return the weights (heads, rows, columns) on the CPU, or the largest of each block of
        `pool` × `pool` weights."""
        row_range, column_range = self.select_rows(path, rows, columns)
        tiles = []
        for head in heads:
            selected = slice(head, head + 1)
            parts = [
                pool_weights(self.compute_tile(path, selected, part, columns)[0], pool)
                for part in split_rows(row_range, len(column_range), pool)
            ]
            tiles.append(torch.cat(parts))
        return torch.stack(tiles)

    def compute_mean_weights(self, path: str, rows: slice, columns: slice, pool: int = 1) -> Tensor:
        """Return the mean of the weights of all heads: (1, rows, columns)."""
        row_range, column_range = self.select_rows(path, rows, columns)
        heads = self.shapes[path][0]
        parts = [
            pool_weights(self.compute_tile(path, WHOLE, part, columns).float().mean(0), pool)
            for part in split_rows(row_range, len(column_range) * heads, pool)
        ]
        return torch.cat(parts)[None]

    @torch.no_grad()
    def compute_tile(self, path: str, heads: slice, rows: slice, columns: slice) -> Tensor:
        """Return the weights (heads, rows, columns); those of some columns need no scores of others
        once the normalizers of the rows are known."""
        record = self.get_record(path)
        num_keys = self.shapes[path][2]
        if not isinstance(record, DotProductRecord) or range(num_keys)[columns] == range(num_keys):
            return record.compute_weights(heads, rows)[0, :, :, columns]
        normalizers = self.get_normalizers(path, record, heads, rows)
        scores = to_float(record.compute_scores(heads, rows, columns)[0])
        return (scores - normalizers[..., None]).exp()

    def get_normalizers(
        self, path: str, record: DotProductRecord, heads: slice, rows: slice
    ) -> Tensor:
        """Return the logarithm of the sum of exponentiated scores (heads, rows), computed once."""
        num_heads, num_queries, num_keys = self.shapes[path]
        if path not in self.normalizers:
            unknown = torch.full((num_heads, num_queries), torch.nan, device=record.q.device)
            self.normalizers[path] = to_float(unknown.to(record.q.dtype))
        known = self.normalizers[path]
        if known[heads, rows].isnan().any():
            num_scores = num_keys * len(range(num_heads)[heads])
            for part in split_rows(range(num_queries)[rows], num_scores):
                scores = to_float(record.compute_scores(heads, part)[0])
                known[heads, part] = scores.logsumexp(-1)
        return known[heads, rows]

    def compute_rollout(self, path: str, rows: slice, columns: slice, pool: int = 1) -> Tensor:
        """Return attention rollout up to a layer (Abnar and Zuidema 2020): the product of the mean
        weights of the layers, each half of which is the residual connection: (1, rows, columns)."""
        self.select_rows(path, rows, columns)
        if path not in self.rollouts:
            while len(self.rollouts) >= MAX_ROLLOUTS:
                self.rollouts.popitem(last=False)
            self.rollouts[path] = self.multiply_layers(path)
        self.rollouts.move_to_end(path)
        return pool_weights(self.rollouts[path][rows, columns], pool)[None]

    def multiply_layers(self, path: str) -> Tensor:
        """Return the rollout of a layer (T, T)."""
        last = self.attentions[path]
        length, num_keys = last.shape
        if last.kind != "self" or length != num_keys:
            raise ValueError(f"rollout of {path}: expected self-attention without memory")
        if length > MAX_ROLLOUT_TOKENS:
            raise ValueError(
                f"rollout of {length:,} tokens, expected at most {MAX_ROLLOUT_TOKENS:,}: "
                "use a shorter text"
            )
        identity = torch.eye(length)
        rollout = identity
        for info in self.attentions.values():
            if info.stack == last.stack and info.kind == "self" and info.layer <= last.layer:
                weights = self.compute_mean_weights(info.path, WHOLE, WHOLE)[0]
                mixed = (weights + identity) / 2
                rollout = mixed / mixed.sum(-1, keepdim=True) @ rollout
        return rollout

    def compute_terms(self, path: str, head: int, row: int) -> ScoreTerms:
        """Return how the weights of one query come about."""
        terms = self.get_record(path).compute_terms(0, head, row)
        if terms is None:
            raise ValueError(f"{path}: the terms of its scores are not known")
        return terms

    def to_json(self) -> dict[str, Any]:
        """Return the description of the trace without weights."""
        inputs = self.inputs
        return {
            "target": inputs.target,
            "notice": inputs.notice,
            "sequences": {name: tokens.to_json() for name, tokens in self.sequences.items()},
            "attentions": [asdict(info) for info in self.attentions.values()],
            "predictions": inputs.predicts and {"sequence": inputs.predicts, "shift": 1},
        }


def split_rows(rows: range, num_scores: int, multiple: int = 1) -> Iterator[slice]:
    """Yield parts of rows of `num_scores` scores each: at most MAX_SCORES, but `multiple` rows."""
    step = max(MAX_SCORES // num_scores // multiple, 1) * multiple
    for start in range(rows.start, rows.stop, step):
        yield slice(start, min(start + step, rows.stop))


def to_float(scores: Tensor) -> Tensor:
    """Return scores of half precision in single precision."""
    return scores.float() if scores.element_size() < torch.float32.itemsize else scores


def fit_memory(memory: TokenSequence | None, count: int) -> TokenSequence:
    """Return the labels of `count` columns of memory: its last tokens, after columns without any."""
    known = memory.tokens[-count:] if memory is not None else ()
    unknown = build_memory_labels(count).tokens[: count - len(known)]
    words = memory.words if memory is not None else ()
    return TokenSequence(label="memory", tokens=(*unknown, *known), words=words)


def find_position_name(stack: Stack, relative: object) -> str | None:
    """Return the kind of the relative positions of a layer."""
    if isinstance(relative, RotarySpec):
        return "rotary"
    if isinstance(relative, RelativeXLSpec):
        return "xl"
    bias = stack.spec.position_bias
    return None if bias is None else "alibi" if isinstance(bias, AlibiSpec) else "t5"


def format_pattern(pattern: Pattern) -> str:
    """Return a pattern as it is written: causal, local(5), banded(4) | strided(4)."""
    match pattern:
        case And():
            return f"{format_pattern(pattern.left)} & {format_pattern(pattern.right)}"
        case Or():
            return f"{format_pattern(pattern.left)} | {format_pattern(pattern.right)}"
        case PerHead():
            return "by head: " + ", ".join(dict.fromkeys(map(format_pattern, pattern.patterns)))
    values = ", ".join(str(getattr(pattern, item.name)) for item in fields(pattern))  # type: ignore[arg-type]
    name = type(pattern).__name__.lower()
    return f"{name}({values})" if values else name


def pool_weights(weights: Tensor, pool: int) -> Tensor:
    """Return the largest weight of each block, on the CPU: (rows, columns) -> by `pool` fewer."""
    weights = weights.float().cpu()
    if pool == 1:
        return weights
    return F.max_pool2d(weights[None], pool, ceil_mode=True)[0]  # (T, S) -> (T / pool, S / pool)
