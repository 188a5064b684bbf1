"""GPT-2, and the one function that GPT, GPT-3, CTRL and Sparse Transformer share with it.

paper    Radford et al. 2019
purpose  write: complete, score
differs  pre-norm, byte-level words; the projections into the residual start small"""

from dataclasses import replace

from qkv import spec as s
from qkv.families.family import Family, classes, readers, summary


def gpt2(
    vocab: int = 50257, width: int = 768, depth: int = 12, heads: int = 12, feed: int | None = None,
    act: str = "gelu_new", length: int = 1024, eps: float = 1e-5, drop: float = 0.1, embed_drop: float = 0.1,
    attend_drop: float = 0.1, scaled: bool = True, scaled_by_layer: bool = False, cross: bool = False,
    summary_kind: str = "cls_index", summary_project: bool = True, summary_act: str | None = None,
    summary_labels: bool = True, summary_drop: float = 0.1, std: float = 0.02, tied: bool = True,
    labels: int = 2, head: str = "lm", family: str = "gpt2", head_dim: int | None = None,
    norms: str = "before", inner_eps: float | None = None, sinusoid: bool = False, lm_bias: bool = False,
    small_ends: bool = True,
) -> s.Spec:  # fmt: skip
    """`sinusoid` adds waves to tokens scaled by sqrt(width); `small_ends`: the residual starts small."""
    norm, size = s.Norm(eps=inner_eps or eps), head_dim or s.per_head(width, heads)
    attend = s.Attend(heads=heads, head_dim=size, pattern=s.causal, drop=attend_drop)
    dense = s.Dense(width=feed or 4 * width, act=act)
    layer = s.Layer(attend=attend, feed=dense, norm=norm, place=norms, drop=drop)
    scales = [(size**-0.5 if scaled else 1.0) / (i + 1 if scaled_by_layer else 1) for i in range(depth)]
    layers = tuple(replace(layer, attend=replace(attend, scale=scale)) for scale in scales)
    if cross:
        layers = tuple(replace(each, cross=replace(each.attend, pattern=s.everyone)) for each in layers)
    embed = s.Embed(vocab=vocab, positions=s.Learned(count=length), types="tokens", drop=embed_drop)
    if sinusoid:
        embed = replace(embed, positions=s.Sinusoid(), scale=width**0.5, scales_given=True)
    final = s.Norm(eps=eps) if norms == "before" else None
    stack = s.Stack(width=width, embed=embed, layers=layers, final=final)
    lm = s.Head(name="lm", size=vocab, bias=lm_bias, tied=tied)
    size = 1 if summary_labels else width
    double = summary(size, summary_kind, summary_project, summary_act, out=("choice",), drop=summary_drop)
    found = readers(labels, 0.1, lm) | {"double": (lm, double)}
    end = std / (2 * depth) ** 0.5 if small_ends else std
    init = (("*.attend.o.weight", end), ("*.cross.o.weight", end), ("*.feed.down.weight", end), ("*", std))
    return s.Spec(family=family, decoder=stack, heads=found[head], init=init)


SIZES = {
    "small":  {},
    "medium": dict(width=1024, depth=24, heads=16),
    "large":  dict(width=1280, depth=36, heads=20),
    "xl":     dict(width=1600, depth=48, heads=25),
}  # fmt: skip

CONFIG = dict(
    vocab="vocab_size", width="n_embd", depth="n_layer", heads="n_head", length="n_positions",
    eps="layer_norm_epsilon", drop="resid_pdrop", embed_drop="embd_pdrop", std="initializer_range",
    tied="tie_word_embeddings",
)  # fmt: skip
SUMMARY = dict(
    attend_drop="attn_pdrop", summary_kind="summary_type", summary_project="summary_use_proj",
    summary_act="summary_activation", summary_labels="summary_proj_to_labels",
    summary_drop="summary_first_dropout",
)  # fmt: skip

KEYS = """
    decoder.layers.{}.attend.q,k,v     transformer.h.{}.attn.c_attn             conv1d
    decoder.layers.{}.attend.o         transformer.h.{}.attn.c_proj             conv1d
    decoder.layers.{}.feed.(up|down)   transformer.h.{}.mlp.(c_fc|c_proj)       conv1d
    heads.summary.dense                multiple_choice_head.summary
    heads.(label|tag|span).out         (score|classifier|qa_outputs)
    -                                  transformer.h.{}.attn.bias
"""
CROSS = """
    decoder.embed.(tokens|positions)   transformer.(wte|wpe)
    decoder.layers.{}.before_(attend|cross|feed)  transformer.h.{}.ln_(1|cross_attn|2)
    decoder.layers.{}.cross.q          transformer.h.{}.crossattention.q_attn   conv1d
    decoder.layers.{}.cross.k,v        transformer.h.{}.crossattention.c_attn   conv1d
    decoder.layers.{}.cross.o          transformer.h.{}.crossattention.c_proj   conv1d
    decoder.norm                       transformer.ln_f
    (-|-)                              transformer.h.{}.(attn|crossattention).masked_bias
    -                                  transformer.h.{}.crossattention.bias
    heads.lm.out                       lm_head
"""

FAMILY = Family(
    name="gpt2", doc=__doc__, make=gpt2, sizes=SIZES, keys=KEYS + CROSS, model_types=("gpt2",),
    prefixes=("transformer.",),
    config=CONFIG | SUMMARY | dict(
        feed="n_inner", act="activation_function", scaled="scale_attn_weights", cross="add_cross_attention",
        scaled_by_layer="scale_attn_by_inverse_layer_idx",
    ),
    heads=classes("GPT2", "none lm double label tag span"), shape="decoder",
)  # fmt: skip
