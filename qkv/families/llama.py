"""Llama: a decoder with rotary positions, a gated feed-forward and grouped-query attention.

paper    Touvron et al. 2023, arXiv:2302.13971
purpose  generate text; an example of a family in one file
differs  rotary positions, gated feed-forward, RMS norm, grouped-query attention"""

from typing import Any

from qkv import spec as s
from qkv.families.family import COMMON_CONFIG, Args, Family, common_heads, head_classes


def llama(
    vocab_size: int = 32000, width: int = 4096, depth: int = 32, heads: int = 32,
    kv_heads: int | None = None, head_dim: int | None = None, ffn_width: int = 11008,
    activation: str = "silu", max_positions: int = 2048, norm_eps: float = 1e-6,
    rope_parameters: dict[str, Any] | None = None, attention_bias: bool = False,
    ffn_bias: bool = False, attention_dropout: float = 0.0, pad_token_id: int | None = None,
    init_std: float = 0.02, tie_embeddings: bool = False, num_labels: int = 2, head: str = "lm",
) -> s.Spec:  # fmt: skip
    norm = s.NormSpec(type="rms", eps=norm_eps)
    attention = s.AttentionSpec(
        heads=heads,
        head_dim=s.head_width(width, heads) if head_dim is None else head_dim,
        kv_heads=kv_heads,
        pattern=s.causal,
        bias=attention_bias,
        dropout=attention_dropout,
        relative_position=rotary_spec(rope_parameters),
    )
    feed_forward = s.FeedForwardSpec(
        width=ffn_width, activation=activation, is_gated=True, bias=ffn_bias
    )
    stack = s.StackSpec(
        width=width,
        embedding=s.EmbeddingSpec(vocab_size=vocab_size, padding_idx=pad_token_id),
        layers=(s.LayerSpec(attention=attention, feed_forward=feed_forward, norm=norm),) * depth,
        final_norm=norm,
    )
    lm = s.HeadSpec(name="lm", out_features=vocab_size, bias=False, tie_embeddings=tie_embeddings)
    head_specs = common_heads(num_labels, 0.1, lm)
    return s.Spec(family="llama", decoder=stack, heads=head_specs[head], init=(("*", init_std),))


def rotary_spec(
    rope_parameters: dict[str, Any] | None, default_theta: float = 10000.0
) -> s.RotarySpec:
    """Return the RotarySpec of config.json's `rope_parameters`."""
    scaling = dict(rope_parameters or {})
    theta = float(scaling.pop("rope_theta", default_theta))
    return s.RotarySpec(theta=theta, scaling=tuple(sorted(scaling.items())))


SIZES = {
    "7b": {},
    "3.2-1b": dict(
        vocab_size=128256, width=2048, depth=16, heads=32, kv_heads=8, head_dim=64, ffn_width=8192,
        norm_eps=1e-5, tie_embeddings=True,
        rope_parameters={"rope_theta": 500000.0, "rope_type": "default"},
    ),
}  # fmt: skip

KEYS = """
    decoder.embedding.tokens                       model.embed_tokens
    decoder.layers.{}.attention.(q|k|v|o)          model.layers.{}.self_attn.(q|k|v|o)_proj
    -                                              model.layers.{}.self_attn.rotary_emb.inv_freq
    -                                              model.rotary_emb.inv_freq
    decoder.layers.{}.feed_forward.(gate|up|down)  model.layers.{}.mlp.(gate|up|down)_proj
    decoder.layers.{}.pre_attention_norm           model.layers.{}.input_layernorm
    decoder.layers.{}.pre_feed_forward_norm        model.layers.{}.post_attention_layernorm
    decoder.final_norm                             model.norm
    heads.(lm|sequence_classification).out         (lm_head|score)
    heads.token_classification.out                 score
    heads.question_answering.out                   qa_outputs
"""


def upgrade_config(config: Args) -> Args:
    """Convert `rope_theta` and `rope_scaling` to `rope_parameters`."""
    rope_parameters = {
        **(config.get("rope_scaling") or {}),
        "rope_theta": config.get("rope_theta", 10000.0),
    }
    if "type" in rope_parameters:
        rope_parameters.setdefault("rope_type", rope_parameters.pop("type"))
    return {"rope_parameters": rope_parameters} | config


HEADS = "none lm sequence-classification token-classification question-answering"
FAMILY = Family(
    name="llama", doc=__doc__, shape="decoder", build_spec=llama, sizes=SIZES,
    config=COMMON_CONFIG | dict(
        kv_heads="num_key_value_heads", head_dim="head_dim", norm_eps="rms_norm_eps",
        rope_parameters="rope_parameters", attention_bias="attention_bias", ffn_bias="mlp_bias",
    ),
    supported_values={"pretraining_tp": (1,)}, upgrade_config=upgrade_config,
    model_types=("llama",), heads=head_classes("Llama", HEADS, lm="ForCausalLM"),
    former_classes={"LLaMAForCausalLM": "lm"}, names_table=KEYS, prefixes=("model.",),
    head_prefixes={"none": "", "question-answering": "transformer."},
)  # fmt: skip
