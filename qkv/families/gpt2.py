"""GPT-2 (Radford et al. 2019): a causal decoder with norms before the steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qkv.families.family import Family, label, span, summary, tag
from qkv.spec import Attend, Dense, Embed, Head, Layer, Learned, Norm, Spec, Stack, causal, everyone, per_head


def gpt2(
    vocab: int = 50257, width: int = 768, depth: int = 12, heads: int = 12, feed: int | None = None,
    act: str = "gelu_new", length: int = 1024, eps: float = 1e-5, drop: float = 0.1, embed_drop: float = 0.1,
    attend_drop: float = 0.1, scaled: bool = True, scaled_by_depth: bool = False, cross: bool = False,
    summary_kind: str = "cls_index", summary_project: bool = True, summary_act: str | None = None,
    summary_labels: bool = True, summary_drop: float = 0.1, std: float = 0.02, tied: bool = True, labels: int = 2,
    head: str = "lm",
) -> Spec:  # fmt: skip
    norm, size = Norm(eps=eps), per_head(width, heads)
    scales = [(size**-0.5 if scaled else 1.0) / (i + 1 if scaled_by_depth else 1) for i in range(depth)]
    attend = Attend(heads=heads, head_dim=size, pattern=causal, drop=attend_drop)
    layer = Layer(attend=attend, feed=Dense(width=feed or 4 * width, act=act), before=norm, drop=drop)
    layers = tuple(replace(layer, attend=replace(attend, scale=scale)) for scale in scales)
    if cross:
        layers = tuple(replace(x, cross=replace(x.attend, pattern=everyone)) for x in layers)
    embed = Embed(vocab=vocab, positions=Learned(count=length), types="tokens", drop=embed_drop)
    lm = Head(name="lm", size=vocab, bias=False, tied="decoder" if tied else "")
    double = summary(
        1 if summary_labels else width, summary_kind, summary_project, summary_act, out=("choice",), drop=summary_drop
    )
    found: dict[str, tuple[Any, ...]] = {
        "none": (), "lm": (lm,), "label": (label(labels, take="last", bias=False),), "tag": (tag(labels, 0.1),),
        "span": (span(),),
        "double": (lm, double),
    }  # fmt: skip
    init = (("*.attend.o.weight", std / (2 * depth) ** 0.5), ("*.feed.down.weight", std / (2 * depth) ** 0.5), ("*", std))
    return Spec(
        family="gpt2", decoder=Stack(width=width, embed=embed, layers=layers, final=norm), heads=found[head],
        choices=head == "double", init=init,
    )  # fmt: skip


SIZES = {
    "small":  dict(),
    "medium": dict(width=1024, depth=24, heads=16),
    "large":  dict(width=1280, depth=36, heads=20),
    "xl":     dict(width=1600, depth=48, heads=25),
}  # fmt: skip

CONFIG = dict(
    vocab="vocab_size", width="n_embd", depth="n_layer", heads="n_head", feed="n_inner", act="activation_function",
    length="n_positions", eps="layer_norm_epsilon", drop="resid_pdrop", embed_drop="embd_pdrop",
    attend_drop="attn_pdrop", scaled="scale_attn_weights", scaled_by_depth="scale_attn_by_inverse_layer_idx",
    cross="add_cross_attention", summary_kind="summary_type", summary_project="summary_use_proj",
    summary_act="summary_activation", summary_labels="summary_proj_to_labels", summary_drop="summary_first_dropout",
    std="initializer_range", tied="tie_word_embeddings",
)  # fmt: skip

KEYS = """
    decoder.embed.tokens             transformer.wte
    decoder.embed.positions          transformer.wpe
    decoder.layers.{}.before_attend  transformer.h.{}.ln_1
    decoder.layers.{}.attend.q,k,v   transformer.h.{}.attn.c_attn           conv1d
    decoder.layers.{}.attend.o       transformer.h.{}.attn.c_proj           conv1d
    decoder.layers.{}.before_cross   transformer.h.{}.ln_cross_attn
    decoder.layers.{}.cross.q        transformer.h.{}.crossattention.q_attn conv1d
    decoder.layers.{}.cross.k,v      transformer.h.{}.crossattention.c_attn conv1d
    decoder.layers.{}.cross.o        transformer.h.{}.crossattention.c_proj conv1d
    decoder.layers.{}.before_feed    transformer.h.{}.ln_2
    decoder.layers.{}.feed.up        transformer.h.{}.mlp.c_fc              conv1d
    decoder.layers.{}.feed.down      transformer.h.{}.mlp.c_proj            conv1d
    decoder.norm                     transformer.ln_f
    -                                transformer.h.{}.attn.bias
    -                                transformer.h.{}.attn.masked_bias
    -                                transformer.h.{}.crossattention.bias
    -                                transformer.h.{}.crossattention.masked_bias
    heads.lm.out                     lm_head
    heads.label.out                  score
    heads.tag.out                    classifier
    heads.summary.dense              multiple_choice_head.summary
    heads.span.out                   qa_outputs
"""

FAMILY = Family(
    name="gpt2", make=gpt2, sizes=SIZES, config=CONFIG, model_types=("gpt2",), prefix="transformer.", shape="decoder",
    keys=KEYS,
    heads={
        "none": "GPT2Model", "lm": "GPT2LMHeadModel", "double": "GPT2DoubleHeadsModel",
        "label": "GPT2ForSequenceClassification", "tag": "GPT2ForTokenClassification",
        "span": "GPT2ForQuestionAnswering",
    },
    paper="Radford et al. 2019", purpose="write: complete, generate",
    differs="pre-norm, byte-level words, the last layers start small",
)  # fmt: skip
