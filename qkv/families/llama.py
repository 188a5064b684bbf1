"""Llama: rotary positions, a gated feed and grouped heads; proof that a family is one file.

paper    Touvron et al. 2023, arXiv:2302.13971
purpose  write; here to show that a family is one file
differs  rotary positions, gated feed, RMS norm, grouped heads"""

from typing import Any

from qkv import spec as s
from qkv.families.family import COMMON, Args, Family, classes, readers


def llama(
    vocab: int = 32000, width: int = 4096, depth: int = 32, heads: int = 32, kv_heads: int | None = None,
    head_dim: int | None = None, feed: int = 11008, act: str = "silu", length: int = 2048, eps: float = 1e-6,
    rope: dict[str, Any] | None = None, attend_bias: bool = False, feed_bias: bool = False,
    attend_drop: float = 0.0, pad: int | None = None, std: float = 0.02, tied: bool = False, labels: int = 2,
    head: str = "lm",
) -> s.Spec:  # fmt: skip
    size = s.per_head(width, heads) if head_dim is None else head_dim
    attend = s.Attend(
        heads=heads, head_dim=size, kv_heads=kv_heads, pattern=s.causal, bias=attend_bias, drop=attend_drop,
        relate=rotary(rope),
    )  # fmt: skip
    norm = s.Norm(kind="rms", eps=eps)
    layer = s.Layer(attend=attend, feed=s.Dense(width=feed, act=act, gated=True, bias=feed_bias), norm=norm)
    stack = s.Stack(width=width, embed=s.Embed(vocab=vocab, pad=pad), layers=(layer,) * depth, final=norm)
    lm = s.Head(name="lm", size=vocab, bias=False, tied=tied)
    return s.Spec(family="llama", decoder=stack, heads=readers(labels, 0.1, lm)[head], init=(("*", std),))


def rotary(rope: dict[str, Any] | None, base: float = 10000.0) -> s.Rotary:
    """Rotary positions as `rope_parameters` states them."""
    scaling = dict(rope or {})
    return s.Rotary(base=float(scaling.pop("rope_theta", base)), scaling=tuple(sorted(scaling.items())))


SIZES = {
    "7b": {},
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
    name="llama", doc=__doc__, make=llama, sizes=SIZES, keys=KEYS, model_types=("llama",),
    prefixes=("model.",), older=older, prefixed={"none": "", "span": "transformer."}, shape="decoder",
    config=COMMON | dict(
        kv_heads="num_key_value_heads", head_dim="head_dim", eps="rms_norm_eps", rope="rope_parameters",
        attend_bias="attention_bias", feed_bias="mlp_bias",
    ),
    heads=classes("Llama", "none lm label tag span", lm="ForCausalLM"), only={"pretraining_tp": (1,)},
)  # fmt: skip
