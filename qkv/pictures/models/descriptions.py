"""Parts of a Spec described in words. Does not depend on networks."""

from __future__ import annotations

from qkv import spec
from qkv.spec import StackSpec

POOLING_DESCRIPTIONS = dict(
    none="every state", first="the first state", last="the last state", mean="the mean state",
    patch_mean="the mean state of the patches", mc_token="the state at mc_token_ids",
    eos="the state at the last end token", first_eos="the state at the first end token",
    max_id="the state at the largest token id", max="the maximum of the states",
    mean_sqrt_len_tokens="the sum of the states divided by the root of their number",
    weightedmean="the mean state, weighted by position",
)  # fmt: skip


def describe_positions(stack: StackSpec) -> str:
    """Return the absolute and the relative positions of a stack, or "none"."""
    descriptions = []
    match stack.embedding.positions:
        case spec.LearnedPositions(count=count, offset=offset):
            first = f", the first at {offset}" if offset else ""
            descriptions.append(f"learned, a table of {count:,}{first}")
        case spec.SinusoidalPositions(offset=offset):
            first = f", counted from {offset}" if offset else ""
            descriptions.append(f"sines and cosines{first}")
    return "; ".join([*descriptions, *describe_relative_positions(stack)]) or "none"


def describe_relative_positions(stack: StackSpec) -> list[str]:
    descriptions = []
    match stack.layers[0].attention.relative_position if stack.layers else None:
        case spec.RelativeXLSpec():
            descriptions.append("learned distances, added to the scores of every layer (XL)")
        case spec.RotarySpec():
            descriptions.append("rotary, in every layer")
    bias = stack.position_bias
    match bias:
        case spec.RelativeBucketsSpec():
            buckets = f"{bias.num_buckets} buckets of distance up to {bias.max_distance}"
            descriptions.append(f"{buckets}, added to the scores")
        case spec.AlibiSpec():
            descriptions.append("scores decrease with distance (ALiBi)")
    return descriptions


def describe_attention(attention: spec.AttentionSpec) -> str:
    heads = f"{attention.heads} head{'s' * (attention.heads > 1)} of {attention.head_dim}"
    if attention.kv_heads and attention.kv_heads != attention.heads:
        heads += f" sharing {attention.kv_heads} key-value heads"
    if isinstance(attention.relative_position, spec.RotarySpec):
        heads += f", rotary with base {attention.relative_position.theta:,.0f}"
    if attention.score != spec.ScoreSpec():
        heads += f", score {describe_function(attention.score)}"
    if attention.select != spec.SelectionSpec():
        heads += f", selection {describe_function(attention.select)}"
    return heads


def describe_function(function: spec.ScoreSpec | spec.SelectionSpec) -> str:
    """Return the name and the settings: top-k (k 4)."""
    settings = " ".join(f"{name} {value:g}" for name, value in function.settings)
    return f"{function.name} ({settings})" if settings else function.name


def describe_feed_forward(feed_forward: spec.FeedForwardSpec | spec.MixtureOfExpertsSpec) -> str:
    if isinstance(feed_forward, spec.MixtureOfExpertsSpec):
        experts = f"{feed_forward.num_experts} experts, one per token"
        capacity = f"at most {feed_forward.capacity} tokens of a row per expert"
        return f"{experts}, {capacity}; {describe_feed_forward(feed_forward.expert)}"
    if feed_forward.is_gated:
        return f"gated by {feed_forward.activation}"
    return feed_forward.activation


def describe_head(head: spec.HeadSpec | spec.AdaptiveSoftmaxSpec | spec.SpanBeamSpec) -> str:
    match head:
        case spec.AdaptiveSoftmaxSpec():
            return "adaptive softmax: frequent tokens first, then each cluster of rarer tokens"
        case spec.SpanBeamSpec():
            return f"start, end for each of the best {head.num_starts} starts, answerability"
    states = POOLING_DESCRIPTIONS.get(head.pooling, head.pooling)
    return f"{', '.join(head.outputs)} from {states}"
