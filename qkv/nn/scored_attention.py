"""ScoredAttentionKernel: attention with any score and any selection, without a fast kernel.

B batch, H heads, G key-value heads, T queries, S keys, D head dimension."""

from functools import partial
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from qkv.kernels.attention import repeat_heads
from qkv.kernels.bias import AttentionBias
from qkv.nn.attention_record import KeyProducts, RecordAttention, WeightsRecord
from qkv.nn.scores import build_score
from qkv.nn.selections import SampleStatistics, build_selection
from qkv.spec import AttentionSpec, RelativeXLSpec


class AttentionOutput(NamedTuple):
    """The output of an attention kernel."""

    out: Tensor  # (B, H, T, D)
    statistics: SampleStatistics | None = None  # (B, H, T), of hard attention


class ScoredAttentionKernel(nn.Module):
    """select(score(q, k) + bias) v; each head has parameters of its own."""

    def __init__(self, spec: AttentionSpec, scale: float) -> None:
        super().__init__()
        check_relative_position(spec)
        size = spec.head_dim
        settings: dict[str, Any] = dict(spec.score.settings)
        if spec.score.name == "scaled-dot":
            settings = {"scale": scale} | settings
        self.score = build_score(
            spec.score.name, query_width=size, key_width=size, heads=(spec.heads,), **settings
        )
        self.selection = build_selection(
            spec.select.name, query_width=size, heads=(spec.heads,), **dict(spec.select.settings)
        )
        self.dropout = spec.dropout

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, bias: AttentionBias, layer_bias: Tensor | None = None
    ) -> AttentionOutput:
        """q (B, H, T, D), k and v (B, G, S, D), layer_bias (B|1, H|1, T, S) or None."""
        scores = self.score(q, self.score.prepare_keys(repeat_heads(k, q.shape[1])))
        for term in (bias.position_bias, layer_bias):
            scores = scores if term is None else scores + term
        weights = self.selection(scores, bias.mask, q)
        statistics = self.selection.statistics(scores, bias.mask, weights)
        weights = F.dropout(weights, self.dropout, self.training)
        return AttentionOutput(weights.to(v.dtype) @ repeat_heads(v, q.shape[1]), statistics)

    def register_record_hook(self, record: RecordAttention) -> list[RemovableHandle]:
        """Call `record` in every forward pass with the weights that were used, also if they are a
        sample."""
        weights: list[Tensor] = []

        def keep_weights(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
            weights[:] = [output.detach()]

        def record_inputs(
            module: nn.Module, inputs: tuple[Any, ...], output: AttentionOutput
        ) -> None:
            q, k, _, bias, *layer_bias = inputs
            record(
                WeightsRecord(
                    weights=weights.pop(),
                    get_products=partial(self.get_products, q, k),
                    bias=bias,
                    layer_bias=layer_bias[0] if layer_bias else None,
                    inputs=(q, k),
                )
            )

        return [
            self.selection.register_forward_hook(keep_weights),
            self.register_forward_hook(record_inputs),
        ]

    def get_products(
        self, q: Tensor, k: Tensor, batch_index: int, head: int, row: int
    ) -> KeyProducts:
        """Return the query, the keys and the products of the score of one query."""
        query = q[batch_index, :, row : row + 1]  # (H, 1, D)
        keys = self.score.prepare_keys(repeat_heads(k[batch_index, None], q.shape[1])[0])
        products = self.score.compute_products(query, keys)  # (H, 1, S, D)
        return KeyProducts(query[head, 0], keys[head], products[head, 0])


def check_relative_position(spec: AttentionSpec) -> None:
    """Raise ValueError for a score that cannot be combined with the positions of Transformer-XL, whose
    terms are parts of one dot product."""
    is_relative = isinstance(spec.relative_position, RelativeXLSpec)
    if is_relative and spec.score.name not in ("dot", "scaled-dot"):
        raise ValueError(
            f"attention_score {spec.score.name!r} with the relative positions of Transformer-XL, which "
            "are terms of a dot product: expected 'dot' or 'scaled-dot'"
        )
