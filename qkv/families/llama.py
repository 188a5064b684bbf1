"""Llama: rotary positions, a gated feed and grouped heads; proof that a family is one file.

paper    Touvron et al. 2023, arXiv:2302.13971
purpose  write; here to show that a family is one file
differs  rotary positions, gated feed, RMS norm, grouped heads"""

from typing import Any

from qkv.families.family import Args, Family, classes, label, span, tag
from qkv.spec import Attend, Dense, Embed, Head, Layer, Norm, Rotary, Spec, Stack, causal, per_head


def llama(
    vocab: int = 32000, width: int = 4096, depth: int = 32, heads: int = 32, kv_heads: int | None = None,
    head_dim: int | None = None, feed: int = 11008, act: str = "silu", length: int = 2048, eps: float = 1e-6,
    rope: dict[str, Any] | None = None, attend_bias: bool = False, feed_bias: bool = False, attend_drop: float = 0.0,
    pad: int | None = None, std: float = 0.02, tied: bool = False, labels: int = 2, head: str = "lm",
) -> Spec:  # fmt: skip
    size = per_head(width, heads) if head_dim is None else head_dim
    attend = Attend(
        heads=heads, head_dim=size, kv_heads=kv_heads, pattern=causal, bias=attend_bias, drop=attend_drop,
        relate=rotary(rope or {}),
    )  # fmt: skip
    norm = Norm(kind="rms", eps=eps)
    layer = Layer(attend=attend, feed=Dense(width=feed, act=act, gated=True, bias=feed_bias), before=norm)
    stack = Stack(width=width, embed=Embed(vocab=vocab, pad=pad), layers=(layer,) * depth, final=norm)
    lm = Head(name="lm", size=vocab, bias=False, tied="decoder" if tied else "")
    found = {
        "none": (), "lm": (lm,), "label": (label(labels, take="last", bias=False),), "tag": (tag(labels, 0.1),),
        "span": (span(),),
    }  # fmt: skip
    return Spec(family="llama", decoder=stack, heads=found[head], init=(("*", std),))


def rotary(rope: dict[str, Any], base: float = 10000.0) -> Rotary:
    """Rotary positions as `rope_parameters` states them."""
    scaling = {k: v for k, v in rope.items() if k != "rope_theta"}
    return Rotary(base=float(rope.get("rope_theta", base)), scaling=tuple(sorted(scaling.items())))


SIZES = {
    "7b":    dict(),
    "13b":   dict(width=5120, depth=40, heads=40, feed=13824),
    "65b":   dict(width=8192, depth=80, heads=64, feed=22016),
    "3.2-1b": dict(
        vocab=128256, width=2048, depth=16, heads=32, kv_heads=8, head_dim=64, feed=8192, eps=1e-5, tied=True,
        rope={"rope_theta": 500000.0, "rope_type": "default"},
    ),
}  # fmt: skip

KEYS = """
    decoder.embed.tokens                     model.embed_tokens
    decoder.layers.{}.attend.(q|k|v|o)       model.layers.{}.self_attn.(q|k|v|o)_proj
    -                                        model.layers.{}.self_attn.rotary_emb.inv_freq
    decoder.layers.{}.feed.(gate|up|down)    model.layers.{}.mlp.(gate|up|down)_proj
    decoder.layers.{}.before_(attend|feed)   model.layers.{}.(input|post_attention)_layernorm
    decoder.norm                             model.norm
    heads.(lm|label|tag|span).out            (lm_head|score|score|qa_outputs)
"""


def older(config: Args) -> Args:
    """`rope_theta` and `rope_scaling` became `rope_parameters`."""
    old = {**(config.get("rope_scaling") or {}), "rope_theta": config.get("rope_theta", 10000.0)}
    if "type" in old:
        old.setdefault("rope_type", old.pop("type"))
    return {"rope_parameters": old} | config


FAMILY = Family(
    name="llama", doc=__doc__, make=llama, sizes=SIZES, keys=KEYS, model_types=("llama",), prefix="model.", older=older,
    prefixed={"none": "", "span": "transformer."}, shape="decoder",
    config=dict(
        vocab="vocab_size", width="hidden_size", depth="num_hidden_layers", heads="num_attention_heads",
        kv_heads="num_key_value_heads", head_dim="head_dim", feed="intermediate_size", act="hidden_act",
        length="max_position_embeddings", eps="rms_norm_eps", rope="rope_parameters", attend_bias="attention_bias",
        feed_bias="mlp_bias", attend_drop="attention_dropout", pad="pad_token_id", std="initializer_range",
        tied="tie_word_embeddings",
    ),
    heads=classes("Llama", "none lm label tag span", lm="ForCausalLM"), only={"pretraining_tp": (1,)},
)  # fmt: skip
