"""CTRL (Keskar et al. 2019): a causal decoder that begins with a control code."""

from __future__ import annotations

from typing import Any

from qkv.families.family import Family, label
from qkv.spec import Attend, Dense, Embed, Head, Layer, Norm, Sinusoid, Spec, Stack, causal, per_head


def ctrl(
    vocab: int = 246534, width: int = 1280, depth: int = 48, heads: int = 16, feed: int = 8192, length: int = 256,
    eps: float = 1e-6, drop: float = 0.1, embed_drop: float = 0.1, std: float = 0.02, tied: bool = True,
    labels: int = 2, head: str = "lm",
) -> Spec:  # fmt: skip
    attend = Attend(heads=heads, head_dim=per_head(width, heads), pattern=causal)
    layer = Layer(attend=attend, feed=Dense(width=feed, act="relu"), before=Norm(eps=1e-6), drop=drop)
    embed = Embed(vocab=vocab, positions=Sinusoid(), types="tokens", scale=width**0.5, scales_given=True, drop=embed_drop)
    stack = Stack(width=width, embed=embed, layers=(layer,) * depth, final=Norm(eps=eps))
    lm = Head(name="lm", size=vocab, tied="decoder" if tied else "")
    found: dict[str, tuple[Any, ...]] = {
        "none": (), "lm": (lm,), "label": (label(labels, take="last", bias=False),),
    }  # fmt: skip
    return Spec(family="ctrl", decoder=stack, heads=found[head], init=(("*", std),))


KEYS = """
    decoder.embed.tokens             transformer.w
    -                                transformer.pos_encoding
    decoder.layers.{}.attend.q       transformer.h.{}.multi_head_attention.Wq
    decoder.layers.{}.attend.k       transformer.h.{}.multi_head_attention.Wk
    decoder.layers.{}.attend.v       transformer.h.{}.multi_head_attention.Wv
    decoder.layers.{}.attend.o       transformer.h.{}.multi_head_attention.dense
    decoder.layers.{}.before_attend  transformer.h.{}.layernorm1
    decoder.layers.{}.feed.up        transformer.h.{}.ffn.0
    decoder.layers.{}.feed.down      transformer.h.{}.ffn.2
    decoder.layers.{}.before_feed    transformer.h.{}.layernorm2
    decoder.norm                     transformer.layernorm
    heads.lm.out                     lm_head
    heads.label.out                  classifier
"""

FAMILY = Family(
    name="ctrl", make=ctrl, sizes={"base": {}}, keys=KEYS, model_types=("ctrl",), prefix="transformer.", shape="decoder",
    config=dict(
        vocab="vocab_size", width="n_embd", depth="n_layer", heads="n_head", feed="dff", length="n_positions",
        eps="layer_norm_epsilon", drop="resid_pdrop", embed_drop="embd_pdrop", std="initializer_range",
        tied="tie_word_embeddings",
    ),
    heads={"none": "CTRLModel", "lm": "CTRLLMHeadModel", "label": "CTRLForSequenceClassification"},
    paper="Keskar et al. 2019, arXiv:1909.05858", purpose="write in a style named by a code",
    differs="control codes; sinusoids added to scaled tokens, pre-norm",
)  # fmt: skip
