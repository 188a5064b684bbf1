"""Attention of a recurrent decoder to the states of its encoder, and where `look` reads weights.

N rows, P rows of the source (which beams share), T queries, S keys, C width of values, W width."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from qkv.nn.attention_record import GetProducts, KeyProducts, RecordAttention, WeightsRecord
from qkv.nn.cache import Cache
from qkv.nn.recurrent.rows import TextRows
from qkv.nn.scores import build_score
from qkv.nn.selections import build_selection
from qkv.spec import Full, RecurrentAttentionSpec


class SourceKeys(NamedTuple):
    """The encoder states that a decoder attends to, with the keys that are computed once."""

    keys: Tensor  # (P, S, K), prepared for the score
    values: Tensor  # (P, S, C)
    mask: Tensor | None  # (P, S), true for tokens; None: all are

    def write(self, cache: Cache) -> None:
        """Store the source in an empty cache."""
        positions = torch.arange(self.keys.shape[1], device=self.keys.device)
        positions = positions.expand(len(self.keys), -1)
        if self.mask is not None:
            positions = positions.masked_fill(~self.mask, -1)
        cache.update({"keys": self.keys, "values": self.values}, positions)

    @staticmethod
    def read(cache: Cache) -> SourceKeys | None:
        """Return the source in a cache; None if it is empty."""
        if cache.positions is None:
            return None
        return SourceKeys(cache.read("keys"), cache.read("values"), cache.positions >= 0)


class Attended(NamedTuple):
    """The context of queries, and the weights that it was computed with.

    The last two are those of a sampled location, for REINFORCE."""

    query: Tensor  # (N, T, W)
    context: Tensor  # (N, T, C)
    weights: Tensor  # (N, T, S)
    log_probs: Tensor | None = None  # (N, T)
    entropy: Tensor | None = None  # (N, T)

    @staticmethod
    def join(steps: list[Attended]) -> Attended:
        """Return consecutive queries as one."""

        def join(parts: Iterable[Tensor | None]) -> Tensor | None:
            tensors = [part for part in parts if part is not None]
            return torch.cat(tensors, dim=1) if tensors else None

        return Attended(
            torch.cat([step.query for step in steps], dim=1),
            torch.cat([step.context for step in steps], dim=1),
            torch.cat([step.weights for step in steps], dim=1),
            join(step.log_probs for step in steps),
            join(step.entropy for step in steps),
        )


class WeightsRecorder(nn.Module):
    """Where `look` reads the weights of a forward pass; it computes nothing itself."""

    def forward(
        self, weights: Tensor, rows: TextRows, key_rows: TextRows | None, order: Tensor | None,
        get_products: GetProducts,
    ) -> None:  # fmt: skip
        """Receive weights (N, T, memory + S), the rows of queries and keys, the row of the keys that
        each row of queries attends to, and a function that returns the terms of a score."""

    def weights(
        self, weights: Tensor, rows: TextRows, key_rows: TextRows | None, order: Tensor | None
    ) -> Tensor:
        """Return the weights in the places of the inputs: (B, 1, T, memory + S)."""
        if key_rows is not None and key_rows.index is not None:
            num_columns = key_rows.shape[1]
            columns = key_rows.index % num_columns
            columns = columns if order is None else columns[order]  # (N, S)
            memory, inside = weights.split(
                [weights.shape[2] - columns.shape[1], columns.shape[1]], dim=2
            )
            index = columns[:, None].expand_as(inside)
            placed = inside.new_zeros(*inside.shape[:2], num_columns).scatter_add(2, index, inside)
            weights = torch.cat([memory, placed], dim=2)
        return rows.scatter(weights)[:, None]

    def register_record_hook(self, record: RecordAttention) -> list[RemovableHandle]:
        """Call `record` in every forward pass with the weights in the places of the inputs."""

        def record_inputs(module: nn.Module, inputs: tuple[Any, ...], output: None) -> None:
            weights, rows, key_rows, order, get_products = inputs
            with torch.no_grad():
                placed = self.weights(weights, rows, key_rows, order)
            is_placed = rows.index is not None or (key_rows and key_rows.index is not None)
            get_products = get_no_products if is_placed else get_products
            record(WeightsRecord(weights=placed, get_products=get_products))

        return [self.register_forward_hook(record_inputs)]


def get_no_products(batch_index: int, head: int, row: int) -> None:
    """Return no terms: the rows of the network are not those of the inputs."""


class RecurrentAttention(nn.Module):
    """Attention of a decoder to the encoder states: score, selection, weighted sum."""

    def __init__(self, spec: RecurrentAttentionSpec, query_width: int, key_width: int) -> None:
        super().__init__()
        self.pattern = spec.pattern
        self.score = build_score(
            spec.score.name,
            query_width=query_width,
            key_width=key_width,
            width=spec.score_width,
            **dict(spec.score.settings),  # type: ignore[arg-type]
        )
        self.selection = build_selection(
            spec.select.name,
            query_width=query_width,
            **dict(spec.select.settings),  # type: ignore[arg-type]
        )
        self.gate = nn.Linear(query_width, key_width) if spec.gate else None
        self.kernel = WeightsRecorder()

    def prepare_source(self, values: Tensor, mask: Tensor | None) -> SourceKeys:
        """Return the encoder states (P, S, C) with their keys."""
        return SourceKeys(self.score.prepare_keys(values), values, mask)

    def get_products(
        self, query: Tensor, source: SourceKeys, batch_index: int, head: int, row: int
    ) -> KeyProducts:
        """Return one of the queries (N, T, W), its keys and the products of their score."""
        one, keys = query[batch_index, row : row + 1], source.keys[batch_index]
        products = self.score.compute_products(one, keys)[0]
        attends_to_all = source.mask is None and isinstance(self.pattern, Full)
        return KeyProducts(one[0], keys, products, attends_to_all)

    def forward(self, query: Tensor, positions: Tensor, source: SourceKeys) -> Attended:
        """Attend with queries (N, T, W) at target positions (N|1, T)."""
        size = query.shape[:2]
        q = query.reshape(len(source.keys), -1, query.shape[2])  # beams are queries of one row
        mask = None if source.mask is None else source.mask[:, None]  # (P, 1, S)
        if not isinstance(self.pattern, Full):
            columns = torch.arange(source.keys.shape[1], device=query.device)
            targets = positions.expand(size).reshape(len(q), -1)
            is_near = self.pattern(targets[..., None], columns)  # (P, T, S)
            mask = is_near if mask is None else mask & is_near
        scores = self.score(q, source.keys)
        weights = self.selection(scores, mask, q)
        context = (weights.to(source.values.dtype) @ source.values).view(*size, -1)
        if self.gate is not None:
            context = context * self.gate(query).sigmoid()
        statistics = self.selection.statistics(scores, mask, weights)
        if statistics is None:
            return Attended(query, context, weights.view(*size, -1))
        samples = (statistics.log_probs.view(size), statistics.entropy.view(size))
        return Attended(query, context, weights.view(*size, -1), *samples)
