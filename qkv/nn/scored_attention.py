"""ScoredAttentionKernel: attention with any score and any selection, without a fast kernel.

B batch, H heads, G key-value heads, T queries, S keys, D head dimension."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from qkv.kernels.attention import repeat_heads
from qkv.kernels.bias import AttentionBias
from qkv.nn.scores import build_score
from qkv.nn.selections import SampleStatistics, build_selection
from qkv.spec import AttentionSpec, RelativeXLSpec

RecordWeights = Callable[[Callable[[], Tensor]], None]


class WeightsKernel(Protocol):
    """A module whose weights `look` can record."""

    def register_weights_hook(self, record: RecordWeights) -> RemovableHandle:
        """Call `record` in every forward pass with a function that returns the weights (B, H, T, S)."""
        ...

    def __hash__(self) -> int: ...


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

    def register_weights_hook(self, record: RecordWeights) -> RemovableHandle:
        """Call `record` in every forward pass with a function that returns the weights (B, H, T, S): those
        that were used, also if they are a sample."""

        def record_output(module: nn.Module, inputs: tuple[Any, ...], weights: Tensor) -> None:
            record(weights.detach)

        return self.selection.register_forward_hook(record_output)


def check_relative_position(spec: AttentionSpec) -> None:
    """Raise ValueError for a score that cannot be combined with the positions of Transformer-XL, whose
    terms are parts of one dot product."""
    is_relative = isinstance(spec.relative_position, RelativeXLSpec)
    if is_relative and spec.score.name not in ("dot", "scaled-dot"):
        raise ValueError(
            f"attention_score {spec.score.name!r} with the relative positions of Transformer-XL, which "
            "are terms of a dot product: expected 'dot' or 'scaled-dot'"
        )
