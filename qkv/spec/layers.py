"""SpecPart, and the parts of a Transformer layer: norms, attention, feed-forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, dataclass_transform

from qkv.spec.patterns import Pattern, full


@dataclass_transform(frozen_default=True, kw_only_default=True)
class SpecPart:
    """A part of a spec: a frozen dataclass with keyword-only fields."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)


class NormSpec(SpecPart):
    type: Literal["layer", "rms"] = "layer"
    eps: float = 1e-5
    bias: bool = True


class RotarySpec(SpecPart):
    """Rotary position embedding. `scaling` is Llama's rope_parameters as sorted pairs."""

    theta: float = 10000.0
    scaling: tuple[tuple[str, Any], ...] = ()


class RelativeXLSpec(SpecPart):
    """Learned relative positions (Transformer-XL, XLNet); `segment_bias` adds XLNet's segment term."""

    width: int
    clamp_length: int = -1
    segment_bias: bool = False
    share_biases: bool = False  # one pair of biases for all layers
    dropout: float = 0.0


class ScoreSpec(SpecPart):
    """How queries are compared with keys; `settings` are sorted pairs."""

    name: str = "scaled-dot"
    settings: tuple[tuple[str, float], ...] = ()


class SelectionSpec(SpecPart):
    """How scores become weights; `settings` are sorted pairs."""

    name: str = "softmax"
    settings: tuple[tuple[str, float], ...] = ()


class AttentionSpec(SpecPart):
    heads: int
    head_dim: int
    kv_heads: int | None = None  # None: equal to `heads`
    pattern: Pattern = full
    scale: float | None = None  # None: 1 / sqrt(head_dim)
    bias: bool = True
    relative_position: RotarySpec | RelativeXLSpec | None = None
    score: ScoreSpec = ScoreSpec()
    select: SelectionSpec = SelectionSpec()
    dropout: float = 0.0

    @property
    def has_fast_kernel(self) -> bool:
        """Whether the weights are the softmax of dot products, which the fast kernels compute."""
        is_dot_product = self.score in (ScoreSpec(), ScoreSpec(name="dot"))
        return is_dot_product and self.select == SelectionSpec()

    def list_replaced_parts(self) -> list[str]:
        """Return the score and the selection if they are not scaled dot product and softmax."""
        score = f"the attention score {self.score.name}" * (self.score != ScoreSpec())
        select = f"the attention selection {self.select.name}" * (self.select != SelectionSpec())
        return [part for part in (score, select) if part]


class FeedForwardSpec(SpecPart):
    """down(activation(up(x))), or down(activation(gate(x)) * up(x)) if gated."""

    width: int
    activation: str = "gelu"
    is_gated: bool = False
    bias: bool = True
    dropout: float = 0.0


class MixtureOfExpertsSpec(SpecPart):
    """Switch routing: one expert per token, and at most `capacity` tokens of a row per expert."""

    expert: FeedForwardSpec
    num_experts: int
    capacity: int
    router_bias: bool = False
    router_jitter: float = 0.0


class LayerSpec(SpecPart):
    attention: AttentionSpec
    feed_forward: FeedForwardSpec | MixtureOfExpertsSpec
    cross_attention: AttentionSpec | None = None
    norm: NormSpec
    norm_position: str = "pre"  # "pre" or "post": before or after each sublayer
    skip_first_norm: bool = False  # no norm before the attention (ModernBERT's first layer)
    dropout: float = 0.0
    attention_output_dropout: float | None = None  # None: the same as `dropout`
